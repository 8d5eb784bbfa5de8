// The positions of the nodes: layers from left to right.
export const WIDTH = 196;
export const HEIGHT = 58;
const ACROSS = 44; // between two layers
const DOWN = 20; // between two nodes of a layer
const DAGRE_NODES = 250; // beyond, dagre takes longer than people like to wait
const DAGRE_EDGES = 600;
const LONGEST_LABEL = 28; // letters of the name of a branch
const LETTER = 6.8; // pixels of one
const LABEL_ROOM = 46; // for the mark of the branch that was taken, and the tip of the edge

// {places: Map(id -> {x, y}) of their upper left corners, bends: Map(edge key -> points), labels: Map(edge key -> {text,
// row}), width, height}
export function layOut(model) {
  const small = model.nodes.size <= DAGRE_NODES && model.edges.length <= DAGRE_EDGES;
  const layout = small && model.edges.length ? withDagre(model) : quickly(model);
  layout.labels = labelsOf(model);
  makeRoom(model, layout);
  return layout;
}

// Names of branches are placed before their target node; several names above each other.
function labelsOf(model) {
  const labels = new Map();
  const rows = new Map();
  for (const { key, branch, target } of model.edges) {
    if (!branch) continue;
    const row = rows.get(target) ?? 0;
    rows.set(target, row + 1);
    labels.set(key, { text: branch.length > LONGEST_LABEL ? `${branch.slice(0, LONGEST_LABEL - 1)}…` : branch, row });
  }
  return labels;
}

// The gap between two layers fits the longest name in it, because cards cover the edges.
function makeRoom(model, layout) {
  const rooms = new Map();
  for (const { key, target } of model.edges) {
    const label = layout.labels.get(key);
    if (!label) continue;
    const x = Math.round(layout.places.get(target).x);
    rooms.set(x, Math.max(rooms.get(x) ?? 0, label.text.length * LETTER + LABEL_ROOM));
  }
  if (!rooms.size) return;
  const shifts = [...rooms].map(([x, room]) => [x, Math.max(0, room - ACROSS)]).sort(([left], [right]) => left - right);
  // Everything in the gap before a layer moves with it.
  const shift = (x) => shifts.reduce((all, [from, more]) => (x > from - ACROSS ? all + more : all), 0);
  for (const place of layout.places.values()) place.x += shift(place.x);
  for (const bends of layout.bends.values()) for (const bend of bends) bend.x += shift(bend.x);
  layout.width += shifts.reduce((all, [, more]) => all + more, 0);
}

// Not the bare ids: dagre keeps them as names of a plain object, where "constructor" is taken.
const named = (id) => `node ${id}`;

function withDagre(model) {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "LR", nodesep: DOWN, ranksep: ACROSS, edgesep: 12, ranker: model.nodes.size > 80 ? "longest-path" : "network-simplex" });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const id of model.nodes.keys()) graph.setNode(named(id), { width: WIDTH, height: HEIGHT });
  for (const { source, target } of model.edges) graph.setEdge(named(source), named(target));
  // Finalizers are placed last by invisible edges.
  const ends = model.order.filter((id) => !model.outgoing.get(id).length && !model.nodes.get(id).runs_last);
  for (const id of model.order) {
    if (model.nodes.get(id).runs_last && !model.incoming.get(id).length) for (const end of ends.slice(0, 20)) graph.setEdge(named(end), named(id));
  }
  dagre.layout(graph);
  const places = new Map();
  for (const id of model.nodes.keys()) {
    const { x, y } = graph.node(named(id));
    places.set(id, { x: x - WIDTH / 2, y: y - HEIGHT / 2 });
  }
  const bends = new Map(model.edges.map((edge) => [edge.key, graph.edge(named(edge.source), named(edge.target)).points.slice(1, -1)]));
  return { places, bends, width: graph.graph().width, height: graph.graph().height };
}

function quickly(model) {
  const layers = model.columns.map((column) => [...column]);
  const rank = new Map();
  for (const layer of layers) assignRanks(layer, rank);
  for (let sweep = 0; sweep < 4; sweep += 1) sort(model, layers, rank, sweep % 2 === 0);
  const tallest = Math.max(...layers.map((layer) => layer.length));
  const step = HEIGHT + DOWN;
  const places = new Map();
  for (const [column, layer] of layers.entries()) {
    const top = (tallest - layer.length) / 2;
    for (const [row, id] of layer.entries()) places.set(id, { x: column * (WIDTH + ACROSS), y: (row + top) * step });
  }
  return { places, bends: new Map(), width: layers.length * (WIDTH + ACROSS) - ACROSS, height: tallest * step - DOWN };
}

// Each node as close as possible to the middle of its neighbours in the previous (or next) layer.
function sort(model, layers, rank, forward) {
  const links = forward ? model.incoming : model.outgoing;
  const end = forward ? "source" : "target";
  for (const layer of forward ? layers : layers.toReversed()) {
    const middle = new Map(layer.map((id) => {
      const near = links.get(id);
      return [id, near.length ? near.reduce((all, edge) => all + share(edge[end], rank, model, layers), 0) / near.length : rank.get(id) / layer.length];
    }));
    layer.sort((left, right) => middle.get(left) - middle.get(right) || rank.get(left) - rank.get(right));
    assignRanks(layer, rank);
  }
}

function assignRanks(layer, rank) {
  for (const [place, id] of layer.entries()) rank.set(id, place);
}

const share = (id, rank, model, layers) => (rank.get(id) + 0.5) / layers[model.layers.get(id)].length;
