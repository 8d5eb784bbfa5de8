// Follow a job: digests of its events change single nodes at once; counts and edges come with the whole graph, which is
// fetched whenever the page was refreshed, so that both agree, and otherwise now and then.
const GAP = 3000;
const MAX_WAIT = 8000;
const AGAIN = 5000; // how often an ended job is checked, in case somebody retries it

export class Follower {
  constructor(jobId, after, { onNode, fetchGraph, isOver }) {
    Object.assign(this, { jobId, after, onNode, fetchGraph, isOver, wait: 500, timer: null, fetched: Date.now(), cost: 0, looked: 0, isOld: false, busy: false });
    if (!isOver()) this.#connect();
    document.addEventListener("dm:refreshed", () => {
      this.#lookAgain();
      if (this.isOld) this.#fetch();
    });
    document.addEventListener("visibilitychange", () => !document.hidden && this.isOld && this.#fetchSoon());
  }

  #connect() {
    const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws/jobs/${this.jobId}?digest=1&after=${this.after}`);
    this.socket = socket;
    socket.onmessage = (message) => {
      this.wait = 500;
      this.#hear(JSON.parse(message.data));
    };
    socket.onclose = (event) => {
      this.socket = null;
      if (event.code === 1000 && this.isOld) this.#fetch();
      if (event.code === 1000 || event.code >= 4000) return; // It has ended, or it is not for us.
      setTimeout(() => this.#catchUp(), this.wait);
      this.wait = Math.min(this.wait * 2, MAX_WAIT);
    };
  }

  async #catchUp() {
    await this.#fetch();
    if (!this.socket) this.#connect();
  }

  #hear({ event_id: last, nodes }) {
    this.after = last;
    this.isOld = true;
    for (const entry of nodes) this.onNode(entry);
    this.#fetchSoon();
  }

  // A graph that is slow to fetch is fetched less often.
  #fetchSoon() {
    this.timer ??= setTimeout(async () => {
      this.timer = null;
      await this.#fetch();
    }, Math.max(100, this.fetched + Math.max(GAP, 4 * this.cost) - Date.now()));
  }

  // A hidden page requests nothing.
  async #fetch() {
    if (this.busy) return;
    this.isOld = document.hidden;
    if (this.isOld) return;
    clearTimeout(this.timer);
    Object.assign(this, { timer: null, busy: true });
    const begun = Date.now();
    await this.fetchGraph();
    this.fetched = Date.now();
    this.cost = this.fetched - begun;
    this.busy = false;
    if (this.isOld) this.#fetchSoon(); // Something has happened meanwhile.
  }

  #lookAgain() {
    if (this.socket || !this.isOver() || Date.now() - this.looked < AGAIN) return;
    this.looked = Date.now();
    this.#connect();
  }
}
