// The live log of one attempt. Lines are added in portions and only the last ones are kept, so that the page stays fast
// with a log of any size.
import { element } from "./elements.js";
import { matchCount, overwritten, shownLine, withoutEscapes } from "./log_text.js";

const MAX_LINES = 5000;
const PORTION = 400; // lines added at once
const AGAIN = 3000; // milliseconds until a log is requested again
const NEAR = 40; // pixels from the end that count as the end

const card = document.querySelector("[data-log]");
const part = (selector) => card.querySelector(selector);
const box = part(".log-lines");
const chooser = part("[data-log-attempt]");
const raw = part("[data-log-raw]");
const field = part("[data-log-search]");

// `isBegun` once the existing lines are read; `rest` is the line that is still being written, drawn as `open`.
const log = {
  attempt: null, isChosen: false, isBegun: false, read: 0, rest: "", open: null, queue: [], dropped: 0, isCut: false, abort: null,
  drawing: false, atEnd: true, isDone: false, decoder: null,
};
const search = { text: "", places: [], at: -1, earlier: 0 };

const known = () => JSON.parse(document.getElementById("log-data").textContent);

function state(text) {
  part(".log-state").textContent = text;
}

function note() {
  const isCut = log.isCut || log.dropped > 0;
  part(".log-note").hidden = !isCut;
  part(".log-note span").textContent = `Showing the last ${MAX_LINES.toLocaleString("en")} lines. Download the log to see all of them.`;
}

function fillChooser(attempts) {
  const numbers = attempts.map(({ number }) => number);
  if (chooser.dataset.shown !== numbers.join()) {
    chooser.replaceChildren(...numbers.map((number) => new Option(`Attempt ${number}`, number)));
    chooser.dataset.shown = numbers.join();
  }
  chooser.closest("label").hidden = attempts.length < 2;
  if (log.attempt !== null) chooser.value = log.attempt;
}

// Until the user chooses an attempt: the newest one with output.
function update() {
  const { attempts } = known();
  const begun = attempts.filter(({ bytes, status }) => bytes !== null || status === "running");
  const newest = (begun.length ? begun : attempts).at(-1);
  if (newest && !log.isChosen && log.attempt !== newest.number) open(newest.number);
  else if (log.attempt !== null && !log.abort && !log.isDone) follow();
  raw.hidden = !attempts.some(({ bytes }) => bytes !== null);
  if (!newest) state("not started yet");
  fillChooser(attempts);
}

function open(attempt) {
  log.abort?.abort();
  Object.assign(log, { attempt, isBegun: false, abort: null, atEnd: true, isDone: false });
  clear();
  raw.href = `${known().url}?attempt=${attempt}`;
  follow();
}

function clear() {
  Object.assign(log, { read: 0, rest: "", open: null, queue: [], dropped: 0, isCut: false, decoder: new TextDecoder() });
  box.replaceChildren();
  look();
  note();
}

// First the existing lines, then the stream of new ones. Browsers have few connections per host, so hidden pages close
// the stream.
async function follow() {
  const { url, attempts } = known();
  const attempt = attempts.find(({ number }) => number === log.attempt);
  if (!attempt || document.hidden) return;
  if (attempt.bytes === null && attempt.is_over) {
    log.isDone = true;
    return state("no output");
  }
  if (attempt.bytes === null && attempt.status !== "running") return state("not started yet");
  const abort = new AbortController();
  log.abort = abort;
  const ask = async (query) => {
    const answer = await fetch(`${url}?attempt=${log.attempt}&${query}`, { signal: abort.signal });
    if (!answer.ok) throw new Error((await answer.json().catch(() => null))?.error?.message ?? `the server answered ${answer.status}`);
    return answer;
  };
  try {
    if (attempt.bytes !== null && !log.isBegun) await takeLast(await ask(`tail=${MAX_LINES}`), abort);
    if (!attempt.is_over) {
      state("live");
      log.isBegun = true;
      await take(await ask(`follow=true&offset=${log.read}`), abort);
    } else if (log.read < attempt.bytes) await take(await ask(`offset=${log.read}`), abort);
    if (log.abort === abort) ended(attempt.is_over);
  } catch (error) {
    if (abort.signal.aborted) return;
    log.abort = null;
    state(`cannot be read: ${error.message}`);
    setTimeout(update, AGAIN);
  }
}

// The last lines end where the log ends; an interrupted read starts over.
async function takeLast(answer, abort) {
  clear();
  const size = Number(answer.headers.get("X-Log-Size"));
  await take(answer, abort);
  if (log.abort !== abort) return;
  log.isBegun = true;
  log.isCut = log.read < size;
  log.read = size;
  note();
}

async function take(answer, abort) {
  const reader = answer.body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done || log.abort !== abort) return;
    log.read += value.length;
    add(log.decoder.decode(value, { stream: true }));
  }
}

// The stream ends with the attempt, or because a server or a proxy closed it.
function ended(isOver) {
  log.abort = null;
  log.isDone = isOver;
  if (!isOver) {
    setTimeout(update, AGAIN);
    return;
  }
  if (log.rest) put(log.rest);
  log.rest = "";
  state(box.childElementCount || log.queue.length ? "" : "no output");
}

function add(text) {
  const lines = (log.rest + text).split("\n");
  log.rest = overwritten(lines.pop());
  for (const line of lines) put(line);
  drawSoon();
}

function put(line) {
  log.queue.push(line);
  if (log.queue.length > MAX_LINES) {
    log.dropped += log.queue.length - MAX_LINES;
    log.queue.splice(0, log.queue.length - MAX_LINES);
  }
  drawSoon();
}

function drawSoon() {
  if (log.drawing) return;
  log.drawing = true;
  requestAnimationFrame(draw);
}

function draw() {
  log.open?.remove();
  log.open = null;
  const portion = log.queue.splice(0, PORTION);
  const lines = portion.map(lineOf);
  box.append(...lines);
  if (log.rest && !log.queue.length) {
    log.open = lineOf(log.rest);
    box.append(log.open);
  }
  const over = box.childElementCount - MAX_LINES;
  if (over > 0) {
    log.dropped += over;
    for (let count = 0; count < over; count += 1) box.firstElementChild.remove();
  }
  if (search.text) look();
  if (over > 0 || log.dropped) note();
  if (log.atEnd) box.scrollTop = box.scrollHeight;
  log.drawing = log.queue.length > 0;
  if (log.drawing) requestAnimationFrame(draw);
}

const lineOf = (text) => element("div", "", shownLine(text));

// Mark the lines that contain the search text, and keep the current match.
function look() {
  const text = field.value.toLowerCase();
  const was = search.places[search.at];
  for (const line of search.places) line.classList.remove("hit", "current");
  search.text = text;
  search.places = text ? [...box.children].filter((line) => line.textContent.toLowerCase().includes(text)) : [];
  for (const line of search.places) line.classList.add("hit");
  search.at = search.places.indexOf(was);
  mark(search.text);
  count();
}

// Highlight the matches themselves, where the browser can do so without extra elements.
function mark(text) {
  if (!globalThis.Highlight) return;
  const ranges = [];
  for (const line of search.places) {
    const content = line.firstChild;
    const lower = content.data.toLowerCase();
    for (let at = lower.indexOf(text); at >= 0 && ranges.length < 20000; at = lower.indexOf(text, at + text.length)) {
      const range = new Range();
      range.setStart(content, at);
      range.setEnd(content, Math.min(at + text.length, content.length));
      ranges.push(range);
    }
  }
  CSS.highlights.set("log-hit", new Highlight(...ranges));
}

function count() {
  part(".log-count").textContent = matchCount(search.text, search.places.length, search.at, search.earlier);
}

// The page holds only the last lines; the server searches the earlier ones.
const PAUSE = 300; // milliseconds without a keystroke
const MOST = 200; // matches listed
let asking = null;

function lookEarlier() {
  clearTimeout(asking?.timer);
  asking?.abort.abort();
  const text = field.value;
  part(".log-earlier").hidden = true;
  search.earlier = 0;
  if (!text || !(log.isCut || log.dropped)) return;
  const abort = new AbortController();
  asking = { abort, timer: setTimeout(() => askEarlier(text, abort), PAUSE) };
}

async function askEarlier(text, abort) {
  const query = new URLSearchParams({ text, attempt: log.attempt, limit: MOST });
  let result;
  try {
    const answer = await fetch(`${known().url}/search?${query}`, { signal: abort.signal });
    if (!answer.ok) return;
    result = await answer.json();
  } catch {
    return; // Another search was started, or the server is unreachable, which the page shows.
  }
  if (abort.signal.aborted) return;
  const shownFrom = result.log_lines - box.childElementCount;
  const earlier = result.lines.filter((line) => line.number <= shownFrom);
  const details = part(".log-earlier");
  details.hidden = !earlier.length;
  const isAll = result.lines.length === result.total;
  const words = [isAll ? "" : "At least", earlier.length.toLocaleString("en"), search.places.length ? "more" : "", earlier.length === 1 ? "match" : "matches"];
  details.querySelector("summary").textContent = `${words.filter(Boolean).join(" ")} in earlier lines`;
  search.earlier = earlier.length;
  count();
  details.querySelector("ol").replaceChildren(...earlier.map(({ number, text: line }) =>
    element("li", "", element("b", "", number.toLocaleString("en")), withoutEscapes(line))));
}

function step(by) {
  const total = search.places.length;
  if (!total) return;
  search.places[search.at]?.classList.remove("current");
  search.at = search.at < 0 ? (by > 0 ? 0 : total - 1) : (search.at + by + total) % total;
  const line = search.places[search.at];
  line.classList.add("current");
  log.atEnd = false;
  box.scrollTop = line.offsetTop - box.clientHeight / 2;
  count();
}

box.addEventListener("scroll", () => {
  log.atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
  part(".log-end").hidden = log.atEnd;
});
part(".log-end").addEventListener("click", () => {
  log.atEnd = true;
  box.scrollTop = box.scrollHeight;
});
part("[data-log-wrap]").addEventListener("click", (event) => {
  const wraps = box.classList.toggle("wraps");
  event.currentTarget.setAttribute("aria-pressed", String(wraps));
  if (log.atEnd) box.scrollTop = box.scrollHeight;
});
field.addEventListener("input", () => {
  search.at = -1;
  look();
  lookEarlier();
  if (search.places.length) step(-1);
});
field.addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  step(event.shiftKey ? -1 : 1);
});
for (const button of card.querySelectorAll("[data-log-step]")) {
  button.addEventListener("click", () => step(Number(button.dataset.logStep)));
}
function choose(attempt) {
  log.isChosen = true;
  open(attempt);
  fillChooser(known().attempts);
}
chooser.addEventListener("change", () => choose(Number(chooser.value)));
document.addEventListener("click", (event) => {
  const link = event.target.closest("[data-show-log]");
  if (link) choose(Number(link.dataset.showLog));
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    log.abort?.abort();
    log.abort = null;
  } else update();
});
document.addEventListener("dm:refreshed", update);
update();
