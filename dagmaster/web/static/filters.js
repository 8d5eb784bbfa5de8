// Filters apply at once, even while typing. They are part of the URL, and only live regions of the page change.
import { refreshNow } from "./live.js";

const PAUSE = 250; // milliseconds without a keystroke
let typing;
let current = location.search;

const filtersOf = (target) => target.closest?.("form[data-filters]");
const isTyped = (field) => field.matches("input[type=search], input[type=text]");

async function filter(form, { isTyping = false } = {}) {
  clearTimeout(typing);
  const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""));
  const address = new URL(form.action);
  address.search = query;
  if (address.search === location.search) return;
  if (!document.querySelector("[data-live]")) return location.assign(address);
  address.hash = location.hash;
  // One history entry for a whole word, not for each letter.
  if (isTyping) history.replaceState(history.state, "", address);
  else history.pushState(null, "", address);
  current = location.search;
  form.ariaBusy = "true";
  await refreshNow({ isFiltered: true });
  for (const other of document.querySelectorAll("form[data-filters]")) other.ariaBusy = "false";
}

export function installFilters() {
  document.addEventListener("input", (event) => {
    const form = filtersOf(event.target);
    if (!form || !isTyped(event.target) || event.isComposing) return;
    clearTimeout(typing);
    typing = setTimeout(() => filter(form, { isTyping: true }), PAUSE);
  });
  document.addEventListener("change", (event) => {
    const form = filtersOf(event.target);
    if (form) filter(form, { isTyping: isTyped(event.target) });
  });
  document.addEventListener("submit", (event) => {
    const form = filtersOf(event.target);
    if (!form) return;
    event.preventDefault();
    filter(form, { isTyping: true });
  });
  addEventListener("popstate", () => location.search !== current && location.reload());
  // After "back", browsers restore old form values, but the page must match the URL.
  addEventListener("pageshow", () => {
    for (const form of document.querySelectorAll("form[data-filters]")) form.reset();
  });
}
