// Keep regions marked with data-live up to date. A socket signals changes; then the page is fetched
// again and its live regions are morphed, so that focus, open trees and scroll positions stay.
import { exact } from "./times.js";

const MIN_GAP = 1500; // milliseconds between two refreshes
const PATIENCE = 4; // a slow page is fetched less often: every so many times its own duration
const POLL = 10000; // where sockets are blocked
const SILENT = 12000; // without a message for so long the connection counts as lost
const FIRST_WAIT = 1000;
const MAX_WAIT = 8000;
const WORDS = { connecting: "connecting", live: "live", polling: "every 10 s", stale: "out of date" };

// `beat` is the newest known to the page, `refreshed` the time of the last response, `tried` that of the last request, and
// `cost` its duration.
const [visit] = performance.getEntriesByType("navigation");
const state = {
  socket: null, isRefused: false, wait: FIRST_WAIT, heard: Date.now(), refreshed: Date.now(), tried: Date.now() - MIN_GAP,
  cost: visit ? visit.responseEnd - visit.requestStart : 0, timer: null, busy: false, again: false, beat: beatOf(document),
};

// A page contains the beat after which it was rendered: it need not be fetched again for that beat.
function beatOf(page) {
  return Number(page.body.dataset.beat) || 0;
}

export function startLive() {
  Idiomorph.defaults.callbacks.beforeNodeMorphed = beforeNodeMorphed; // Also in what htmx morphs.
  if (!document.body.dataset.liveUrl) return;
  connect();
  setInterval(check, 1000);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    connect();
    refreshSoon();
  });
  // A page from the back-forward cache is as old as when it was left.
  addEventListener("pageshow", (event) => event.persisted && refreshSoon());
}

function connect() {
  if (state.socket || state.isRefused || document.hidden) return;
  const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${document.body.dataset.liveUrl}`);
  state.socket = socket;
  state.heard = Date.now();
  socket.onmessage = (message) => {
    const { beat } = JSON.parse(message.data);
    state.heard = Date.now();
    state.wait = FIRST_WAIT;
    if (beat === null) return show("stale");
    // Also at first: something may have changed between this page and its socket.
    if (beat > state.beat || isShown("stale")) refreshSoon();
    show("live");
    state.beat = Math.max(state.beat, beat);
  };
  socket.onclose = (event) => lost(socket, event.code);
}

// Perhaps only the socket is lost; a fetch of the page shows it.
async function lost(socket, code) {
  if (state.socket !== socket) return;
  state.socket = null;
  state.isRefused = code === 4403;
  if (state.isRefused) return show("polling");
  setTimeout(connect, state.wait * (0.8 + 0.4 * Math.random()));
  state.wait = Math.min(state.wait * 2, MAX_WAIT);
  if (document.hidden) return;
  if (!(await refreshNow({ ifChanged: true }))) show("stale");
  else if (!state.socket || isShown("stale")) show("polling");
}

function check() {
  if (state.socket && Date.now() - state.heard > SILENT) {
    // No response: the browser may take minutes to notice.
    const { socket } = state;
    socket.close();
    lost(socket, 1006);
  }
  if (isShown("polling") && Date.now() - state.tried > POLL && !document.hidden) refreshNow({ ifChanged: true });
}

const isShown = (name) => document.getElementById("live-state")?.dataset.state === name;

function show(name) {
  const live = document.getElementById("live-state");
  if (!live || isShown(name)) return;
  live.dataset.state = name;
  live.querySelector("span").textContent = WORDS[name];
  const stale = document.getElementById("stale");
  stale.hidden = name !== "stale";
  if (name === "stale") stale.querySelector("[data-stale-since]").textContent = exact(state.refreshed);
}

// Soon, but not too often; hidden pages fetch nothing.
export function refreshSoon() {
  if (state.timer || document.hidden || !document.querySelector("[data-live]")) return;
  state.timer = setTimeout(() => {
    state.timer = null;
    if (!document.hidden) refreshNow({ ifChanged: true });
  }, Math.max(0, state.tried + Math.max(MIN_GAP, PATIENCE * state.cost) - Date.now()));
}

// Whether the server has responded. Ended jobs have an ETag; while it is the same, the server renders nothing. A change of
// filters needs a new request even if one is in progress, and the filters themselves are morphed too.
export async function refreshNow({ ifChanged = false, isFiltered = false } = {}) {
  while (isFiltered && state.busy) await new Promise((resolve) => document.addEventListener("dm:idle", resolve, { once: true }));
  if (state.busy) {
    state.again = true;
    return true;
  }
  state.busy = true;
  state.tried = Date.now();
  try {
    const mark = ifChanged ? document.querySelector("[data-mark]")?.dataset.mark : "";
    const headers = { "X-Live": "1", Accept: "text/html", ...(mark && { "If-None-Match": mark }) };
    const answer = await fetch(location.href, { headers });
    // A dialog that stays shows something for the only time: the first key, which signs everybody out.
    if (answer.headers.has("X-Login") && !document.querySelector("dialog[data-stays][open]")) location.assign(answer.headers.get("X-Login"));
    if (answer.ok) {
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      state.beat = Math.max(state.beat, beatOf(fresh));
      morph(fresh, { isFiltered });
    } else if (answer.status !== 304) return answer.status < 500;
    state.refreshed = Date.now();
    state.cost = state.refreshed - state.tried;
    return true;
  } catch (error) {
    if (!(error instanceof TypeError)) throw error; // fetch raises a TypeError if the server is unreachable.
    return false;
  } finally {
    state.busy = false;
    document.dispatchEvent(new CustomEvent("dm:idle"));
    if (state.again) {
      state.again = false;
      refreshSoon();
    }
  }
}

export function morph(fresh, { isFiltered = false } = {}) {
  if (isFiltered) morphFilters(fresh);
  for (const region of document.querySelectorAll("[data-live]")) {
    const other = fresh.getElementById(region.id);
    if (other) Idiomorph.morph(region, other, { morphStyle: "outerHTML", callbacks: { beforeNodeMorphed, beforeAttributeUpdated } });
  }
  document.dispatchEvent(new CustomEvent("dm:refreshed"));
}

// Text being typed stays.
function morphFilters(fresh) {
  const others = fresh.querySelectorAll("form[data-filters]");
  document.querySelectorAll("form[data-filters]").forEach((form, place) => {
    if (others[place]) Idiomorph.morph(form, others[place], { morphStyle: "outerHTML", ignoreActiveValue: true });
  });
}

// Keep changes by scripts and users: data-keep, open details, selected boxes.
function beforeNodeMorphed(old) {
  return !(old.nodeType === Node.ELEMENT_NODE && old.hasAttribute("data-keep"));
}

function beforeAttributeUpdated(name, element) {
  if (name === "open" && element.tagName === "DETAILS") return false;
  if (name === "checked" && element.hasAttribute("data-check")) return false;
  return !(element.tagName === "TIME" && name === "title");
}
