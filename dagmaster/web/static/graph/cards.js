// Nodes at a readable zoom: one card each.
import { element } from "../elements.js";
import { duration } from "../times.js";
import { TYPE_ICONS, described, items, secondsOf, displayState, sum } from "./states.js";

const SVG = "http://www.w3.org/2000/svg";
const SPRITE = new URL("../vendor/feather-sprite.svg", import.meta.url).pathname;
const AROUND = 2 * Math.PI * 15;
const ARCS = [["completed", ["completed"]], ["failed", ["failed"]], ["running", ["running", "dispatched"]]];

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  svg.append(document.createElementNS(SVG, "use"));
  setIcon(svg, name);
  return svg;
}

function setIcon(svg, name) {
  const address = `${SPRITE}#${name}`;
  if (svg.firstChild.getAttribute("href") !== address) svg.firstChild.setAttribute("href", address);
}

// Short words: a card has little room.
function short(seconds) {
  if (seconds === null) return "";
  return seconds < 60 ? duration(seconds) : duration(seconds).replaceAll(/ (?=[a-z])/g, "").replaceAll("min", "m");
}

// For nodes whose title differs from their id.
const nameOf = (node) => node.label ?? node.node_id;

export function makeCard(node) {
  const card = element("div", "gnode");
  card.dataset.node = node.node_id;
  const badge = element("span", "gnode-badge", icon(TYPE_ICONS[node.type] ?? "box"));
  // With spaces between the words, for screen readers.
  const name = element("span", "gnode-title", element("span", "gnode-name", nameOf(node)), " ", element("span", "gnode-tries"));
  const state = element("span", "gnode-state", icon("circle"), element("span", "gnode-word"), " ", element("span", "gnode-time"));
  const main = element("button", "gnode-main", badge, element("span", "gnode-text", name, " ", state));
  main.type = "button";
  main.tabIndex = -1;
  card.append(main);
  updateCard(card, node);
  return card;
}

export function updateCard(card, node) {
  const is = displayState(node);
  const main = card.firstChild;
  const seconds = short(secondsOf(node));
  // The items are counted beside it, failed ones too: there is no room to say it twice.
  const word = is.name === "completed_with_failures" ? "completed" : is.word;
  const still = node.note ?? (node.status ? word : node.handler ?? node.type.replace("_", "-"));
  card.dataset.status = is.name;
  card.classList.toggle("is-added", Boolean(sum(node.added)));
  const mark = card.querySelector(".gnode-state .icon");
  mark.toggleAttribute("hidden", !is.icon);
  if (is.icon) setIcon(mark, is.icon);
  say(card.querySelector(".gnode-word"), still);
  const tries = node.retry_count ? `${node.retry_count + 1}×` : "";
  say(card.querySelector(".gnode-tries"), tries);
  say(card.querySelector(".gnode-time"), seconds);
  main.setAttribute("aria-label", described(node, [nameOf(node), tries, still, seconds]));
  main.title = [nameOf(node), node.handler, node.description, node.error_message].filter(Boolean).join("\n");
  updateItems(card, node);
}

function say(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

// The items folded into the node: a progress ring, and a button that opens them.
function updateItems(card, node) {
  const counts = items(node);
  const total = sum(counts);
  if (!total) return;
  let button = card.querySelector(".gnode-items");
  if (!button) {
    button = element("button", "gnode-items");
    button.type = "button";
    button.tabIndex = card.firstChild.tabIndex;
    card.append(button);
    card.querySelector(".gnode-badge").append(ring());
  }
  const failed = counts.failed ? ` · ${counts.failed.toLocaleString("en")} failed` : "";
  const done = counts.completed ?? 0;
  say(button, `${done.toLocaleString("en")}/${total.toLocaleString("en")}${failed}`);
  button.setAttribute("aria-label", `${button.textContent}: show the items of ${node.node_id}`);
  button.classList.toggle("has-failed", Boolean(counts.failed));
  let from = 0;
  for (const [name, statuses] of ARCS) {
    const part = statuses.reduce((all, status) => all + (counts[status] ?? 0), 0) / total;
    const arc = card.querySelector(`.ring .is-${name}`);
    arc.setAttribute("stroke-dasharray", `${part * AROUND} ${AROUND}`);
    arc.setAttribute("stroke-dashoffset", `${-from * AROUND}`);
    from += part;
  }
}

function ring() {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "ring");
  svg.setAttribute("viewBox", "0 0 36 36");
  svg.setAttribute("aria-hidden", "true");
  for (const name of ["ring-back", "is-completed", "is-failed", "is-running"]) {
    const circle = document.createElementNS(SVG, "circle");
    for (const [key, value] of Object.entries({ class: name, cx: 18, cy: 18, r: 15 })) circle.setAttribute(key, value);
    svg.append(circle);
  }
  return svg;
}
