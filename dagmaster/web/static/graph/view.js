// One graph on a page: drawing, selection, zoom and pan.
import { Drawing } from "./drawing.js";
import { next } from "./keys.js";
import { HEIGHT, WIDTH, layOut } from "./layout.js";
import { Minimap } from "./minimap.js";
import { Model } from "./model.js";
import { Panel } from "./panel.js";
import { outcomeAfter, displayState } from "./states.js";

const ZOOM = [0.02, 2.5];
const READABLE = 0.46;
const LEAST_HEIGHT = 280;
const BARS = 110; // what the frame needs besides the nodes
const CHOSEN = "#node="; // in the URL, so that it can be shared
const URGENT = ["failed", "waiting", "running"];
const isCalm = matchMedia("(prefers-reduced-motion: reduce)");

export class View {
  constructor(root) {
    this.root = root;
    this.frame = root.querySelector(".graph-view");
    this.drawing = new Drawing(root);
    this.transform = d3.zoomIdentity;
    this.size = { width: 0, height: 0 };
    this.panel = new Panel(root, { onClose: (id) => this.#unselect(id) });
    this.minimap = new Minimap(root.querySelector(".graph-map"), (x, y) => this.centre(x, y, false));
    this.#installZoom();
    this.#installClicks();
    this.#installKeys();
    new ResizeObserver(() => this.#measure()).observe(this.frame);
    document.addEventListener("dm:theme", () => this.redraw(true));
    setInterval(() => this.#tick(), 1000);
  }

  // Draw or redraw: nodes keep their positions as long as the set of nodes is the same.
  show(graph) {
    const model = new Model(graph);
    const known = this.model && same(this.model, model);
    this.#measure();
    this.model = model;
    if (!known) {
      this.drawing.clear();
      this.layout = layOut(model);
      this.#suit();
      this.active = model.nodes.has(this.active) ? this.active : model.order[0];
      this.#look();
    }
    if (this.isCritical) this.critical = model.criticalPath();
    if (this.marked) this.highlight(this.marked.of);
    this.root.querySelector(".graph-skeleton")?.remove();
    this.root.dataset.drawn = "";
    this.redraw(true);
  }

  // Replaced, not mutated: a card is redrawn if its node is another object.
  update(id, changed) {
    const node = this.model?.nodes.get(id);
    if (!node) return;
    const outcome = changed.status ? outcomeAfter(node, changed.status) : node.outcome;
    this.model.nodes.set(id, { ...node, outcome, ...changed });
    this.redraw(true);
  }

  redraw(changed = false) {
    this.changed ||= changed;
    this.waiting ??= requestAnimationFrame(() => {
      this.waiting = null;
      if (!this.model?.nodes.size || !this.size.width) return;
      this.drawing.draw(this);
      this.minimap.draw(this, this.changed);
      this.changed = false;
      this.root.classList.toggle("is-far", this.drawing.isFar);
    });
  }

  highlight(id) {
    this.marked = id && this.model?.nodes.has(id) ? { ...this.model.pathOf(id), of: id } : null;
    this.root.classList.toggle("has-path", Boolean(this.marked));
    this.redraw();
  }

  showCritical(wanted) {
    this.isCritical = wanted;
    this.critical = wanted ? this.model.criticalPath() : null;
    this.redraw();
  }

  select(id, part) {
    this.selected = id;
    this.active = id;
    this.highlight(id);
    this.panel.open(this.model.nodes.get(id), part);
    history.replaceState(history.state, "", `${CHOSEN}${encodeURIComponent(id)}`);
    this.#measure(); // The panel has taken room.
    this.reveal(id);
  }

  // The node in the URL.
  selectNamed() {
    const id = location.hash.startsWith(CHOSEN) ? decodeURIComponent(location.hash.slice(CHOSEN.length)) : null;
    if (this.model.nodes.has(id)) this.select(id, "panel");
  }

  #unselect(id) {
    this.selected = null;
    history.replaceState(history.state, "", location.pathname + location.search);
    this.highlight(null);
    this.focus(id);
  }

  focus(id) {
    this.active = id;
    this.reveal(id);
    this.drawing.draw(this);
    this.drawing.made.get(id)?.firstChild.focus({ preventScroll: true });
  }

  // Scroll into view, unless it is visible.
  reveal(id) {
    const { x, y } = this.layout.places.get(id);
    const [left, top] = this.transform.apply([x, y]);
    const [right, bottom] = this.transform.apply([x + WIDTH, y + HEIGHT]);
    const isSeen = left >= 0 && top >= 0 && right <= this.size.width && bottom <= this.size.height;
    if (isSeen && !this.drawing.isFar) return;
    this.centre(x + WIDTH / 2, y + HEIGHT / 2, false, this.drawing.isFar ? 0.9 : this.transform.k);
  }

  centre(x, y, smooth = true, k = this.transform.k) {
    const { width, height } = this.size;
    const transform = d3.zoomIdentity.translate(width / 2 - x * k, height / 2 - y * k).scale(k);
    this.#selection(smooth).call(this.zoom.transform, transform);
  }

  fit(smooth = true) {
    this.centre(this.layout.width / 2, this.layout.height / 2, smooth, this.#fitting());
  }

  zoomBy(factor) {
    this.#selection(true).call(this.zoom.scaleBy, factor);
  }

  // No higher than the graph needs, so that the content below stays visible.
  #suit() {
    if (this.root.style.height) return;
    const most = Math.min(640, innerHeight * 0.56);
    const k = Math.min(1, Math.max(READABLE, (this.size.width - 40) / this.layout.width));
    this.root.style.height = `${Math.max(LEAST_HEIGHT, Math.min(most, this.layout.height * k + BARS))}px`;
    this.#measure();
  }

  #fitting() {
    const { width, height } = this.layout;
    return Math.max(ZOOM[0], Math.min(1, (this.size.width - 40) / width, (this.size.height - 40) / height));
  }

  // Initially all nodes, if they are readable (or the graph is too large anyway); otherwise the active part.
  #look() {
    if (!this.size.width || !this.model.nodes.size) return;
    const fitting = this.#fitting();
    if (fitting >= READABLE || this.model.nodes.size > 300) return this.fit(false);
    const urgent = URGENT.map((name) => this.model.order.find((id) => displayState(this.model.nodes.get(id)).name === name)).find(Boolean);
    const { x, y } = this.layout.places.get(urgent ?? this.model.order[0]);
    const k = 0.8;
    const left = Math.min(Math.max(x + WIDTH / 2 - this.size.width / 2 / k, -20), Math.max(-20, this.layout.width + 20 - this.size.width / k));
    this.centre(left + this.size.width / 2 / k, y + HEIGHT / 2, false, k);
  }

  #selection(smooth) {
    const frame = d3.select(this.frame);
    return smooth && !isCalm.matches ? frame.transition().duration(220) : frame;
  }

  #measure() {
    const { clientWidth: width, clientHeight: height } = this.frame;
    const wasUnseen = !this.size.width && width;
    this.size = { width, height };
    if (wasUnseen && this.model) this.#look();
    this.redraw();
  }

  // The wheel alone scrolls the page.
  #installZoom() {
    this.zoom = d3.zoom().scaleExtent(ZOOM)
      .filter((event) => (event.type !== "wheel" || event.ctrlKey || event.metaKey || this.root.classList.contains("is-wide"))
        && !event.button && !event.target.closest(".graph-map, .gnode-items"))
      .on("zoom", (event) => {
        this.transform = event.transform;
        this.redraw();
      });
    d3.select(this.frame).call(this.zoom).on("dblclick.zoom", null);
  }

  #installClicks() {
    const nodeOf = (event) => event.target.closest(".gnode")?.dataset.node ?? this.#under(event);
    this.frame.addEventListener("click", (event) => {
      const id = nodeOf(event);
      if (id) this.select(id, event.target.closest(".gnode-items") ? "items" : "panel");
    });
    this.frame.addEventListener("pointerover", (event) => this.#hover(event.target.closest(".gnode")?.dataset.node));
    this.frame.addEventListener("pointerleave", () => this.#hover(null));
    this.frame.addEventListener("pointermove", (event) => {
      if (!this.drawing.isFar || event.buttons) return;
      const id = this.#under(event);
      this.frame.title = id ?? "";
      this.#hover(id);
    });
  }

  #hover(id) {
    const target = id ?? this.selected ?? null;
    if ((this.marked?.of ?? null) !== target) this.highlight(target);
  }

  // The node at a point of the canvas.
  #under(event) {
    if (!this.drawing.isFar || event.target.closest(".graph-map")) return null;
    const box = this.frame.getBoundingClientRect();
    const [x, y] = this.transform.invert([event.clientX - box.left, event.clientY - box.top]);
    for (const [id, place] of this.layout.places) {
      if (x >= place.x && x <= place.x + WIDTH && y >= place.y && y <= place.y + HEIGHT) return id;
    }
    return null;
  }

  #installKeys() {
    this.drawing.cards.addEventListener("focusin", (event) => {
      const id = event.target.closest(".gnode")?.dataset.node;
      if (!id || !event.target.matches(":focus-visible")) return;
      this.#hover(id);
      this.reveal(id);
    });
    this.drawing.cards.addEventListener("focusout", () => this.#hover(null));
    this.drawing.cards.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const id = next(this, event.key);
      if (!id) return;
      event.preventDefault();
      this.focus(id);
    });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.defaultPrevented || document.querySelector("dialog[open]")) return;
      if (!this.panel.close()) this.root.dispatchEvent(new CustomEvent("graph:narrow"));
    });
  }

  // Durations of running nodes.
  #tick() {
    if (!this.model || document.hidden) return;
    let any = false;
    for (const id of this.drawing.made.keys()) {
      const node = this.model.nodes.get(id);
      if (!node || !["running", "waiting"].includes(displayState(node).name)) continue;
      this.model.nodes.set(id, { ...node });
      any = true;
    }
    if (any) this.redraw();
  }
}

function same(before, after) {
  if (before.nodes.size !== after.nodes.size || before.edges.length !== after.edges.length) return false;
  for (const id of after.nodes.keys()) if (!before.nodes.has(id)) return false;
  return after.edges.every((edge, place) => edge.key === before.edges[place].key);
}
