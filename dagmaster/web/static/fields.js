// What stands in the fields of a form, as JSON text, and what is wrong with it.
import { kindOf, members, mistake } from "./json.js";

const ARTICLES = { integer: "a whole number", number: "a number", string: "a text", boolean: "true or false", array: "a list such as [1, 2]", object: 'an object such as {"a": 1}' };
const NUMBER = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/;

// { text, problem }: text is null when nothing is given.
export function read(element) {
  const { kind } = element.dataset;
  if (element.type === "checkbox") return { text: String(element.checked), problem: null };
  if (kind === "integer" || kind === "number") return readNumber(element, kind);
  if (element.value.trim() === "" && (kind !== "string" || element.value === "")) return missing(element);
  if (kind === "string") return { text: JSON.stringify(element.value), problem: element.type === "url" ? wrongAddress(element) : null };
  if (kind === "boolean") return { text: element.value, problem: null };
  const text = element.value.trim();
  const wrong = mistake(text) ?? (kindOf(text) === kind ? null : `It must be ${ARTICLES[kind]}`);
  return { text: wrong ? null : text, problem: wrong };
}

function missing(element) {
  return { text: null, problem: element.required ? "It is required" : null };
}

function wrongAddress(element) {
  return element.validity.typeMismatch ? "It must be an address such as https://example.com/done" : null;
}

function readNumber(element, kind) {
  if (element.validity.badInput) return { text: null, problem: `It must be ${ARTICLES[kind]}` };
  const typed = element.value.trim();
  if (!typed) return missing(element);
  const value = Number(typed);
  if (kind === "integer" && !Number.isInteger(value)) return { text: null, problem: "It must be a whole number" };
  if (!Number.isFinite(value)) return { text: null, problem: "It is too large" };
  if (element.min !== "" && value < Number(element.min)) return { text: null, problem: `It must be at least ${element.min}` };
  if (element.max !== "" && value > Number(element.max)) return { text: null, problem: `It must be at most ${element.max}` };
  return { text: NUMBER.test(typed) ? typed : String(value), problem: null };
}

// Put a JSON text into the field; what does not fit its type is said.
export function write(element, text) {
  const { kind } = element.dataset;
  if (text === undefined || text === "null") {
    if (element.type === "checkbox") element.checked = element.defaultChecked;
    else element.value = "";
    return null;
  }
  if (!fits(text, kind)) return `It must be ${ARTICLES[kind]}`;
  if (element.type === "checkbox") element.checked = text === "true";
  else if (kind === "string") element.value = JSON.parse(text);
  else if (read(element).text !== text) element.value = text;
  return null;
}

function fits(text, kind) {
  const found = kindOf(text);
  if (kind === "integer") return found === "number" && Number.isInteger(Number(text));
  return found === kind;
}

// The members of a text that should be one object, and what is wrong with each of the declared ones.
export function readAll(text, declared, takesMore) {
  const wrong = mistake(text.trim() ? text : "{}") ?? (kindOf(text.trim() || "{}") === "object" ? null : "It must be one object: {…}");
  if (wrong) return { given: null, problems: [wrong] };
  const given = members(text.trim() || "{}");
  const problems = [];
  for (const [name, element] of declared) {
    const one = given.get(name);
    if (one === undefined || one === "null") {
      if (element.required) problems.push(`${name}: it is required`);
    } else if (!fits(one, element.dataset.kind)) problems.push(`${name}: it must be ${ARTICLES[element.dataset.kind]}`);
  }
  for (const name of given.keys()) if (!declared.has(name) && !takesMore) problems.push(`${name}: the workflow has no such input`);
  return { given, problems };
}
