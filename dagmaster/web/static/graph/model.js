// Queries on the graph: neighbours, order, paths.
import { OVER, displayState } from "./states.js";

export class Model {
  constructor({ nodes, edges }) {
    this.nodes = new Map(nodes.map((node) => [node.node_id, node]));
    this.edges = edges.filter((edge) => this.nodes.has(edge.source) && this.nodes.has(edge.target));
    this.outgoing = new Map(nodes.map((node) => [node.node_id, []]));
    this.incoming = new Map(nodes.map((node) => [node.node_id, []]));
    for (const edge of this.edges) {
      edge.key = `${edge.source}\u0000${edge.target}`;
      this.outgoing.get(edge.source).push(edge);
      this.incoming.get(edge.target).push(edge);
    }
    this.layers = this.#layered();
    this.columns = [];
    for (const [id, layer] of this.layers) {
      this.columns[layer] ??= [];
      this.columns[layer].push(id);
    }
    this.order = this.columns.flat();
  }

  // The longest path from a start node; finalizers come after everything else.
  #layered() {
    const waiting = new Map([...this.incoming].map(([id, edges]) => [id, edges.length]));
    const layers = new Map();
    const last = (id) => Boolean(this.nodes.get(id).runs_last);
    const spread = (ready) => {
      for (let place = 0; place < ready.length; place += 1) {
        const id = ready[place];
        for (const { target } of this.outgoing.get(id)) {
          layers.set(target, Math.max(layers.get(target) ?? 0, layers.get(id) + 1));
          waiting.set(target, waiting.get(target) - 1);
          if (!waiting.get(target)) ready.push(target);
        }
      }
    };
    const begin = (ids, layer) => {
      for (const id of ids) layers.set(id, layer);
      spread(ids);
    };
    const roots = [...waiting].filter(([, count]) => !count).map(([id]) => id);
    begin(roots.filter((id) => !last(id)), 0);
    const deepest = [...layers.values()].reduce((most, layer) => Math.max(most, layer), -1);
    begin(roots.filter(last), deepest + 1);
    for (const id of this.nodes.keys()) if (!layers.has(id)) layers.set(id, 0);
    return layers;
  }

  // All ancestors and descendants of the node.
  pathOf(id) {
    const nodes = new Set([id]);
    const edges = new Set();
    for (const [links, end] of [[this.incoming, "source"], [this.outgoing, "target"]]) {
      const reached = new Set([id]);
      for (const node of reached) {
        for (const edge of links.get(node) ?? []) {
          edges.add(edge.key);
          reached.add(edge[end]);
        }
      }
      for (const node of reached) nodes.add(node);
    }
    return { nodes, edges };
  }

  // The critical path: from the node that ended last, back to its latest predecessor at each step.
  criticalPath() {
    const ended = (id) => {
      const node = this.nodes.get(id);
      if (node.status === "skipped" || !node.started_at) return -Infinity;
      return OVER.has(displayState(node).name) ? Math.max(Date.parse(node.completed_at), Date.parse(node.last_ended_at ?? 0) || 0) : Infinity;
    };
    const nodes = new Set();
    const edges = new Set();
    const known = this.order.filter((id) => ended(id) > -Infinity);
    let at = latest(known.reverse(), ended);
    while (at) {
      nodes.add(at);
      const before = this.incoming.get(at).filter((edge) => edge.kind !== "dead" && ended(edge.source) > -Infinity);
      const source = latest(before.map((edge) => edge.source), ended);
      if (source) edges.add(before.find((edge) => edge.source === source).key);
      at = source;
    }
    return { nodes, edges };
  }
}

function latest(ids, ended) {
  let best = null;
  for (const id of ids) if (best === null || ended(id) > ended(best)) best = id;
  return best;
}
