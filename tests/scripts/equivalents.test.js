import assert from "node:assert/strict";
import { test } from "node:test";
import { asCommand, asCurl, bodyOf } from "../../dagmaster/web/static/equivalents.js";

const submission = {
  server: "http://localhost:8000",
  workflow: "greet",
  inputs: new Map([["name", '"Ada\'s"'], ["count", "3"], ["api_key", '"hunter2"']]),
  options: new Map([["priority", "5"], ["correlation_id", '"order 12"']]),
  isDeclared: () => true,
  isString: (name) => name !== "count",
  isSecret: (name) => name === "api_key",
  needsKey: true,
};

test("the command quotes for the shell and hides secrets", () => {
  assert.equal(asCommand(submission), [
    "dagmaster --url http://localhost:8000 submit greet",
    String.raw`-i 'name=Ada'\''s'`, "-i count=3", "-i 'api_key=***'", "--priority 5", "--correlation-id 'order 12'",
  ].join(" \\\n  "));
});

test("undeclared inputs are one JSON argument", () => {
  const command = asCommand({ ...submission, isDeclared: (name) => name !== "count" });
  assert.match(command, /--inputs '\{"name": "Ada'\\''s", "count": 3, "api_key": "\*\*\*"\}'/);
});

test("metadata has no option and is mentioned", () => {
  const command = asCommand({ ...submission, options: new Map([["metadata", '{"a": 1}']]) });
  assert.match(command, /# Metadata can only be set over HTTP\.$/);
});

test("the curl command sends the same body, with a key where one is needed", () => {
  const command = asCurl(submission);
  assert.match(command, /Authorization: Bearer \$DAGMASTER_API_KEY/);
  assert.match(command, /"priority": 5/);
  assert.doesNotMatch(command, /hunter2/);
  assert.doesNotMatch(asCurl({ ...submission, needsKey: "" }), /Authorization/);
});

test("a body without inputs has no input_params", () => {
  assert.deepEqual([...bodyOf("greet", new Map(), new Map()).keys()], ["workflow_id"]);
});
