// One node can be reached with Tab; arrows lead from it along the edges, and to its neighbours above and below.
export function next(view, key) {
  const { model, active } = view;
  switch (key) {
    case "ArrowRight": return nearest(view, model.outgoing.get(active).map((edge) => edge.target));
    case "ArrowLeft": return nearest(view, model.incoming.get(active).map((edge) => edge.source));
    case "ArrowDown": return beside(view, 1);
    case "ArrowUp": return beside(view, -1);
    case "Home": return model.order[0];
    case "End": return model.order.at(-1);
    case "PageDown": return model.order[Math.min(model.order.indexOf(active) + 10, model.order.length - 1)];
    case "PageUp": return model.order[Math.max(model.order.indexOf(active) - 10, 0)];
    default: return null;
  }
}

function nearest({ layout, active }, ids) {
  const { y } = layout.places.get(active);
  return ids.toSorted((left, right) => Math.abs(layout.places.get(left).y - y) - Math.abs(layout.places.get(right).y - y))[0] ?? null;
}

// In its column first; at its end, the next node in order, so that every node can be reached.
function beside({ model, layout, active }, step) {
  const { x, y } = layout.places.get(active);
  let best = null;
  for (const [id, place] of layout.places) {
    const away = (place.y - y) * step;
    if (Math.abs(place.x - x) < 1 && away > 0 && (best === null || away < best.away)) best = { id, away };
  }
  return best?.id ?? model.order[model.order.indexOf(active) + step] ?? null;
}
