import assert from "node:assert/strict";
import { test } from "node:test";
import { bandRows, boundsOf, featureLegend, numericFields, paintBy, shownNumber, shownPoint, tileQuery } from "../../dagmaster/web/static/asset_map_values.js";

const version = { query: "version=1&preview=true" };

test("tiles of a gradient are asked for with its colours and range", () => {
  const legend = { kind: "gradient", entries: [{ value: 2200 }, { value: 3000 }, { value: 4300.5 }] };
  assert.equal(tileQuery(version, legend, "terrain"), "version=1&preview=true&colormap_name=terrain&rescale=2200%2C4300.5");
  assert.equal(tileQuery(version, legend, ""), "version=1&preview=true&rescale=2200%2C4300.5");
});

test("pictures are drawn as they are", () => {
  assert.equal(tileQuery(version, { kind: "picture", entries: [] }, "terrain"), "version=1&preview=true");
});

test("values are shown with their bands", () => {
  const answer = { band_names: ["b1", "b2"], band_descriptions: ["elevation", "b2"], values: [3651.123456, null] };
  assert.deepEqual(bandRows(answer), [["b1 (elevation)", "3,651.12"], ["b2", "no data"]]);
  assert.equal(shownNumber(0.00012345678), "0.000123457");
});

test("a point beyond the date line is named by its own longitude", () => {
  assert.equal(shownPoint({ lng: 190, lat: -16.5 }), "16.5000° S, 170.0000° W");
});

test("the map shows all chosen versions, across the date line too", () => {
  assert.deepEqual(boundsOf([{ bbox: [1, 2, 3, 4] }, { bbox: [0, 3, 2, 9] }]), [[0, 2], [3, 9]]);
  assert.deepEqual(boundsOf([{ bbox: [170, -20, -170, -10] }]), [[170, -20], [190, -10]]);
  assert.equal(boundsOf([{ bbox: null }, undefined]), null);
});

test("features are coloured by a number that differs among them", () => {
  assert.deepEqual(numericFields([{ fields: { name: "String", mean: "Number" } }, { fields: { mean: "Number" } }, {}]), ["mean"]);
  const legend = featureLegend("mean", [3, undefined, 7, "x", 5], ["#fff", "#000"]);
  assert.deepEqual(legend.entries, [{ value: 3, colour: "#fff" }, { value: 7, colour: "#000" }]);
  assert.deepEqual(paintBy("mean", legend), ["interpolate", ["linear"], ["to-number", ["get", "mean"], 3], 3, "#fff", 7, "#000"]);
  assert.equal(featureLegend("mean", [4, 4], ["#fff", "#000"]), null);
  assert.equal(featureLegend("mean", [], ["#fff", "#000"]), null);
});
