// The graph of a job or of a workflow, in the element of the macro `graph` of graph.html.
import { unpack } from "./columns.js";
import { changeOf, isNewer } from "./digest.js";
import { Follower } from "./live.js";
import { displayState } from "./states.js";
import { View } from "./view.js";

const JOB_OVER = new Set(["completed", "failed", "cancelled"]);
const views = new Map();

// `graph` is the response of /api/v1/jobs/ID/graph or /api/v1/workflows/ID.
export function render(container, graph) {
  if (!views.has(container)) views.set(container, new View(container));
  const view = views.get(container);
  view.show(graph);
  return view;
}

// In all graphs of the page that have such a node.
export function updateNodeStatus(nodeId, status, changed = {}) {
  for (const view of views.values()) view.update(nodeId, { status, waits_for: null, ...changed });
}

export function highlightPath(nodeId) {
  for (const view of views.values()) view.highlight(nodeId);
}

const rowsOf = (graph) => (Array.isArray(graph.nodes) ? graph : unpack(graph));

async function start(container) {
  const { graph: address, job: jobId } = container.dataset;
  let graph = null;
  const load = async () => {
    const answer = await fetch(address, { headers: { Accept: "application/json" } });
    if (!answer.ok) throw new Error((await answer.json().catch(() => null))?.error?.message ?? `The server answered ${answer.status}.`);
    graph = rowsOf(await answer.json());
    const view = render(container, graph);
    view.panel.refresh();
    count(container, graph);
    return view;
  };
  try {
    const view = await load();
    installBar(container, view);
    view.selectNamed();
    requestAnimationFrame(() => { container.dataset.ms = Math.round(performance.now()); }); // How long people waited, from their click on.
    if (jobId) follow(jobId, () => graph, load);
  } catch (error) {
    problem(container, error.message);
  }
}

function follow(jobId, current, load) {
  new Follower(jobId, current().last_event_id, {
    isOver: () => JOB_OVER.has(current().status),
    onNode: (entry) => {
      const change = changeOf(entry);
      if (change && isNewer(entry.event_id, current().last_event_id)) updateNodeStatus(entry.node_id, change.status, change);
    },
    fetchGraph: () => load().catch(() => null), // Tried again with the next event; the page says when it is stale.
  });
}

// A description for screen readers.
function count(container, { nodes }) {
  const counts = new Map();
  for (const node of nodes) {
    const { name, word: label } = displayState(node);
    const word = name === "completed_with_failures" ? "completed with failures" : label;
    if (word) counts.set(word, (counts.get(word) ?? 0) + 1);
  }
  const noun = nodes.every(({ type }) => type === "table" || type === "dropped") ? "table" : "node";
  const parts = [`${nodes.length.toLocaleString("en")} ${noun}${nodes.length === 1 ? "" : "s"}`, ...[...counts].map(([word, number]) => `${number.toLocaleString("en")} ${word}`)];
  container.querySelector(".graph-count").textContent = parts.join(" · ");
}

function problem(container, text) {
  container.querySelector(".graph-skeleton")?.remove();
  const box = container.querySelector(".graph-problem");
  box.hidden = false;
  box.querySelector("span").textContent = `Cannot draw the graph: ${text}`;
}

function installBar(container, view) {
  const on = (name, act) => {
    const button = container.querySelector(`[data-do="${name}"]`);
    button?.addEventListener("click", () => act(button));
  };
  on("in", () => view.zoomBy(1.4));
  on("out", () => view.zoomBy(1 / 1.4));
  on("fit", () => view.fit());
  on("critical", (button) => {
    const isPressed = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(isPressed));
    view.showCritical(isPressed);
  });
  const widen = (wide) => {
    container.classList.toggle("is-wide", wide);
    container.querySelector('[data-do="wide"]').setAttribute("aria-pressed", String(wide));
  };
  on("wide", () => {
    widen(!container.classList.contains("is-wide"));
    requestAnimationFrame(() => view.fit(false));
  });
  container.addEventListener("graph:narrow", () => widen(false));
  document.addEventListener("click", (event) => {
    if (!event.target.closest(".graph-legend")) container.querySelector(".graph-legend")?.removeAttribute("open");
  });
}

for (const container of document.querySelectorAll("[data-graph]")) start(container);
