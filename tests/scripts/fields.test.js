import assert from "node:assert/strict";
import { test } from "node:test";
import { read, readAll, write } from "../../dagmaster/web/static/fields.js";

const field = (kind, value, more = {}) => ({
  type: "text", value, required: false, min: "", max: "", dataset: { kind }, validity: { badInput: false, typeMismatch: false }, ...more,
});

test("fields are read as JSON", () => {
  assert.deepEqual(read(field("string", "Ada's")), { text: '"Ada\'s"', problem: null });
  assert.deepEqual(read(field("integer", "9007199254740993")), { text: "9007199254740993", problem: null });
  assert.deepEqual(read(field("object", ' {"a": 1} ')), { text: '{"a": 1}', problem: null });
  assert.deepEqual(read(field("boolean", "", { type: "checkbox", checked: false })), { text: "false", problem: null });
});

test("an empty field has no value, and a problem only if it is required", () => {
  assert.deepEqual(read(field("string", "")), { text: null, problem: null });
  assert.deepEqual(read(field("array", "  ", { required: true })), { text: null, problem: "Required" });
});

test("wrong values say what is expected", () => {
  assert.equal(read(field("integer", "2.5")).problem, "Must be a whole number");
  assert.equal(read(field("integer", "10", { max: "9" })).problem, "Must be at most 9");
  assert.equal(read(field("integer", "10", { max: "9" })).text, "10");
  assert.equal(read(field("number", "0", { min: "1" })).problem, "Must be at least 1");
  assert.equal(read(field("number", "1e999")).problem, "Too large");
  assert.equal(read(field("array", "{}")).problem, "Must be a list such as [1, 2]");
  assert.equal(read(field("object", "{,}")).problem, "Expected a name in double quotes at line 1, column 2");
});

test("JSON is written back into a field, unless its type differs", () => {
  const name = field("string", "");
  assert.equal(write(name, '"Eve"'), null);
  assert.equal(name.value, "Eve");
  assert.equal(write(field("integer", ""), "1.5"), "Must be a whole number");
});

test("an object is checked against the declared fields", () => {
  const declared = new Map([["name", field("string", "", { required: true })], ["count", field("integer", "")]]);
  assert.deepEqual(readAll('{"count": "x", "other": 1}', declared, false).problems, [
    "name: required", "count: must be a whole number", "other: unknown input",
  ]);
  assert.deepEqual(readAll('{"name": "a", "other": 1}', declared, true).problems, []);
  assert.deepEqual(readAll("[]", declared, true), { inputs: null, problems: ["Must be one object: {…}"] });
});
