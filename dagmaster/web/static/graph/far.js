// A large graph when zoomed out: rectangles and lines on a canvas.
import { HEIGHT, WIDTH } from "./layout.js";
import { displayState } from "./states.js";

const MOST_EDGES = 20000;
let colours = null;

// Canvases cannot use CSS variables; read them once for each theme.
export function palette() {
  if (colours) return colours;
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  colours = { line: read("strong-line"), faint: read("line"), text: read("text"), accent: read("accent"), back: read("sunken") };
  for (const name of ["completed", "running", "failed", "pending", "dispatched", "skipped", "cancelled"]) colours[name] = read(`${name}-fill`);
  Object.assign(colours, { ready: colours.pending, completed_with_failures: colours.completed, waiting: read("paused-fill"), plain: read("accent") });
  return colours;
}
document.addEventListener("dm:theme", () => { colours = null; });

export function sized(canvas, width, height) {
  const dots = Math.min(devicePixelRatio || 1, 2);
  if (canvas.width !== Math.round(width * dots) || canvas.height !== Math.round(height * dots)) {
    canvas.width = Math.round(width * dots);
    canvas.height = Math.round(height * dots);
  }
  const context = canvas.getContext("2d");
  context.setTransform(dots, 0, 0, dots, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

export function drawFar(canvas, view, seen) {
  const { layout, model, transform: at, size, marked, critical } = view;
  const context = sized(canvas, size.width, size.height);
  const colours = palette();
  context.translate(at.x, at.y);
  context.scale(at.k, at.k);
  const lines = (edges, colour, width, alpha) => {
    context.beginPath();
    for (const { source, target } of edges) {
      const from = layout.places.get(source);
      const to = layout.places.get(target);
      context.moveTo(from.x + WIDTH, from.y + HEIGHT / 2);
      context.lineTo(to.x, to.y + HEIGHT / 2);
    }
    context.strokeStyle = colour;
    context.globalAlpha = alpha;
    context.lineWidth = width / at.k;
    context.stroke();
  };
  const edges = model.edges.filter((edge) => seen.has(edge.source) || seen.has(edge.target));
  lines(edges.slice(0, MOST_EDGES), colours.line, 0.5, marked ? 0.12 : 0.3);
  if (marked) lines(edges.filter((edge) => marked.edges.has(edge.key)), colours.accent, 1.2, 0.9);
  if (critical) lines(edges.filter((edge) => critical.edges.has(edge.key)), colours.running, 2, 1);
  for (const id of seen) {
    const { x, y } = layout.places.get(id);
    const status = displayState(model.nodes.get(id)).name;
    context.globalAlpha = marked && !marked.nodes.has(id) ? 0.2 : status === "skipped" ? 0.5 : 1;
    context.fillStyle = colours[status] ?? colours.pending;
    context.fillRect(x, y, WIDTH, HEIGHT);
    if (status === "failed" || id === view.selected || critical?.nodes.has(id)) {
      context.strokeStyle = id === view.selected ? colours.accent : colours.text;
      context.lineWidth = 2 / at.k;
      context.strokeRect(x, y, WIDTH, HEIGHT);
    }
  }
  context.globalAlpha = 1;
}
