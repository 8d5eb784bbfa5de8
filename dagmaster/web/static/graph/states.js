// The type and state of a node as icon, word and colour.
export const TYPE_ICONS = {
  start: "play", end: "flag", task: "box", conditional: "git-branch", fan_out: "grid", fan_in: "git-merge",
  wait: "clock", approval: "user-check", workflow: "layers", added: "plus-square", table: "database", dropped: "trash-2",
};
export const TYPE_NAMES = {
  start: "start", end: "end", task: "task", conditional: "conditional", fan_out: "fan-out", fan_in: "fan-in",
  wait: "wait", approval: "approval", workflow: "workflow", added: "added from outside", table: "table", dropped: "dropped table",
};
const STATUS_ICONS = {
  pending: "circle", ready: "clock", dispatched: "send", running: "loader", completed: "check-circle", failed: "x-octagon",
  skipped: "skip-forward", cancelled: "slash", completed_with_failures: "alert-circle",
};
const WAITS = {
  approval: ["user-check", "needs approval"], signal: ["bell", "awaits signal"],
  time: ["clock", "awaits timer"], job: ["layers", "awaits child job"], retry: ["rotate-ccw", "awaits retry"],
};
const WORDS = { dispatched: () => "queued", completed_with_failures: (node) => `completed, ${items(node).failed.toLocaleString("en")} failed` };
export const OVER = new Set(["completed", "completed_with_failures", "failed", "cancelled", "skipped"]);

export const sum = (counts) => Object.values(counts ?? {}).reduce((total, count) => total + count, 0);

// The server sends the outcome of a node with its items; an event has only the state of the node itself.
export const outcomeAfter = (node, status) => (node.type === "fan_out" && status === "completed" ? "running" : status);

export function displayState(node) {
  if (!node.status) return { name: "plain", icon: null, word: "" };
  const waits = node.waits_for && WAITS[node.waits_for];
  if (waits) return { name: node.waits_for === "job" ? "running" : "waiting", icon: waits[0], word: waits[1] };
  const name = node.outcome;
  return { name, icon: STATUS_ICONS[name] ?? "circle", word: WORDS[name]?.(node) ?? name };
}

export function items(node) {
  const counts = {};
  for (const some of [node.children, node.added])
    for (const [status, number] of Object.entries(some ?? {})) counts[status] = (counts[status] ?? 0) + number;
  return counts;
}

export function secondsOf(node, now = Date.now()) {
  if (!node.started_at) return null;
  const open = displayState(node).name === "running" || displayState(node).name === "waiting";
  const end = open ? now : Math.max(Date.parse(node.completed_at ?? node.started_at), Date.parse(node.last_ended_at ?? 0) || 0);
  return Math.max(0, (end - Date.parse(node.started_at)) / 1000);
}

export function described(node, words) {
  const counts = items(node);
  const total = sum(counts);
  return [
    words.filter(Boolean).join(" "), TYPE_NAMES[node.type] ?? node.type,
    node.retry_count ? `attempt ${node.retry_count + 1}` : "",
    total ? `${counts.completed ?? 0} of ${total} items completed${counts.failed ? `, ${counts.failed} failed` : ""}` : "",
  ].filter(Boolean).join(", ");
}
