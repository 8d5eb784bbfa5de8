// Shapes on a map of coastlines, in plate carrée: a box stays a box.
import { decimalsOf, degrees, gridStep, nearestTurn, turned, turnsTo } from "./map_geometry.js";

const CONTEXT = 0.5; // of the shapes' size, on each side
const LEAST_SPAN = 6; // degrees that are shown at least, so that something else is on the map too
const SMALL = 7; // pixels; what is smaller gets a dot
const still = matchMedia("(prefers-reduced-motion: reduce)");
let world = null;

function land() {
  world ??= fetch(new URL("vendor/land-110m.json", import.meta.url))
    .then((answer) => answer.json())
    .then((topology) => topojson.feature(topology, topology.objects.land));
  return world;
}

class Panel {
  constructor(section) {
    this.section = section;
    this.canvas = section.querySelector(".map-canvas");
    this.svg = d3.select(this.canvas).append("svg").attr("aria-hidden", "true");
    this.svg.append("rect").attr("class", "map-sea");
    this.moved = this.svg.append("g");
    this.land = this.moved.append("path").attr("class", "map-land");
    this.grid = this.svg.append("g").attr("class", "map-grid");
    this.drawn = this.moved.append("g");
    this.dots = this.svg.append("g");
    this.inset = this.svg.append("g").attr("class", "map-inset");
    this.zoom = d3.zoom().filter(mayMove).on("zoom", (event) => this.place(event.transform));
    this.svg.call(this.zoom).on("dblclick.zoom", null);
    this.listen();
    new ResizeObserver(() => this.size()).observe(this.canvas);
  }

  listen() {
    this.section.addEventListener("click", (event) => {
      const button = event.target.closest("[data-map-zoom], [data-map-fit], [data-map-shape]");
      if (!button) return;
      if (button.dataset.mapZoom) this.zoom.scaleBy(this.smooth(), Number(button.dataset.mapZoom));
      else if (button.dataset.mapShape) this.choose(Number(button.dataset.mapShape));
      else this.fit(this.view);
    });
    this.canvas.addEventListener("keydown", (event) => this.onKey(event));
  }

  onKey(event) {
    const way = { ArrowLeft: [80, 0], ArrowRight: [-80, 0], ArrowUp: [0, 80], ArrowDown: [0, -80] }[event.key];
    const k = d3.zoomTransform(this.svg.node()).k;
    if (way) this.zoom.translateBy(this.smooth(), way[0] / k, way[1] / k);
    else if (event.key === "+" || event.key === "=") this.zoom.scaleBy(this.smooth(), 2);
    else if (event.key === "-") this.zoom.scaleBy(this.smooth(), 0.5);
    else if (event.key === "0") this.fit(this.view);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  smooth() {
    return still.matches ? this.svg : this.svg.transition().duration(180);
  }

  // The data may have changed since.
  async show() {
    const text = this.section.querySelector("script[type='application/json']").textContent;
    if (text === this.text) return;
    this.text = text;
    const { shapes, view } = JSON.parse(text);
    const isSameView = String(view) === String(this.view);
    this.shapes = shapes;
    this.view = view;
    this.middle = (view[0] + view[2]) / 2;
    this.earth = await land();
    if (isSameView && this.width) {
      // Only states have changed: the view stays where it is.
      this.draw();
      this.place(d3.zoomTransform(this.svg.node()));
      return;
    }
    this.width = 0;
    this.size();
  }

  size() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !this.earth || width === this.width) return;
    this.width = width;
    this.height = height;
    this.degree = Math.min(width / 360, height / 180);
    this.svg.attr("viewBox", `0 0 ${width} ${height}`);
    this.svg.select(".map-sea").attr("width", width).attr("height", height);
    this.zoom.extent([[0, 0], [width, height]]).scaleExtent([0.9, 40000]);
    this.draw();
    this.fit(this.view, false);
  }

  x(longitude) {
    return this.width / 2 + (longitude - this.middle) * this.degree;
  }

  y(latitude) {
    return this.height / 2 - latitude * this.degree;
  }

  draw() {
    const projection = d3.geoEquirectangular().rotate([-this.middle, 0]).precision(0)
      .scale((this.degree * 180) / Math.PI).translate([this.width / 2, this.height / 2]);
    this.land.attr("d", d3.geoPath(projection)(this.earth));
    this.drawn.selectAll("path").data(this.shapes.filter((one) => !one.is_points)).join("path")
      .attr("class", (one) => `map-shape${one.is_area ? " is-area" : ""}${stateClass(one)}`)
      .attr("d", (one) => this.outline(one)).attr("fill-rule", "evenodd")
      .on("click", (_, one) => this.open(one))
      .selectAll("title").data((one) => [one]).join("title").text(inWords);
    this.drawInset();
  }

  // The page of the tile's node.
  open(shape) {
    if (shape.state) location.assign(this.section.dataset.mapNodes + encodeURIComponent(shape.path));
  }

  outline(shape) {
    return shape.lines.map((line) => {
      const shift = this.shift(shape) + turnsTo(shape.west, d3.min(line, ([x]) => x));
      return `M${line.map(([x, y]) => `${this.x(x + shift)},${this.y(y)}`).join("L")}`;
    }).join("");
  }

  // Shifted around the earth, close to the middle of the map.
  shift(shape) {
    return nearestTurn(this.middle, (shape.west + shape.east) / 2);
  }

  drawInset() {
    const width = 108;
    const projection = d3.geoEquirectangular().precision(0).scale(width / (2 * Math.PI)).translate([width / 2, width / 4]);
    this.inset.attr("transform", `translate(${this.width - width - 10}, ${this.height - width / 2 - 10})`);
    this.inset.selectAll("*").remove();
    this.inset.append("rect").attr("class", "map-inset-sea").attr("width", width).attr("height", width / 2).attr("rx", 3);
    this.inset.append("path").attr("class", "map-land").attr("d", d3.geoPath(projection)(this.earth));
    this.inset.append("g").attr("class", "map-inset-view");
  }

  fit([west, south, east, north], isSmooth = true, least = LEAST_SPAN) {
    const span = (size) => Math.max(size * (1 + 2 * CONTEXT), least);
    const k = Math.min(this.width / span(east - west), this.height / span(north - south)) / this.degree;
    const middle = (west + east) / 2;
    const x = this.x(middle + nearestTurn(this.middle, middle));
    const transform = d3.zoomIdentity.translate(this.width / 2, this.height / 2).scale(Math.max(1, k))
      .translate(-x, k > 1 ? -this.y((south + north) / 2) : -this.height / 2);
    this.zoom.transform(isSmooth ? this.smooth() : this.svg, transform);
  }

  choose(number) {
    const shape = this.shapes[number];
    this.chosen = shape;
    this.fit([shape.west, shape.south, shape.east, shape.north], true, 0.01);
  }

  place(transform) {
    this.moved.attr("transform", transform);
    this.drawn.selectAll("path").classed("is-chosen", (one) => one === this.chosen);
    this.placeDots(transform);
    this.placeGrid(transform);
    this.placeInset(transform);
  }

  placeDots(transform) {
    const isSmall = (one) => Math.max(one.east - one.west, one.north - one.south) * this.degree * transform.k < SMALL;
    const points = this.shapes.flatMap((one) => {
      const shift = this.shift(one);
      if (one.is_points) return one.lines.map(([[x, y]]) => ({ one, x: x + shift + turnsTo(one.west, x), y }));
      return isSmall(one) ? [{ one, x: (one.west + one.east) / 2 + shift, y: (one.south + one.north) / 2 }] : [];
    });
    this.dots.selectAll("circle").data(points).join("circle").attr("r", 5)
      .attr("class", ({ one }) => `map-dot${one === this.chosen ? " is-chosen" : ""}${stateClass(one)}`)
      .on("click", (_, { one }) => this.open(one))
      .attr("cx", ({ x }) => transform.applyX(this.x(x))).attr("cy", ({ y }) => transform.applyY(this.y(y)))
      .selectAll("title").data(({ one }) => [one]).join("title").text(inWords);
  }

  seen(transform) {
    const longitude = (x) => this.middle + (transform.invertX(x) - this.width / 2) / this.degree;
    const latitude = (y) => (this.height / 2 - transform.invertY(y)) / this.degree;
    return { west: longitude(0), east: longitude(this.width), south: latitude(this.height), north: latitude(0) };
  }

  placeGrid(transform) {
    const { west, east, south, north } = this.seen(transform);
    const step = gridStep(east - west, this.width / 90);
    const decimals = decimalsOf(step);
    const between = (from, to) => d3.range(Math.ceil(from / step), Math.floor(to / step) + 1).map((place) => place * step);
    const lines = [
      ...between(Math.max(west, this.middle - 180), Math.min(east, this.middle + 180)).map((at) => {
        const x = transform.applyX(this.x(at));
        const [y1, y2] = [transform.applyY(this.y(90)), transform.applyY(this.y(-90))];
        return { x1: x, x2: x, y1: Math.max(0, y1), y2: Math.min(this.height, y2), tx: x + 4, ty: 13, text: degrees(turned(at), decimals, "E", "W") };
      }),
      ...between(Math.max(south, -90), Math.min(north, 90)).map((at) => {
        const y = transform.applyY(this.y(at));
        return { x1: 0, x2: this.width, y1: y, y2: y, tx: 4, ty: y - 4, text: degrees(at, decimals, "N", "S") };
      }),
    ];
    this.grid.selectAll("line").data(lines).join("line")
      .attr("x1", (d) => d.x1).attr("x2", (d) => d.x2).attr("y1", (d) => d.y1).attr("y2", (d) => d.y2);
    this.grid.selectAll("text").data(lines).join("text").attr("x", (d) => d.tx).attr("y", (d) => d.ty).text((d) => d.text);
  }

  placeInset(transform) {
    const { west, east, south, north } = this.seen(transform);
    const isNear = east - west < 200;
    this.inset.attr("display", isNear && this.width > 420 ? null : "none");
    if (!isNear) return;
    const scale = 108 / 360;
    const width = Math.max((east - west) * scale, 4);
    const height = Math.max((Math.min(north, 90) - Math.max(south, -90)) * scale, 4);
    const x = (turned((west + east) / 2) + 180) * scale - width / 2;
    const y = (90 - Math.max(-90, Math.min(90, (south + north) / 2))) * scale - height / 2;
    this.inset.select(".map-inset-view").selectAll("rect").data([x]).join("rect")
      .attr("x", Math.max(0, Math.min(108 - width, x))).attr("y", Math.max(0, Math.min(54 - height, y))).attr("width", width).attr("height", height);
  }
}

const stateClass = ({ state }) => (state ? ` map-tile is-${state}` : "");
const inWords = ({ path, state }) => (state ? `${path}: ${state}` : path);

// The page can still be scrolled: the wheel zooms only with Ctrl or if the map has the focus, two fingers move the map.
function mayMove(event) {
  if (event.type === "wheel") return event.ctrlKey || event.metaKey || this.parentNode === document.activeElement;
  if (event.type.startsWith("touch")) return event.touches.length > 1;
  return !event.button;
}

const panels = new WeakMap();

function drawMaps() {
  for (const section of document.querySelectorAll("[data-map]")) {
    const canvas = section.querySelector(".map-canvas");
    if (!panels.has(canvas)) panels.set(canvas, new Panel(section));
    panels.get(canvas).show();
  }
}

drawMaps();
document.addEventListener("dm:refreshed", drawMaps);
