import assert from "node:assert/strict";
import { test } from "node:test";
import { unpack } from "../../dagmaster/web/static/graph/columns.js";
import { changeOf, isNewer } from "../../dagmaster/web/static/graph/digest.js";
import { next } from "../../dagmaster/web/static/graph/keys.js";
import { HEIGHT, WIDTH, layOut } from "../../dagmaster/web/static/graph/layout.js";
import { Model } from "../../dagmaster/web/static/graph/model.js";
import { described, items, outcomeAfter, secondsOf, displayState } from "../../dagmaster/web/static/graph/states.js";

const edges = (...pairs) => pairs.map(([source, target, more]) => ({ source, target, ...more }));
const nodes = (...ids) => ids.map((node_id) => ({ node_id, type: "task" }));
const DIAMOND = { nodes: nodes("a", "b", "c", "d"), edges: edges(["a", "b"], ["a", "c"], ["b", "d"], ["c", "d"]) };

test("columns become rows with IDs and times", () => {
  const { nodes: rows, edges: links, status } = unpack({
    since: Date.parse("2026-03-01T00:00:00Z"),
    status: "running",
    nodes: { length: 2, node_id: ["a", "b"], type: { same: "task" }, status: { values: ["completed", "running"], at: "01" }, started_at: [0, null] },
    edges: { length: 1, source: [0], target: [1] },
  });
  assert.equal(status, "running");
  assert.deepEqual(rows, [
    { node_id: "a", type: "task", status: "completed", started_at: "2026-03-01T00:00:00.000Z" },
    { node_id: "b", type: "task", status: "running", started_at: null },
  ]);
  assert.deepEqual(links, [{ source: "a", target: "b" }]);
});

test("layers follow the longest path, and finalizers come last", () => {
  const graph = { nodes: [...nodes("a", "b", "c"), { node_id: "last", type: "task", runs_last: true }], edges: edges(["a", "b"], ["b", "c"], ["a", "c"]) };
  const { layers, order } = new Model(graph);
  assert.deepEqual([...layers], [["a", 0], ["b", 1], ["c", 2], ["last", 3]]);
  assert.deepEqual(order, ["a", "b", "c", "last"]);
});

test("edges to unknown nodes are left out", () => {
  assert.equal(new Model({ nodes: nodes("a"), edges: edges(["a", "gone"]) }).edges.length, 0);
});

test("the path of a node is everything before and after it", () => {
  assert.deepEqual([...new Model(DIAMOND).pathOf("b").nodes].sort(), ["a", "b", "d"]);
});

test("the critical path goes back through whatever ended last", () => {
  const at = (second) => `2026-03-01T00:00:0${second}Z`;
  const timed = { a: [0, 1], b: [1, 2], c: [1, 5], d: [5, 6] };
  const rows = Object.entries(timed).map(([node_id, [start, end]]) => ({
    node_id, type: "task", status: "completed", outcome: "completed", started_at: at(start), completed_at: at(end),
  }));
  assert.deepEqual([...new Model({ nodes: rows, edges: DIAMOND.edges }).criticalPath().nodes], ["d", "c", "a"]);
});

// Larger than dagre is used for, which is not loaded here.
function fan(size) {
  const middle = Array.from({ length: size }, (_, place) => `n${place}`);
  return { nodes: nodes("start", ...middle, "end"), edges: edges(...middle.flatMap((id) => [["start", id], [id, "end"]])) };
}

test("a large graph is laid out in columns without overlaps", () => {
  const { places, width } = layOut(new Model(fan(300)));
  const rows = [...places].filter(([id]) => id.startsWith("n")).map(([, { y }]) => y).sort((a, b) => a - b);
  assert.ok(rows.every((y, place) => !place || y - rows[place - 1] >= HEIGHT));
  assert.ok(places.get("n0").x >= places.get("start").x + WIDTH);
  assert.ok(places.get("end").x + WIDTH <= width);
});

test("labels of branches get room before their node, and long ones are cut", () => {
  const graph = fan(300);
  const plain = layOut(new Model(structuredClone(graph))).width;
  graph.edges[0].branch = "an extraordinarily long name of a branch";
  const { labels, width } = layOut(new Model(graph));
  assert.equal([...labels.values()][0].text, "an extraordinarily long nam…");
  assert.ok(width > plain);
});

test("arrow keys follow edges and stay in the column", () => {
  const model = new Model(fan(300));
  const view = (active) => ({ model, layout: layOut(model), active });
  assert.equal(next(view("n1"), "ArrowRight"), "end");
  assert.equal(next(view("n1"), "ArrowLeft"), "start");
  assert.match(next(view("start"), "ArrowRight"), /^n\d+$/);
  assert.equal(next(view("n1"), "Home"), "start");
  assert.equal(next(view("n1"), "x"), null);
});

test("events of a digest change the status and the times of a node", () => {
  const timestamp = "2026-03-01T00:00:00Z";
  assert.deepEqual(changeOf({ event_type: "node_started", timestamp }), {
    status: "running", waits_for: null, completed_at: null, started_at: timestamp,
  });
  assert.equal(changeOf({ event_type: "node_failed", timestamp }).completed_at, timestamp);
  for (const ended_by of ["cancelled", "revoked"]) {
    assert.equal(changeOf({ event_type: "node_failed", timestamp, data: { ended_by } }).status, "cancelled");
  }
  assert.equal(changeOf({ event_type: "node_failed", timestamp, data: { ended_by: "timeout" } }).status, "failed");
  assert.equal(changeOf({ event_type: "job_progress", timestamp }), null);
});

test("event IDs beyond 53 bits are compared exactly", () => {
  assert.equal(isNewer("9007199254740993", "9007199254740992"), true);
  assert.equal(isNewer("9007199254740992", "9007199254740993"), false);
});

test("a node stands as its outcome, or as what it waits for", () => {
  assert.equal(displayState({ status: "dispatched", outcome: "dispatched" }).word, "queued");
  assert.deepEqual(displayState({ status: "running", outcome: "running", waits_for: "approval" }), {
    name: "waiting", icon: "user-check", word: "needs approval",
  });
  assert.equal(displayState({}).name, "plain");
  assert.equal(outcomeAfter({ type: "fan_out" }, "completed"), "running");
});

test("counts of items add up children and added nodes", () => {
  const node = { type: "fan_out", children: { completed: 8, failed: 1 }, added: { completed: 1 } };
  assert.deepEqual(items(node), { completed: 9, failed: 1 });
  assert.equal(described(node, ["each"]), "each, fan-out, 9 of 10 items completed, 1 failed");
});

test("a fan-out lasts until its last item ends", () => {
  const node = {
    status: "completed", outcome: "completed", started_at: "2026-03-01T00:00:00Z", completed_at: "2026-03-01T00:00:01Z",
    last_ended_at: "2026-03-01T00:00:09Z",
  };
  assert.equal(secondsOf(node), 9);
});
