// The command palette: pages, workflows, and jobs by ID or text.
import { element } from "./elements.js";

const dialog = () => document.getElementById("palette");
const PAUSE = 120; // milliseconds without a keystroke
let choices = [];
let chosen = 0;
let requests = 0;

export function openPalette() {
  const box = dialog();
  if (document.querySelector("dialog[open]")) return;
  const input = box.querySelector("input");
  input.value = "";
  box.showModal();
  input.focus();
  offer("");
}

function pages(text) {
  return [...document.querySelectorAll(".sidebar nav a")]
    .map((link) => ({ label: link.textContent.trim(), path: link.getAttribute("href"), hint: link.dataset.keys }))
    .filter(({ label }) => label.toLowerCase().includes(text));
}

async function offer(typed) {
  const text = typed.trim().toLowerCase();
  const request = ++requests;
  show(pages(text));
  await new Promise((resolve) => setTimeout(resolve, typed ? PAUSE : 0));
  if (request !== requests) return;
  try {
    const answer = await fetch(`/ui/palette?text=${encodeURIComponent(typed.trim())}`, { headers: { Accept: "application/json" } });
    const matches = answer.ok ? await answer.json() : [];
    if (request === requests) show([...pages(text), ...matches], true);
  } catch {
    // Pages can still be chosen.
  }
}

// The selection stays when the server adds matches.
function show(matches, isMore = false) {
  chosen = isMore ? Math.min(chosen, Math.max(0, matches.length - 1)) : 0;
  choices = matches;
  const list = dialog().querySelector("ul");
  list.replaceChildren(...matches.map((match, place) => {
    const item = Object.assign(element("li", "", match.label, element("small", "", match.hint ?? "")), { id: `choice-${place}`, role: "option" });
    item.addEventListener("click", () => location.assign(match.path));
    return item;
  }));
  if (!matches.length && isMore) list.append(Object.assign(element("li", "muted", "No matches"), { role: "option", ariaDisabled: "true" }));
  mark();
}

function mark() {
  const items = dialog().querySelectorAll("li[id]");
  for (const [place, item] of items.entries()) item.setAttribute("aria-selected", String(place === chosen));
  items[chosen]?.scrollIntoView({ block: "nearest" });
  dialog().querySelector("input").setAttribute("aria-activedescendant", items[chosen]?.id ?? "");
}

export function installPalette() {
  const box = dialog();
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-palette-open]")) openPalette();
    if (event.target === box) box.close();
  });
  box.querySelector("input").addEventListener("input", (event) => offer(event.target.value));
  box.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") chosen = Math.min(chosen + 1, choices.length - 1);
    else if (event.key === "ArrowUp") chosen = Math.max(chosen - 1, 0);
    // Otherwise browsers clear the field first.
    else if (event.key === "Escape") box.close();
    else if (event.key === "Enter" && choices[chosen]) return location.assign(choices[chosen].path);
    else return;
    event.preventDefault();
    mark();
  });
}
