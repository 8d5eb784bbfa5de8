// Decode the graph of a job (web/columns.py): columns become rows again, and indexes of nodes become ids.

export function unpack({ since, nodes: nodeColumns, edges: edgeColumns, ...rest }) {
  const nodes = rowsOf(nodeColumns);
  for (const node of nodes) {
    for (const name of ["started_at", "completed_at", "last_ended_at"]) {
      if (node[name] !== null && node[name] !== undefined) node[name] = new Date(since + node[name]).toISOString();
    }
  }
  const edges = rowsOf(edgeColumns);
  for (const edge of edges) {
    edge.source = nodes[edge.source].node_id;
    edge.target = nodes[edge.target].node_id;
  }
  return { ...rest, nodes, edges };
}

function rowsOf({ length, ...columns }) {
  const rows = Array.from({ length }, () => ({}));
  for (const [name, column] of Object.entries(columns)) {
    const value = reader(column);
    rows.forEach((row, place) => { row[name] = value(place); });
  }
  return rows;
}

function reader(column) {
  if (Array.isArray(column)) return (place) => column[place];
  if (!("at" in column)) return () => column.same;
  return (place) => column.values[parseInt(column.at[place], 36)];
}
