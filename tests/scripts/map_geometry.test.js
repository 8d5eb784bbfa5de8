import assert from "node:assert/strict";
import { test } from "node:test";
import { decimalsOf, degrees, gridStep, nearestTurn, turned, turnsTo } from "../../dagmaster/web/static/map_geometry.js";

test("longitudes stay between -180 and 180", () => {
  assert.deepEqual([0, 180, 190, -190, 540, 725].map(turned), [0, 180, -170, 170, -180, 5]);
});

test("a part beyond the date line moves next to its shape", () => {
  assert.equal(-175 + turnsTo(170, -175), 185);
  assert.equal(175 + turnsTo(170, 175), 175);
});

test("a shape is drawn on the side of the map that is nearer", () => {
  assert.equal(-170 + nearestTurn(180, -170), 190);
  assert.equal(10 + nearestTurn(0, 10), 10);
});

test("degrees name their hemisphere", () => {
  assert.deepEqual([degrees(12.5, 1, "E", "W"), degrees(-3, 0, "E", "W"), degrees(0.001, 1, "N", "S")], ["12.5° E", "3° W", "0°"]);
});

test("the grid has round steps that are not too dense", () => {
  assert.equal(gridStep(360, 8), 60);
  assert.equal(gridStep(3, 10), 0.5);
  assert.deepEqual([60, 0.5, 0.02].map(decimalsOf), [0, 1, 2]);
});
