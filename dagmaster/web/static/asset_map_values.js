// Pure functions of the asset map: request parameters, point values, bounds and legends.
import { degrees, turned } from "./map_geometry.js";

// The parameters of a version's tiles. Two versions share one range, so that they can be compared.
export function tileQuery(version, legend, colours) {
  const query = new URLSearchParams(version.query);
  if (legend.kind === "gradient") {
    if (colours) query.set("colormap_name", colours);
    query.set("rescale", `${legend.entries[0].value},${legend.entries.at(-1).value}`);
  }
  return query.toString();
}

export function shownNumber(value) {
  if (value === null || Number.isNaN(value)) return "no data";
  return value.toLocaleString("en", { maximumSignificantDigits: 6 });
}

export function shownPoint({ lng, lat }) {
  return `${degrees(lat, 4, "N", "S")}, ${degrees(turned(lng), 4, "E", "W")}`;
}

// One row of cells for each band; null is a pixel without data.
export function bandRows(answer) {
  return answer.band_names.map((name, place) => {
    const description = answer.band_descriptions?.[place];
    return [description && description !== name ? `${name} (${description})` : name, shownNumber(answer.values[place])];
  });
}

// The bounding box of the versions; null if none has one.
export function boundsOf(versions) {
  const boxes = versions.map((version) => version?.bbox).filter(Boolean);
  if (!boxes.length) return null;
  const east = (box) => (box[2] < box[0] ? box[2] + 360 : box[2]);
  return [
    [Math.min(...boxes.map((box) => box[0])), Math.min(...boxes.map((box) => box[1]))],
    [Math.max(...boxes.map(east)), Math.max(...boxes.map((box) => box[3]))],
  ];
}

// The attributes of a layer that can be drawn as colours.
export function numericFields(layers) {
  return [...new Set(layers.flatMap(({ fields }) => Object.keys(fields ?? {}).filter((name) => fields[name] === "Number")))];
}

// A legend between two colours for the values of features; null if all are equal or none is a number.
export function featureLegend(name, values, [low, high]) {
  const numbers = values.filter((value) => Number.isFinite(value));
  // No spread: there may be more features than a call accepts arguments.
  const least = numbers.reduce((one, other) => Math.min(one, other), Infinity);
  const most = numbers.reduce((one, other) => Math.max(one, other), -Infinity);
  if (!(least < most)) return null;
  return { kind: "gradient", title: name, entries: [{ value: least, colour: low }, { value: most, colour: high }] };
}

// The MapLibre paint expression for such a legend.
export function paintBy(name, { entries }) {
  return ["interpolate", ["linear"], ["to-number", ["get", name], entries[0].value], ...entries.flatMap(({ value, colour }) => [value, colour])];
}
