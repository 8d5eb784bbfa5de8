import assert from "node:assert/strict";
import { test } from "node:test";
import { duration, since } from "../../dagmaster/web/static/times.js";

test("durations are written as the server writes them", () => {
  const cases = [
    [null, "–"], [0, "0 ms"], [0.85, "850 ms"], [1, "1 s"], [4.2, "4.2 s"], [59.96, "1 min"], [60, "1 min"], [200, "3 min 20 s"], [7500, "2 h 5 min"],
    [273_600, "3 d 4 h"], [86_400, "1 d"],
  ];
  for (const [seconds, text] of cases) assert.equal(duration(seconds), text);
});

test("moments are relative to now, before and after", () => {
  const now = Date.parse("2026-03-01T12:00:00Z");
  const cases = [[-1, "now"], [-5, "5 s ago"], [-90, "1 min ago"], [-7200, "2 h ago"], [-200_000, "2 d ago"], [300, "in 5 min"]];
  for (const [seconds, text] of cases) assert.equal(since(now + seconds * 1000, now), text);
});
