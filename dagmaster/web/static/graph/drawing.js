// Draw the visible part: cards and curves when zoomed in, plain rectangles when zoomed out. Never all of a large graph.
import { makeCard, updateCard } from "./cards.js";
import { drawFar } from "./far.js";
import { HEIGHT, WIDTH } from "./layout.js";
import { displayState } from "./states.js";

const WHOLE = 300; // up to so many nodes, all are in the page
const FAR = 0.42; // below this scale names cannot be read
const MARGIN = 120;
const curve = d3.linkHorizontal().x((point) => point[0]).y((point) => point[1]);
const bent = d3.line().x((point) => point[0]).y((point) => point[1]).curve(d3.curveMonotoneX);

export class Drawing {
  constructor(root) {
    this.canvas = root.querySelector(".graph-far");
    this.svg = d3.select(root.querySelector(".graph-edges"));
    this.curves = this.svg.append("g");
    this.cards = root.querySelector(".graph-nodes");
    this.made = new Map();
    this.isFar = false;
  }

  clear() {
    this.made.clear();
    this.cards.replaceChildren();
    this.curves.selectAll("*").remove();
  }

  // `view` has: model, layout, transform, size, active, marked (or null), critical (or null).
  draw(view) {
    const { model, transform: at } = view;
    this.isFar = model.nodes.size > WHOLE && at.k < FAR;
    this.cards.style.transform = `translate(${at.x}px, ${at.y}px) scale(${at.k})`;
    this.curves.attr("transform", at.toString());
    const seen = this.#seen(view);
    this.#drawCards(view, this.isFar ? new Set() : seen);
    this.#drawEdges(view, this.isFar ? [] : this.#seenEdges(view, seen));
    this.canvas.hidden = !this.isFar;
    if (this.isFar) drawFar(this.canvas, view, seen);
  }

  #seen({ model, layout, transform: at, size }) {
    if (model.nodes.size <= WHOLE) return new Set(model.order);
    const [left, top] = at.invert([-MARGIN, -MARGIN]);
    const [right, bottom] = at.invert([size.width + MARGIN, size.height + MARGIN]);
    const seen = new Set();
    for (const [id, { x, y }] of layout.places) {
      if (x + WIDTH > left && x < right && y + HEIGHT > top && y < bottom) seen.add(id);
    }
    return seen;
  }

  #seenEdges({ model }, seen) {
    if (model.nodes.size <= WHOLE) return model.edges;
    const touching = new Map();
    for (const id of seen) {
      for (const edge of model.outgoing.get(id)) touching.set(edge.key, edge);
      for (const edge of model.incoming.get(id)) touching.set(edge.key, edge);
    }
    return [...touching.values()];
  }

  // The active card is always there: it keeps the focus.
  #drawCards({ model, layout, active, selected, marked, critical }, seen) {
    const visible = new Set(seen);
    if (active) visible.add(active);
    for (const [id, card] of this.made) {
      if (visible.has(id)) continue;
      card.remove();
      this.made.delete(id);
    }
    for (const id of model.order) {
      if (!visible.has(id)) continue;
      const node = model.nodes.get(id);
      let card = this.made.get(id);
      if (!card) {
        card = makeCard(node);
        card.drawn = node;
        this.made.set(id, card);
        this.cards.append(card);
        const { x, y } = layout.places.get(id);
        card.style.transform = `translate(${x}px, ${y}px)`;
      } else if (card.drawn !== node) {
        updateCard(card, node);
        card.drawn = node;
      }
      const reach = id === active ? 0 : -1;
      for (const button of card.children) button.tabIndex = reach;
      card.classList.toggle("is-selected", id === selected);
      if (id === selected) card.firstChild.setAttribute("aria-current", "true");
      else card.firstChild.removeAttribute("aria-current");
      card.classList.toggle("is-off", Boolean(marked) && !marked.nodes.has(id));
      card.classList.toggle("is-critical", Boolean(critical?.nodes.has(id)));
    }
  }

  #drawEdges({ model, layout, marked, critical }, edges) {
    const groups = this.curves.selectAll("g.gedge").data(edges, (edge) => edge.key).join((entering) => {
      const group = entering.append("g").attr("class", "gedge");
      group.append("path").attr("class", "gedge-line").attr("d", (edge) => path(edge, layout));
      group.append("path").attr("class", "gedge-tip").attr("d", (edge) => tip(edge, layout));
      group.filter((edge) => edge.branch).append("text").attr("class", "gedge-branch")
        .attr("x", (edge) => ends(edge, layout)[1][0] - 4).attr("y", (edge) => labelY(edge, layout));
      return group;
    });
    groups.each(function (edge) {
      const target = displayState(model.nodes.get(edge.target)).name;
      this.classList.toggle("is-flowing", edge.kind === "live" && (target === "running" || target === "dispatched" || target === "waiting"));
      this.dataset.kind = edge.kind ?? "plain";
      this.dataset.edge = `${edge.source} → ${edge.target}`;
      this.classList.toggle("is-off", Boolean(marked) && !marked.edges.has(edge.key));
      this.classList.toggle("is-on", Boolean(marked?.edges.has(edge.key)));
      this.classList.toggle("is-critical", Boolean(critical?.edges.has(edge.key)));
    });
    groups.select("text").text((edge) => (edge.kind === "live" ? `✓ ${layout.labels.get(edge.key).text}` : layout.labels.get(edge.key).text));
  }
}

function ends({ source, target }, { places }) {
  const from = places.get(source);
  const to = places.get(target);
  return [[from.x + WIDTH, from.y + HEIGHT / 2], [to.x - 6, to.y + HEIGHT / 2]];
}

// On the side opposite to its edge.
function labelY(edge, layout) {
  const [[, from], [, to]] = ends(edge, layout);
  const { row } = layout.labels.get(edge.key);
  return from < to - 1 ? to + 18 + 14 * row : to - 9 - 14 * row;
}

function path(edge, layout) {
  const [from, to] = ends(edge, layout);
  const bends = (layout.bends.get(edge.key) ?? []).map(({ x, y }) => [x, y]);
  const forward = [from, ...bends, to].every((point, place, all) => !place || point[0] >= all[place - 1][0]);
  return bends.length > 1 && forward ? bent([from, ...bends, to]) : curve({ source: from, target: to });
}

function tip(edge, layout) {
  const [x, y] = ends(edge, layout)[1];
  return `M${x - 1},${y - 4}L${x + 6},${y}L${x - 1},${y + 4}Z`;
}
