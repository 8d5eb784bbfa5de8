// Follow a job: its events change single nodes at once; counts and edges come with the whole graph, at most once a second.
const GAP = 1000;
const MAX_WAIT = 8000;
const AGAIN = 5000; // how often a job that has ended is looked at, in case somebody has it tried again
const STATUS_OF = {
  node_ready: "ready", node_dispatched: "dispatched", node_started: "running", node_completed: "completed",
  node_failed: "failed", node_retrying: "ready", node_skipped: "skipped", node_reopened: "pending",
};

export class Follower {
  constructor(jobId, after, { onNode, fetchGraph, isOver }) {
    Object.assign(this, { jobId, after, onNode, fetchGraph, isOver, wait: 500, timer: null, fetched: Date.now(), cost: 0, looked: 0, isOld: false });
    if (!isOver()) this.#connect();
    document.addEventListener("dm:refreshed", () => this.#lookAgain());
    document.addEventListener("visibilitychange", () => !document.hidden && this.isOld && this.#fetchSoon());
  }

  #connect() {
    const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws/jobs/${this.jobId}?after=${this.after}`);
    this.socket = socket;
    socket.onmessage = (message) => {
      this.wait = 500;
      this.#hear(JSON.parse(message.data));
    };
    socket.onclose = (event) => {
      this.socket = null;
      if (event.code === 1000 || event.code >= 4000) return; // It has ended, or it is not for us.
      setTimeout(() => this.#catchUp(), this.wait);
      this.wait = Math.min(this.wait * 2, MAX_WAIT);
    };
  }

  async #catchUp() {
    await this.#fetch();
    if (!this.socket) this.#connect();
  }

  #hear(entry) {
    this.after = entry.event_id;
    const status = entry.data?.ended_by === "cancelled" ? "cancelled" : STATUS_OF[entry.event_type];
    if (status) this.onNode(entry.node_id, status, entry);
    this.#fetchSoon();
  }

  // A graph that is slow to get is asked for less often.
  #fetchSoon() {
    this.timer ??= setTimeout(async () => {
      this.timer = null;
      await this.#fetch();
    }, Math.max(100, this.fetched + Math.max(GAP, 4 * this.cost) - Date.now()));
  }

  // A page that nobody sees asks for nothing.
  async #fetch() {
    this.isOld = document.hidden;
    if (this.isOld) return;
    const begun = Date.now();
    await this.fetchGraph();
    this.fetched = Date.now();
    this.cost = this.fetched - begun;
  }

  #lookAgain() {
    if (this.socket || !this.isOver() || Date.now() - this.looked < AGAIN) return;
    this.looked = Date.now();
    this.#connect();
  }
}
