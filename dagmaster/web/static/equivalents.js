// The same submission as a command and as a call of curl.
import { joined } from "./json.js";

const HIDDEN = "***";

function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

function shown(given, isSecret) {
  return new Map([...given].map(([name, text]) => [name, isSecret(name) ? JSON.stringify(HIDDEN) : text]));
}

// `given` and `options` map names to JSON texts; `isText` says which inputs are declared as texts.
export function asCommand({ server, workflow, given, options, isDeclared, isText, isSecret }) {
  const words = [`dagmaster --url ${quoted(server)} submit ${quoted(workflow)}`];
  const hidden = shown(given, isSecret);
  if ([...hidden.keys()].every((name) => isDeclared(name) && !name.includes("="))) {
    for (const [name, text] of hidden) words.push(`-i ${quoted(`${name}=${isText(name) ? JSON.parse(text) : text}`)}`);
  } else words.push(`--inputs ${quoted(joined(hidden, ""))}`);
  for (const [name, text] of options) {
    if (name === "metadata") continue;
    words.push(`--${name.replaceAll("_", "-")} ${quoted(text.startsWith('"') ? JSON.parse(text) : text)}`);
  }
  return words.join(" \\\n  ") + (options.has("metadata") ? "\n# Metadata can only be given over HTTP." : "");
}

export function asCurl({ server, workflow, given, options, isSecret, needsKey }) {
  const body = joined(bodyOf(workflow, shown(given, isSecret), options), "");
  return [
    `curl -X POST ${quoted(`${server}/api/v1/jobs`)}`,
    "-H 'Content-Type: application/json'",
    ...(needsKey ? ['-H "Authorization: Bearer $DAGMASTER_API_KEY"'] : []),
    `-d ${quoted(body)}`,
  ].join(" \\\n  ");
}

export function bodyOf(workflow, given, options) {
  return new Map([["workflow_id", JSON.stringify(workflow)], ...(given.size ? [["input_params", joined(given, "")]] : []), ...options]);
}
