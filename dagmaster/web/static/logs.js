// The log of one attempt, live. Lines are added in portions and only the last ones are kept, so that a log of any size
// leaves the page quick.
const MAX_LINES = 5000;
const MAX_LENGTH = 4000; // characters of a line
const PORTION = 400; // lines added at once
const AGAIN = 3000; // milliseconds until a log is asked for again
const NEAR = 40; // pixels from the end that count as the end
const ANSI = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[@-Z\\-_])/g;

const card = document.querySelector("[data-log]");
const part = (selector) => card.querySelector(selector);
const box = part(".log-lines");
const chooser = part("[data-log-attempt]");
const raw = part("[data-log-raw]");
const field = part("[data-log-search]");

// `isBegun` once the lines that were there are read; `rest` is the line that is being
// written, drawn as `open`.
const log = { attempt: null, isChosen: false, isBegun: false, read: 0, rest: "", open: null, queue: [], dropped: 0, isCut: false, abort: null, drawing: false, atEnd: true, isDone: false, decoder: null };
const found = { text: "", places: [], at: -1 };

const known = () => JSON.parse(document.getElementById("log-data").textContent);

function state(text) {
  part(".log-state").textContent = text;
}

function note() {
  const isCut = log.isCut || log.dropped > 0;
  part(".log-note").hidden = !isCut;
  part(".log-note span").textContent = `Only the last ${MAX_LINES.toLocaleString("en")} lines are shown; the download has all of them.`;
}

function fillChooser(attempts) {
  const wanted = attempts.map((one) => `${one.number}`).join();
  if (chooser.dataset.shown !== wanted) {
    chooser.replaceChildren(...attempts.map((one) => new Option(`Attempt ${one.number}`, one.number)));
    chooser.dataset.shown = wanted;
  }
  chooser.closest("label").hidden = attempts.length < 2;
  if (log.attempt !== null) chooser.value = log.attempt;
}

// While nobody has chosen one, the newest attempt that has something to show.
function update() {
  const { attempts } = known();
  const begun = attempts.filter((one) => one.bytes !== null || one.status === "running");
  const newest = (begun.length ? begun : attempts).at(-1);
  if (newest && !log.isChosen && log.attempt !== newest.number) open(newest.number);
  else if (log.attempt !== null && !log.abort && !log.isDone) follow();
  raw.hidden = !attempts.some((one) => one.bytes !== null);
  if (!newest) state("nothing yet: it has not begun");
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

// What is there comes first, and then what is written from there on. A stream is one of the few connections that a
// browser has: a page that nobody sees gives it back.
async function follow() {
  const { url, attempts } = known();
  const one = attempts.find((other) => other.number === log.attempt);
  if (!one || document.hidden) return;
  if (one.bytes === null && one.is_over) {
    log.isDone = true;
    return state("it has written nothing");
  }
  if (one.bytes === null && one.status !== "running") return state("nothing yet: it has not begun");
  const abort = (log.abort = new AbortController());
  const ask = async (query) => {
    const answer = await fetch(`${url}?attempt=${log.attempt}&${query}`, { signal: abort.signal });
    if (!answer.ok) throw new Error((await answer.json().catch(() => null))?.error?.message ?? `the server answered ${answer.status}`);
    return answer;
  };
  try {
    if (one.bytes !== null && !log.isBegun) await takeLast(await ask(`tail=${MAX_LINES}`), abort);
    if (!one.is_over) {
      state("live");
      log.isBegun = true;
      await take(await ask(`follow=true&offset=${log.read}`), abort);
    } else if (log.read < one.bytes) await take(await ask(`offset=${log.read}`), abort);
    if (log.abort === abort) ended(one.is_over);
  } catch (error) {
    if (abort.signal.aborted) return;
    log.abort = null;
    state(`cannot be read now: ${error.message}`);
    setTimeout(update, AGAIN);
  }
}

// Where the last lines begin is known when they are read: they end where the log does. Who was interrupted begins anew.
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

// The stream ends with the attempt, or because a server or a proxy has closed it.
function ended(isOver) {
  log.abort = null;
  log.isDone = isOver;
  if (!isOver) {
    setTimeout(update, AGAIN);
    return;
  }
  if (log.rest) put(log.rest);
  log.rest = "";
  state(box.childElementCount || log.queue.length ? "" : "it has written nothing");
}

function add(text) {
  const lines = (log.rest + text).split("\n");
  log.rest = overwritten(lines.pop());
  for (const line of lines) put(line);
  drawSoon();
}

// As a terminal shows it: what comes behind a carriage return is written over what stood before it.
function overwritten(line) {
  const end = line.endsWith("\r") ? line.length - 2 : line.length;
  return line.slice(line.lastIndexOf("\r", end) + 1);
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
  if (found.text) look();
  if (over > 0 || log.dropped) note();
  if (log.atEnd) box.scrollTop = box.scrollHeight;
  log.drawing = log.queue.length > 0;
  if (log.drawing) requestAnimationFrame(draw);
}

function lineOf(text) {
  const line = document.createElement("div");
  const plain = overwritten(text.replace(ANSI, "")).replace(/\r$/, "");
  line.textContent = plain.length > MAX_LENGTH ? `${plain.slice(0, MAX_LENGTH)}… (${plain.length - MAX_LENGTH} more characters)` : plain;
  return line;
}

// Finding: which lines hold the text, and the one that is looked at.
function look() {
  const text = field.value.toLowerCase();
  const was = found.places[found.at];
  for (const line of found.places) line.classList.remove("hit", "current");
  found.text = text;
  found.places = text ? [...box.children].filter((line) => line.textContent.toLowerCase().includes(text)) : [];
  for (const line of found.places) line.classList.add("hit");
  found.at = found.places.indexOf(was);
  mark(found.text);
  count();
}

// The words themselves, where the browser can mark them without another element.
function mark(text) {
  if (!globalThis.Highlight) return;
  const ranges = [];
  for (const line of found.places) {
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
  const total = found.places.length;
  part(".log-count").textContent = !found.text ? "" : !total ? "not found" : found.at < 0 ? `${total} ${total === 1 ? "line" : "lines"}` : `${found.at + 1} of ${total}`;
}

// Only the last lines are here; the server looks through the others.
const PAUSE = 300; // milliseconds without another letter
const MOST = 200; // lines that are listed
let asking = null;

function lookEarlier() {
  clearTimeout(asking?.timer);
  asking?.abort.abort();
  const text = field.value;
  part(".log-earlier").hidden = true;
  if (!text || !(log.isCut || log.dropped)) return;
  const abort = new AbortController();
  asking = { abort, timer: setTimeout(() => askEarlier(text, abort), PAUSE) };
}

async function askEarlier(text, abort) {
  const query = new URLSearchParams({ text, attempt: log.attempt, limit: MOST });
  let said;
  try {
    const answer = await fetch(`${known().url}/search?${query}`, { signal: abort.signal });
    if (!answer.ok) return;
    said = await answer.json();
  } catch {
    return; // Another text is looked for, or the server is away, which the page says.
  }
  if (abort.signal.aborted) return;
  const shownFrom = said.log_lines - box.childElementCount;
  const earlier = said.lines.filter((line) => line.number <= shownFrom);
  const details = part(".log-earlier");
  details.hidden = !earlier.length;
  const isAll = said.lines.length === said.total;
  details.querySelector("summary").textContent = `Found ${isAll ? "" : "at least "}${earlier.length.toLocaleString("en")} more ${earlier.length === 1 ? "line" : "lines"} before those that are shown`;
  details.querySelector("ol").replaceChildren(...earlier.map(({ number, text: words }) => {
    const item = document.createElement("li");
    const place = document.createElement("b");
    place.textContent = number.toLocaleString("en");
    item.append(place, words.replace(ANSI, ""));
    return item;
  }));
}

function step(by) {
  const total = found.places.length;
  if (!total) return;
  found.places[found.at]?.classList.remove("current");
  found.at = found.at < 0 ? (by > 0 ? 0 : total - 1) : (found.at + by + total) % total;
  const line = found.places[found.at];
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
  found.at = -1;
  look();
  lookEarlier();
  if (found.places.length) step(-1);
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
