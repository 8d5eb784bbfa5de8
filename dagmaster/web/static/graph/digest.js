// The change that an event of a job's digest makes to the graph.
import { OVER } from "./states.js";

const STATUS_OF = {
  node_ready: "ready", node_dispatched: "dispatched", node_started: "running", node_completed: "completed",
  node_failed: "failed", node_retrying: "ready", node_skipped: "skipped", node_reopened: "pending",
};

// In progress when the job ended: not a failure of the node.
const ENDED_WITH_JOB = new Set(["revoked", "cancelled"]);

// null for events that change no node.
export function changeOf({ event_type: type, timestamp, data }) {
  const status = ENDED_WITH_JOB.has(data?.ended_by) ? "cancelled" : STATUS_OF[type];
  if (!status) return null;
  const change = { status, waits_for: null, completed_at: OVER.has(status) ? timestamp : null };
  return status === "running" ? { ...change, started_at: timestamp } : change;
}

// Event IDs are 64-bit numbers, which come as strings.
export const isNewer = (eventId, known) => BigInt(eventId) > BigInt(known);
