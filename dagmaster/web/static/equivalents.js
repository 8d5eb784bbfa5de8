// The same submission as a dagmaster command and as a curl command.
import { joined } from "./json.js";

const HIDDEN = "***";

function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

function shown(inputs, isSecret) {
  return new Map([...inputs].map(([name, text]) => [name, isSecret(name) ? JSON.stringify(HIDDEN) : text]));
}

// `inputs` and `options` map names to JSON; `isString` says which inputs are declared as strings.
export function asCommand({ server, workflow, inputs, options, isDeclared, isString, isSecret }) {
  const words = [`dagmaster --url ${quoted(server)} submit ${quoted(workflow)}`];
  const hidden = shown(inputs, isSecret);
  if ([...hidden.keys()].every((name) => isDeclared(name) && !name.includes("="))) {
    for (const [name, text] of hidden) words.push(`-i ${quoted(`${name}=${isString(name) ? JSON.parse(text) : text}`)}`);
  } else words.push(`--inputs ${quoted(joined(hidden, ""))}`);
  for (const [name, text] of options) {
    if (name === "metadata") continue;
    words.push(`--${name.replaceAll("_", "-")} ${quoted(text.startsWith('"') ? JSON.parse(text) : text)}`);
  }
  return words.join(" \\\n  ") + (options.has("metadata") ? "\n# Metadata can only be set over HTTP." : "");
}

export function asCurl({ server, workflow, inputs, options, isSecret, needsKey }) {
  const body = joined(bodyOf(workflow, shown(inputs, isSecret), options), "");
  return [
    `curl -X POST ${quoted(`${server}/api/v1/jobs`)}`,
    "-H 'Content-Type: application/json'",
    ...(needsKey ? ['-H "Authorization: Bearer $DAGMASTER_API_KEY"'] : []),
    `-d ${quoted(body)}`,
  ].join(" \\\n  ");
}

export function bodyOf(workflow, inputs, options) {
  return new Map([["workflow_id", JSON.stringify(workflow)], ...(inputs.size ? [["input_params", joined(inputs, "")]] : []), ...options]);
}
