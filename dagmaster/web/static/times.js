// Times and durations in words, kept up to date while the page is open.
const STEPS = [[60, 1, "s"], [3600, 60, "min"], [86400, 3600, "h"], [Infinity, 86400, "d"]];

export function since(then, now = Date.now()) {
  const seconds = (now - then) / 1000;
  const size = Math.abs(seconds);
  if (size < 2) return "now";
  const [, step, unit] = STEPS.find(([limit]) => size < limit);
  const text = `${Math.floor(size / step)} ${unit}`;
  return seconds > 0 ? `${text} ago` : `in ${text}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (Math.round(seconds * 1000) < 1000) return `${Math.round(seconds * 1000)} ms`;
  if (Math.round(seconds * 10) < 600) return `${seconds.toFixed(1).replace(/\.0$/, "")} s`;
  let rest = Math.round(seconds);
  const parts = [];
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    const count = Math.floor(rest / size);
    rest %= size;
    if (count || parts.length) parts.push([count, unit]);
  }
  return parts.slice(0, 2).filter(([count]) => count).map(([count, unit]) => `${count} ${unit}`).join(" ");
}

// Times are in the reader's time zone unless they chose UTC; exact times name the zone.
const CHOICE = "zone";
const zone = () => (localStorage.getItem(CHOICE) === "utc" ? "UTC" : undefined);
const written = (options) => new Intl.DateTimeFormat("sv-SE", { timeZone: zone(), ...options });
let forms;

function makeForms() {
  const day = { year: "numeric", month: "2-digit", day: "2-digit" };
  const time = { hour: "2-digit", minute: "2-digit", second: "2-digit" };
  forms = {
    exact: written({ ...day, ...time }),
    clock: written({ ...time, fractionalSecondDigits: 3 }),
    minute: written({ hour: "2-digit", minute: "2-digit" }),
    day: new Intl.DateTimeFormat("en-GB", { timeZone: zone(), day: "2-digit", month: "short" }),
    zone: new Intl.DateTimeFormat("en-GB", { timeZone: zone(), timeZoneName: "short" }),
  };
}

const zoneName = (date) => forms.zone.formatToParts(date).find((part) => part.type === "timeZoneName").value;

export const exact = (date) => `${forms.exact.format(date)} ${zoneName(date)}`;
export const clock = (date) => forms.clock.format(date).replace(",", ".");

const WRITERS = {
  ago: (date) => since(date), exact, clock,
  minute: (date) => forms.minute.format(date),
  short: (date) => `${forms.day.format(date)} ${forms.minute.format(date)}`,
};

function writeTimes() {
  for (const element of document.querySelectorAll("time[data-time]")) {
    const date = Date.parse(element.dateTime);
    const text = WRITERS[element.dataset.time](date);
    if (element.textContent !== text) element.textContent = text;
    const title = exact(date);
    if (element.title !== title) element.title = title;
  }
  // Labels of charts match their tooltips.
  for (const element of document.querySelectorAll("[data-at][aria-label]")) {
    const label = `${element.dataset.tip}, ${exact(Date.parse(element.dataset.at))}`;
    if (element.ariaLabel !== label) element.ariaLabel = label;
  }
}

function writeZone() {
  makeForms();
  for (const button of document.querySelectorAll("[data-zone-toggle]")) {
    button.querySelector("span").textContent = zone() ? "Times in UTC" : `Times in ${zoneName(Date.now())}`;
    button.title = zone() ? "Show times in your own time zone" : "Show times in UTC";
  }
  writeTimes();
}

export function keepTimesFresh() {
  writeZone();
  setInterval(writeTimes, 1000);
  document.addEventListener("dm:refreshed", writeTimes);
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-zone-toggle]")) return;
    if (zone()) localStorage.removeItem(CHOICE);
    else localStorage.setItem(CHOICE, "utc");
    writeZone();
  });
}
