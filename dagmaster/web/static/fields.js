// Read the fields of a form as JSON, with their problems.
import { kindOf, members, mistake } from "./json.js";

const TYPES = {
  integer: "a whole number", number: "a number", string: "a string", boolean: "true or false", array: "a list such as [1, 2]",
  object: 'an object such as {"a": 1}',
};
const NUMBER = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/;

// { text, problem }: text is null for a field that is empty or is not JSON. A wrong value keeps its text.
export function read(element) {
  const { kind } = element.dataset;
  if (element.type === "checkbox") return { text: String(element.checked), problem: null };
  if (kind === "integer" || kind === "number") return readNumber(element, kind);
  if (element.value.trim() === "" && (kind !== "string" || element.value === "")) return missing(element);
  if (kind === "string") return { text: JSON.stringify(element.value), problem: element.type === "url" ? wrongAddress(element) : null };
  if (kind === "boolean") return { text: element.value, problem: null };
  const text = element.value.trim();
  const wrong = mistake(text) ?? (kindOf(text) === kind ? null : `Must be ${TYPES[kind]}`);
  return { text: wrong ? null : text, problem: wrong };
}

function missing(element) {
  return { text: null, problem: element.required ? "Required" : null };
}

function wrongAddress(element) {
  return element.validity.typeMismatch ? "Must be a URL such as https://example.com/done" : null;
}

function readNumber(element, kind) {
  if (element.validity.badInput) return { text: null, problem: `Must be ${TYPES[kind]}` };
  const typed = element.value.trim();
  if (!typed) return missing(element);
  const value = Number(typed);
  if (!Number.isFinite(value)) return { text: null, problem: "Too large" };
  return { text: NUMBER.test(typed) ? typed : String(value), problem: wrongNumber(element, kind, value) };
}

function wrongNumber({ min, max }, kind, value) {
  if (kind === "integer" && !Number.isInteger(value)) return "Must be a whole number";
  if (min !== "" && value < Number(min)) return `Must be at least ${min}`;
  if (max !== "" && value > Number(max)) return `Must be at most ${max}`;
  return null;
}

// Put JSON into the field; returns the problem if the type does not match.
export function write(element, text) {
  const { kind } = element.dataset;
  if (text === undefined || text === "null") {
    if (element.type === "checkbox") element.checked = element.defaultChecked;
    else element.value = "";
    return null;
  }
  if (!fits(text, kind)) return `Must be ${TYPES[kind]}`;
  if (element.type === "checkbox") element.checked = text === "true";
  else if (kind === "string") element.value = JSON.parse(text);
  else if (read(element).text !== text) element.value = text;
  return null;
}

function fits(text, kind) {
  const actual = kindOf(text);
  if (kind === "integer") return actual === "number" && Number.isInteger(Number(text));
  return actual === kind;
}

// The members of a text that should be one object, and their problem.
export function readAll(text, declared, takesMore) {
  const wrong = mistake(text.trim() ? text : "{}") ?? (kindOf(text.trim() || "{}") === "object" ? null : "Must be one object: {…}");
  if (wrong) return { inputs: null, problems: [wrong] };
  const inputs = members(text.trim() || "{}");
  const problems = [];
  for (const [name, element] of declared) {
    const value = inputs.get(name);
    if (value === undefined || value === "null") {
      if (element.required) problems.push(`${name}: required`);
    } else if (!fits(value, element.dataset.kind)) problems.push(`${name}: must be ${TYPES[element.dataset.kind]}`);
  }
  for (const name of inputs.keys()) if (!declared.has(name) && !takesMore) problems.push(`${name}: unknown input`);
  return { inputs, problems };
}
