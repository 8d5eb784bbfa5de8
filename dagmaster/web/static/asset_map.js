// The map of an asset: tiles of its versions, a swipe comparison of two, and the values at a point.
import { Map as GlMap, Marker, NavigationControl, ScaleControl } from "./vendor/maplibre-gl.mjs";
import { element } from "./elements.js";
import { bandRows, boundsOf, featureLegend, numericFields, paintBy, shownNumber, shownPoint, tileQuery } from "./asset_map_values.js";

const NAMES = ["version", "compare"];
// From low to high; both contrast with the land in both themes.
const SCALE = ["#fde725", "#440154"];
const WORLD = [[-170, -60], [170, 75]];

async function ask(path) {
  const answer = await fetch(path, { headers: { Accept: "application/json" } });
  const body = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(body.detail ?? `status ${answer.status}`), { status: answer.status });
  return body;
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

class AssetMap {
  constructor(section) {
    this.section = section;
    this.form = section.querySelector("form");
    Object.assign(this, JSON.parse(section.querySelector("[data-map-settings]").textContent));
    this.base = `/tiles/${encodeURIComponent(this.assetId)}`;
    this.maps = {};
    this.opening = {};
    this.turn = 0;
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("change", (event) => {
      if (event.target.name === "attribute") this.colourFeatures();
      else if (event.target.name !== "opacity") this.show();
    });
    this.form.opacity.addEventListener("input", () => this.setOpacity());
    this.swipe = this.find("[data-swipe] input");
    this.swipe.addEventListener("input", () => this.placeLine());
    document.addEventListener("dm:theme", () => this.paintBase());
  }

  find(selector) {
    return this.section.querySelector(selector);
  }

  chosen(name) {
    const value = this.form[name]?.value ?? "";
    return value === "" ? null : this.versions.find((version) => version.ordinal === Number(value));
  }

  async start() {
    const topology = await (await fetch(this.land)).json();
    this.earth = topojson.feature(topology, topology.objects.land);
    await this.show();
  }

  // If the user chooses again during loading, the last choice wins.
  async show() {
    const turn = ++this.turn;
    this.section.dataset.state = "loading";
    this.complain("");
    this.remember();
    try {
      const drawings = await this.describe();
      if (turn !== this.turn) return;
      const legends = Object.values(drawings).filter(Boolean).map(({ legend }) => legend);
      this.drawLegend(legends.find(({ kind }) => kind === "gradient") ?? legends[0]);
      await Promise.all(NAMES.map((name) => this.draw(name, drawings[name], turn)));
      if (turn !== this.turn) return;
      this.colourFeatures();
      if (this.point) await this.askPoint(this.point);
      if (turn === this.turn) this.section.dataset.state = "ready";
    } catch (error) {
      if (turn !== this.turn) return;
      this.complain(error.message);
      this.section.dataset.state = "failed";
    }
  }

  remember() {
    const query = new URLSearchParams();
    for (const name of NAMES) if (this.chosen(name)) query.set(name, this.chosen(name).ordinal);
    if (this.form.attribute.value) query.set("attribute", this.form.attribute.value);
    history.replaceState(null, "", `?${query}`);
  }

  complain(text) {
    const problem = this.find("[data-problem]");
    problem.hidden = !text;
    problem.querySelector("span").textContent = text;
  }

  async describe() {
    const isRaster = this.dataType === "raster";
    const drawings = Object.fromEntries(await Promise.all(NAMES.map(async (name) => {
      const version = this.chosen(name);
      if (!version) return [name, null];
      const [tilejson, legend] = await Promise.all([
        ask(`${this.base}/${isRaster ? "WebMercatorQuad" : "vector"}/tilejson.json?${version.query}`),
        isRaster ? ask(`${this.base}/legend?${version.query}`) : { kind: "features" },
      ]);
      return [name, { version, tilejson, legend }];
    })));
    await this.colourAlike(Object.values(drawings).filter(Boolean));
    return drawings;
  }

  async colourAlike(drawings) {
    const gradients = drawings.filter(({ legend }) => legend.kind === "gradient");
    this.find("[data-colours]").hidden = !gradients.length;
    for (const drawing of drawings) {
      const legend = gradients.includes(drawing) ? gradients[0].legend : drawing.legend;
      drawing.query = tileQuery(drawing.version, legend, this.form.colours.value);
    }
    this.offerAttributes(drawings[0].tilejson.vector_layers ?? []);
    if (gradients.length) gradients[0].legend = await ask(`${this.base}/legend?${gradients[0].query}`);
  }

  async draw(name, drawing, turn) {
    const canvas = this.find(`[data-canvas="${name}"]`);
    canvas.hidden = !drawing;
    if (name === "compare") this.placeLine();
    if (!drawing) return;
    this.opening[name] ??= this.open(name, canvas);
    const map = await this.opening[name];
    this.maps[name] = map;
    if (turn !== this.turn) return;
    map.resize();
    this.removeData(map);
    if (this.dataType === "raster") this.addRaster(map, drawing);
    else this.addVector(map, drawing);
    this.setOpacity();
    await map.once("idle");
  }

  async open(name, canvas) {
    const other = this.maps.version;
    const map = new GlMap({
      container: canvas,
      style: this.style(),
      ...(other ? { center: other.getCenter(), zoom: other.getZoom() } : { bounds: boundsOf(this.shown()) ?? WORLD }),
      fitBoundsOptions: { padding: 40, maxZoom: 16 },
      attributionControl: false,
      dragRotate: false,
      maxPitch: 0,
      fadeDuration: 0,
    });
    map.touchZoomRotate.disableRotation();
    map.addControl(new NavigationControl({ showCompass: false }), "top-right");
    if (name === "version") map.addControl(new ScaleControl(), "bottom-right");
    map.on("click", (event) => this.askPoint(event.lngLat));
    map.on("error", ({ error }) => error?.status !== 404 && this.complain(`Cannot draw the map: ${error?.message}`));
    map.getCanvas().addEventListener("keydown", (event) => event.key === "Enter" && this.askPoint(map.getCenter()));
    map.on("move", (event) => event.isFollowing || this.follow(name));
    await map.once("load");
    return map;
  }

  shown() {
    return NAMES.map((name) => this.chosen(name)).filter(Boolean);
  }

  follow(name) {
    const leader = this.maps[name];
    for (const [other, map] of Object.entries(this.maps)) {
      if (other !== name) map.jumpTo({ center: leader.getCenter(), zoom: leader.getZoom() }, { isFollowing: true });
    }
  }

  style() {
    return {
      version: 8,
      sources: { land: { type: "geojson", data: this.earth } },
      layers: [
        { id: "sea", type: "background", paint: { "background-color": colour("--sunken") } },
        { id: "land", type: "fill", source: "land", paint: { "fill-color": colour("--line") } },
        { id: "coast", type: "line", source: "land", paint: { "line-color": colour("--pending-fill"), "line-width": 0.8 } },
      ],
    };
  }

  paintBase() {
    for (const map of Object.values(this.maps)) {
      for (const { id, paint } of this.style().layers) {
        for (const [name, value] of Object.entries(paint)) map.setPaintProperty(id, name, value);
      }
    }
  }

  removeData(map) {
    for (const { id } of this.dataLayers(map)) map.removeLayer(id);
    if (map.getSource("data")) map.removeSource("data");
  }

  tiles(path, query) {
    return [`${location.origin}${this.base}/${path}?${query}`];
  }

  addRaster(map, { tilejson, query }) {
    const tiles = this.tiles("tiles/WebMercatorQuad/{z}/{x}/{y}.png", query);
    map.addSource("data", { type: "raster", tiles, tileSize: 256, bounds: tilejson.bounds, maxzoom: tilejson.maxzoom });
    map.addLayer({ id: "data", type: "raster", source: "data", paint: { "raster-fade-duration": 0, "raster-resampling": "nearest" } });
  }

  addVector(map, { tilejson, query }) {
    const { bounds, minzoom, maxzoom } = tilejson;
    map.addSource("data", { type: "vector", tiles: this.tiles("vector/{z}/{x}/{y}.mvt", query), bounds, minzoom, maxzoom });
    const accent = colour("--accent");
    for (const { id } of tilejson.vector_layers) {
      const layer = (type, kinds, paint) => map.addLayer({
        id: `${id}-${type}`, type, source: "data", "source-layer": id, paint,
        filter: ["in", ["geometry-type"], ["literal", kinds.flatMap((kind) => [kind, `Multi${kind}`])]],
      });
      layer("fill", ["Polygon"], { "fill-color": accent });
      layer("line", ["Polygon", "LineString"], { "line-color": accent, "line-width": 1.5 });
      layer("circle", ["Point"], { "circle-color": accent, "circle-radius": 4 });
    }
  }

  offerAttributes(layers) {
    const { attribute } = this.form;
    const names = numericFields(layers);
    const [nothing] = attribute.options;
    const chosen = names.includes(attribute.value) ? attribute.value : "";
    attribute.replaceChildren(nothing, ...names.map((name) => new Option(name, name)));
    attribute.value = chosen;
    this.find("[data-attribute]").hidden = !names.length;
  }

  // From the features on the map: the archive does not contain the range of an attribute.
  colourFeatures() {
    if (this.dataType === "raster") return;
    const name = this.form.attribute.value;
    const drawn = Object.values(this.maps).flatMap((map) => this.dataLayers(map).map((layer) => [map, layer]));
    const values = drawn.flatMap(([map, layer]) =>
      map.querySourceFeatures("data", { sourceLayer: layer["source-layer"] }).map(({ properties }) => properties[name]));
    const legend = name ? featureLegend(name, values, SCALE) : null;
    for (const [map, { id, type }] of drawn) {
      map.setPaintProperty(id, `${type}-color`, legend && type !== "line" ? paintBy(name, legend) : colour("--accent"));
    }
    this.isColoured = Boolean(legend);
    this.remember();
    this.drawLegend(legend ?? { kind: "features" });
    this.setOpacity();
  }

  dataLayers(map) {
    return map.getStyle().layers.filter(({ source }) => source === "data");
  }

  setOpacity() {
    const share = Number(this.form.opacity.value) / 100;
    for (const map of Object.values(this.maps)) {
      for (const { id, type } of this.dataLayers(map)) {
        map.setPaintProperty(id, `${type}-opacity`, type === "fill" && !this.isColoured ? share * 0.3 : share);
      }
    }
  }

  placeLine() {
    const isComparing = Boolean(this.chosen("compare"));
    const line = this.find("[data-line]");
    this.find("[data-swipe]").hidden = line.hidden = !isComparing;
    line.style.left = `${this.swipe.value}%`;
    this.find('[data-canvas="compare"]').style.clipPath = `inset(0 0 0 ${this.swipe.value}%)`;
  }

  drawLegend({ kind, title, bands, entries }) {
    const legend = this.find("[data-legend]");
    legend.hidden = kind !== "gradient" && kind !== "classes";
    if (legend.hidden) return;
    const painted = entries.map(({ value, colour: paint }) => {
      const swatch = Object.assign(element("i", ""), { title: shownNumber(value) });
      swatch.style.background = paint;
      return swatch;
    });
    const isGradient = kind === "gradient";
    this.find("[data-legend-title]").textContent = title ?? `Band ${bands[0]}`;
    this.find("[data-legend-colours]").hidden = !isGradient;
    this.find("[data-legend-classes]").hidden = isGradient;
    this.find("[data-legend-low]").textContent = isGradient ? shownNumber(entries[0].value) : "";
    this.find("[data-legend-high]").textContent = isGradient ? shownNumber(entries.at(-1).value) : "";
    const bar = this.find("[data-legend-colours]");
    bar.style.background = isGradient ? `linear-gradient(to right, ${entries.map((entry) => entry.colour).join(", ")})` : "";
    if (isGradient) bar.replaceChildren(...(entries.length > 2 ? painted : []));
    else this.find("[data-legend-classes]").replaceChildren(...painted.map((swatch) => element("li", "", swatch, swatch.title)));
  }

  async askPoint(point) {
    this.point = point;
    for (const [name, map] of Object.entries(this.maps)) {
      this[`${name}Marker`] ??= new Marker({ color: colour("--failed-fill") });
      this[`${name}Marker`].setLngLat(point).addTo(map);
    }
    const groups = await Promise.all(NAMES.filter((name) => this.chosen(name)).map(async (name) => {
      const version = this.chosen(name);
      return { title: version.title, rows: await this.valuesAt(name, version, point) };
    }));
    this.tell(point, groups);
  }

  async valuesAt(name, version, point) {
    if (this.dataType !== "raster") return this.featuresAt(this.maps[name], point);
    try {
      const { lng, lat } = point.wrap();
      return bandRows(await ask(`${this.base}/point/${lng},${lat}?${version.query}`));
    } catch (error) {
      return [[error.status === 404 ? "no data here" : error.message, ""]];
    }
  }

  featuresAt(map, point) {
    const layers = this.dataLayers(map).map(({ id }) => id);
    const [feature] = map.queryRenderedFeatures(map.project(point), { layers });
    return feature ? Object.entries(feature.properties).map(([name, value]) => [name, String(value)]) : [["no feature here", ""]];
  }

  tell(point, groups) {
    const row = (kind, cells) => element("tr", "", ...cells.map((text) => element(kind, "", text)));
    const table = element("table", "", ...groups.map(({ title, rows }) =>
      element("tbody", "", row("th", [title, ""]), ...rows.map((cells) => row("td", cells)))));
    this.find("[data-point]").replaceChildren(element("p", "muted", `At ${shownPoint(point)}`), table);
  }
}

for (const section of document.querySelectorAll("[data-asset-map]")) new AssetMap(section).start();
