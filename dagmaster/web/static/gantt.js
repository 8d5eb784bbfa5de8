// When each node waited and ran: a bar for every attempt. The numbers come with the page and are drawn anew whenever it
// is refreshed; where somebody has zoomed to stays. d3 is a global of its own script.
import { clock, duration } from "./times.js";

const ROW = 30;
const BAR = 14;
const AXIS = 30;
const MIN = 3; // pixels of the shortest bar that can be seen
const TICK = 500; // milliseconds between two steps of what still runs
const CROSS = "M-3.5-3.5L3.5 3.5M3.5-3.5L-3.5 3.5";
const CHECK = "M-4 0L-1 3L4-3";

const frame = document.getElementById("gantt");
const read = () => JSON.parse(document.getElementById("gantt-data").textContent);
const chart = { data: read(), width: 0, gutter: 0, transform: d3.zoomIdentity };

frame.replaceChildren();
const svg = d3.select(frame).append("svg").attr("role", "group").attr("aria-label", "Times of the nodes; the table below has the same numbers");
const defs = svg.append("defs");
const hatch = defs.append("pattern").attr("id", "hatch").attr("width", 7).attr("height", 7).attr("patternUnits", "userSpaceOnUse").attr("patternTransform", "rotate(45)");
hatch.append("rect").attr("class", "queue-back").attr("width", 7).attr("height", 7);
hatch.append("line").attr("class", "hatch-line").attr("y2", 7);
const clip = defs.append("clipPath").attr("id", "gantt-clip").append("rect");
const axis = svg.append("g").attr("class", "gantt-axis").attr("aria-hidden", "true");
const rows = svg.append("g");
const now = svg.append("g").attr("class", "gantt-now").attr("clip-path", "url(#gantt-clip)").attr("aria-hidden", "true");
now.append("line");
const hint = d3.select(frame).append("div").attr("class", "gantt-hint").attr("hidden", "");

// The server's clock is not the browser's: what still runs goes on from the time at which the page was made.
let readAt = performance.now();
const until = () => chart.data.until + (chart.data.is_open ? performance.now() - readAt : 0);

const zoom = d3.zoom()
  .scaleExtent([1, 5000])
  .filter((event) => (event.type === "wheel" ? event.ctrlKey || event.metaKey : !event.button))
  .on("zoom", (event) => {
    chart.transform = event.transform;
    draw();
  });
svg.call(zoom).on("dblclick.zoom", null);

function base() {
  const { since } = chart.data;
  const end = Math.max(until(), since + 1);
  return d3.scaleLinear([since, since + (end - since) * 1.02], [chart.gutter, chart.width - 10]);
}

function measure() {
  chart.width = frame.clientWidth;
  chart.gutter = Math.min(220, Math.round(chart.width * 0.3));
  const height = AXIS + chart.data.rows.length * ROW + 8;
  svg.attr("width", chart.width).attr("height", height).attr("viewBox", `0 0 ${chart.width} ${height}`);
  clip.attr("x", chart.gutter).attr("width", Math.max(chart.width - chart.gutter, 0)).attr("height", height);
  const area = [[chart.gutter, 0], [chart.width, height]];
  zoom.extent(area).translateExtent(area);
}

function barsOf(row) {
  const end = until();
  return row.bars.map((bar) => {
    const isOpen = bar.ended === null;
    const stop = bar.ended ?? end;
    const begun = bar.started ?? stop;
    return { ...bar, isOpen, from: bar.dispatched ?? begun, begun, stop: Math.max(stop, begun), hasRun: bar.started !== null };
  });
}

function said(row) {
  const parts = barsOf(row).map((bar) => {
    const number = row.bars.length > 1 ? `attempt ${bar.attempt} ` : "";
    const ran = bar.hasRun ? `, ${bar.isOpen ? "runs for" : "ran"} ${duration((bar.stop - bar.begun) / 1000)}` : "";
    return `${number}${bar.status}: queued ${duration(Math.max(bar.begun - bar.from, 0) / 1000)}${ran}`;
  });
  const children = row.strip ? `, ${row.strip.children} children, at most ${d3.max(row.strip.running)} at a time` : "";
  return `${row.id}${children}; ${parts.join("; ")}`;
}

function draw() {
  const x = chart.transform.rescaleX(base());
  drawAxis(x);
  const row = rows.selectAll("a.gantt-row").data(chart.data.rows, (one) => one.id).join(newRow);
  row.attr("transform", (_, place) => `translate(0 ${AXIS + place * ROW})`).attr("aria-label", said);
  row.attr("data-status", (one) => one.status);
  row.select(".gantt-back").attr("width", chart.width).classed("odd", (_, place) => place % 2);
  row.select(".gantt-label").text((one) => shorten(one.id, chart.gutter - 16));
  row.select(".gantt-bars").each(function (one) {
    drawBars(d3.select(this), one, x);
  });
  const at = x(until());
  now.attr("display", chart.data.is_open ? null : "none").select("line").attr("x1", at).attr("x2", at).attr("y1", AXIS - 6).attr("y2", AXIS + chart.data.rows.length * ROW);
}

function newRow(enter) {
  const row = enter.append("a").attr("class", "gantt-row").attr("href", (one) => `/ui/jobs/${frame.dataset.job}/nodes/${encodeURIComponent(one.id)}`);
  row.append("rect").attr("class", "gantt-back").attr("height", ROW);
  row.append("text").attr("class", "gantt-label").attr("x", 8).attr("y", ROW / 2).attr("dy", "0.35em");
  row.append("g").attr("class", "gantt-bars").attr("clip-path", "url(#gantt-clip)").attr("transform", "translate(0 0)");
  row.on("pointermove focus", showHint).on("pointerleave blur", () => hint.attr("hidden", ""));
  return row;
}

function drawBars(group, row, x) {
  const bars = barsOf(row);
  const top = (ROW - BAR) / 2;
  group.selectAll("rect.queue").data(bars.filter((bar) => bar.begun > bar.from), (bar) => bar.attempt).join("rect")
    .attr("class", "queue").attr("fill", "url(#hatch)").attr("y", top).attr("height", BAR).attr("rx", 2)
    .attr("x", (bar) => x(bar.from)).attr("width", (bar) => Math.max(x(bar.begun) - x(bar.from), 1));
  const ran = bars.filter((bar) => bar.hasRun);
  group.selectAll("rect.ran").data(ran, (bar) => bar.attempt).join("rect")
    .attr("class", (bar) => `ran is-${bar.status}${row.strip ? " is-faint" : ""}`).attr("data-attempt", (bar) => bar.attempt)
    .attr("y", top).attr("height", BAR).attr("rx", 2)
    .attr("x", (bar) => x(bar.begun)).attr("width", (bar) => Math.max(x(bar.stop) - x(bar.begun), MIN));
  const marked = ran.filter((bar) => bar.status === "failed" || (bar.status === "completed" && !row.strip && x(bar.stop) - x(bar.begun) > 26));
  group.selectAll("path.mark").data(marked, (bar) => bar.attempt).join("path")
    .attr("class", (bar) => `mark ${x(bar.stop) - x(bar.begun) < 12 ? "outside" : ""} is-${bar.status}`)
    .attr("d", (bar) => (bar.status === "failed" ? CROSS : CHECK))
    .attr("transform", (bar) => `translate(${markAt(bar, x)} ${ROW / 2})`);
  drawStrip(group, row, x, top);
}

function markAt(bar, x) {
  return x(bar.stop) - x(bar.begun) < 12 ? x(bar.begun) + MIN + 8 : x(bar.stop) - 8;
}

// How many children of a fan-out were at work, as steps inside of its bar; a line below it where some failed.
function drawStrip(group, row, x, top) {
  const strip = row.strip;
  const { since, until: end } = strip ?? chart.data;
  const size = strip ? (end - since) / strip.running.length : 0;
  const most = strip ? Math.max(1, d3.max(strip.running)) : 1;
  const height = d3.scaleLinear([0, most], [0, BAR]);
  const parts = strip ? strip.running.map((count, place) => ({ count, failed: strip.failed[place], from: since + place * size })) : [];
  group.selectAll("rect.part").data(parts.filter((one) => one.count)).join("rect").attr("class", "part")
    .attr("x", (one) => x(one.from)).attr("width", (one) => Math.max(x(one.from + size) - x(one.from), 1))
    .attr("y", (one) => top + BAR - height(one.count)).attr("height", (one) => height(one.count));
  group.selectAll("rect.part-failed").data(parts.filter((one) => one.failed)).join("rect").attr("class", "part-failed")
    .attr("x", (one) => x(one.from)).attr("width", (one) => Math.max(x(one.from + size) - x(one.from), 2)).attr("y", top + BAR + 1).attr("height", 3);
}

// Ticks at round times since the job began: that is what people compare.
const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 144e5, 216e5, 432e5, 864e5, 1728e5, 6048e5];

function drawAxis(x) {
  const [from, to] = [x.invert(chart.gutter), x.invert(chart.width - 10)];
  const most = Math.max(2, Math.floor((chart.width - chart.gutter) / 84));
  const step = STEPS.find((one) => (to - from) / one <= most) ?? (to - from) / most;
  const first = Math.ceil((from - chart.data.since) / step) * step;
  const ticks = d3.range(first, to - chart.data.since + 1, step);
  const tick = axis.selectAll("g").data(ticks, (one) => one).join((enter) => {
    const made = enter.append("g");
    made.append("line").attr("y1", AXIS - 6);
    made.append("text").attr("y", AXIS - 12).attr("text-anchor", "middle");
    return made;
  });
  tick.attr("transform", (one) => `translate(${x(chart.data.since + one)} 0)`);
  tick.select("line").attr("y2", AXIS + chart.data.rows.length * ROW);
  tick.select("text").text((one) => (one ? `+${duration(one / 1000)}` : "0")).attr("text-anchor", (one) => (x(chart.data.since + one) > chart.width - 40 ? "end" : "middle"));
}

const ruler = document.createElement("canvas").getContext("2d");
function shorten(text, width) {
  ruler.font = "12px monospace";
  const most = Math.floor(width / (ruler.measureText("m").width || 7));
  return text.length <= most ? text : `${text.slice(0, Math.max(most - 1, 1))}…`;
}

function showHint(event, row) {
  const lines = [row.id, ...said(row).split("; ").slice(1), row.strip ? `${row.strip.children} children, at most ${d3.max(row.strip.running)} at a time` : ""];
  const first = row.bars[0];
  if (first) lines.push(`from ${clock(new Date(first.dispatched ?? first.started))}`);
  hint.attr("hidden", null).selectAll("p").data(lines.filter(Boolean)).join("p").text((one) => one);
  const place = frame.getBoundingClientRect();
  const box = hint.node().getBoundingClientRect();
  const at = event.clientX ? event.clientX - place.left + 14 : chart.gutter;
  const line = event.currentTarget.getBoundingClientRect();
  hint.style("left", `${Math.max(0, Math.min(at, chart.width - box.width - 4))}px`).style("top", `${line.bottom - place.top + 4}px`);
}

const zoomBy = { in: () => svg.call(zoom.scaleBy, 1.6), out: () => svg.call(zoom.scaleBy, 1 / 1.6), fit: () => svg.call(zoom.transform, d3.zoomIdentity) };
for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", zoomBy[button.dataset.zoom]);

frame.addEventListener("keydown", (event) => {
  const act = { "+": zoomBy.in, "=": zoomBy.in, "-": zoomBy.out, 0: zoomBy.fit }[event.key];
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const sideways = { ArrowLeft: 60, ArrowRight: -60 }[event.key];
  if (!act && !by && !sideways) return;
  event.preventDefault();
  if (act) act();
  if (sideways) svg.call(zoom.translateBy, sideways / chart.transform.k, 0);
  const links = rows.selectAll("a").nodes();
  if (by) links[links.indexOf(document.activeElement) + by]?.focus();
});

document.addEventListener("dm:refreshed", () => {
  chart.data = read();
  readAt = performance.now();
  measure();
  draw();
});
new ResizeObserver(() => {
  measure();
  draw();
}).observe(frame);
setInterval(() => {
  if (chart.data.is_open && !document.hidden) draw();
}, TICK);
measure();
draw();
