import assert from "node:assert/strict";
import { test } from "node:test";
import { joined, kindOf, members, mistake } from "../../dagmaster/web/static/json.js";

test("valid JSON has no mistake", () => {
  for (const text of ["{}", "[]", "null", ' {"a": [1, -2.5e3, "\\u00e9", true, false, null]} ', '"x"']) assert.equal(mistake(text), null);
});

test("a mistake names its line and column", () => {
  assert.equal(mistake("[1,\n 2,,]"), "Expected a value at line 2, column 4");
  assert.equal(mistake('{"a" 1}'), "Expected a colon at line 1, column 6");
  assert.equal(mistake("{a: 1}"), "Expected a name in double quotes at line 1, column 2");
  assert.equal(mistake('["a\nb"]'), "String not closed, or with a line break or invalid escape at line 1, column 2");
  assert.equal(mistake("[1 2]"), "Expected a comma or ] at line 1, column 4");
  assert.equal(mistake("{} {}"), "Unexpected text after the value at line 1, column 4");
});

test("a text that ends too early says so", () => {
  assert.equal(mistake('{"name": "Ada"'), "Unexpected end, expected a comma or } at line 1, column 15");
  assert.equal(mistake(""), "Unexpected end, expected a value at line 1, column 1");
});

test("deep nesting is refused and does not overflow the stack", () => {
  assert.match(mistake("[".repeat(100_000)), /^Nested too deeply/);
});

test("members keep numbers as they were typed", () => {
  const values = members('{"big": 12345678901234567890, "list": [ 1,  2 ], "text": "a,b"}');
  assert.deepEqual([...values], [["big", "12345678901234567890"], ["list", "[ 1,  2 ]"], ["text", '"a,b"']]);
});

test("members joined again are the same object", () => {
  const values = members('{"a": {"b": 1}, "c": "x"}');
  assert.equal(joined(values, ""), '{"a": {"b": 1}, "c": "x"}');
  assert.deepEqual(JSON.parse(joined(values)), { a: { b: 1 }, c: "x" });
  assert.equal(joined(new Map()), "{}");
});

test("the kind of a value is known from its text", () => {
  const kinds = ["{}", "[]", '"x"', "true", "null", "-1"].map(kindOf);
  assert.deepEqual(kinds, ["object", "array", "string", "boolean", "null", "number"]);
});
