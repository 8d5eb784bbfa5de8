// Zoom and keyboard of the Gantt chart, which the server draws in percentages of its width.
import { refreshSoon } from "./live.js";

const STEP = 2000; // milliseconds between two redraws of a running job
const MOST = 6; // as many levels of ticks the server draws
const root = document.documentElement; // Live updates leave it alone.
let level = 0;

const chart = () => document.getElementById("gantt");

function showTicks() {
  for (const tick of document.querySelectorAll(".gantt-tick")) {
    if (Number(tick.dataset.level) > level) tick.setAttribute("display", "none");
    else tick.removeAttribute("display");
  }
}

// Zoom around the middle of the chart.
function zoomTo(target) {
  const next = Math.max(0, Math.min(MOST, target));
  const box = chart();
  const middle = box.scrollLeft + box.clientWidth / 2;
  const factor = 2 ** (next - level);
  level = next;
  root.style.setProperty("--gantt-zoom", 2 ** level);
  showTicks();
  box.scrollLeft = middle * factor - box.clientWidth / 2;
}

const ZOOMS = { in: () => zoomTo(level + 1), out: () => zoomTo(level - 1), fit: () => zoomTo(0) };
const KEYS = { "+": ZOOMS.in, "=": ZOOMS.in, "-": ZOOMS.out, 0: ZOOMS.fit, ArrowDown: () => walk(1), ArrowUp: () => walk(-1) };

function walk(by) {
  const rows = [...document.querySelectorAll(".gantt-row")];
  rows[rows.indexOf(document.activeElement) + by]?.focus();
}

document.addEventListener("click", (event) => ZOOMS[event.target.closest("[data-zoom]")?.dataset.zoom]?.());
document.addEventListener("keydown", (event) => {
  if (!event.target.closest("#gantt") || event.ctrlKey || event.metaKey || event.altKey) return;
  const act = KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});
document.addEventListener("wheel", (event) => {
  if (!event.target.closest("#gantt") || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  zoomTo(level - Math.sign(event.deltaY));
}, { passive: false });
document.addEventListener("dm:refreshed", showTicks);
setInterval(() => chart()?.hasAttribute("data-open") && refreshSoon(), STEP);
