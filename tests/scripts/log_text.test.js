import assert from "node:assert/strict";
import { test } from "node:test";
import { MAX_LENGTH, matchCount, overwritten, shownLine } from "../../dagmaster/web/static/log_text.js";

test("colours and other escapes are removed", () => {
  assert.equal(shownLine("\u001b[31mred\u001b[0m \u001b]8;;http://x\u0007link\u001b]8;;\u0007"), "red link");
});

test("a carriage return overwrites the line, as in a terminal", () => {
  assert.equal(overwritten("10%\r50%\r100%"), "100%");
  assert.equal(overwritten("10%\r50%\r"), "50%\r");
  assert.equal(shownLine("Windows line\r"), "Windows line");
});

test("a very long line is cut and says how much is missing", () => {
  assert.ok(shownLine("x".repeat(MAX_LENGTH + 7)).endsWith("x… (7 more characters)"));
});

test("the counter of matches", () => {
  assert.deepEqual(
    [matchCount("", 3, 0), matchCount("a", 0, -1), matchCount("a", 1, -1), matchCount("a", 2, -1), matchCount("a", 2, 1)],
    ["", "not found", "1 line", "2 lines", "2 of 2"],
  );
  assert.equal(matchCount("a", 0, -1, 3), "only in earlier lines");
});
