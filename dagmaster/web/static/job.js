// The pages of jobs and nodes: running durations, explanations that load later, and the form that sends signals.
import { send, toast } from "./actions.js";
import { refreshNow } from "./live.js";
import { duration } from "./times.js";

// On a small screen the current tab may be scrolled out of view.
const tab = document.querySelector(".tabs [aria-current]");
if (tab) tab.parentElement.scrollLeft = tab.offsetLeft - (tab.parentElement.clientWidth - tab.offsetWidth) / 2;

setInterval(() => {
  for (const span of document.querySelectorAll("[data-since]")) {
    span.textContent = duration(Math.max(0, Math.floor((Date.now() - Date.parse(span.dataset.since)) / 1000)));
  }
}, 1000);

// Explaining a large job takes a while: requested after the page, and less often.
const LATER = 3000;
let later = null;
document.addEventListener("dm:refreshed", () => {
  if (later !== null) return;
  later = setTimeout(() => {
    later = null;
    for (const box of document.querySelectorAll(".why-later")) {
      htmx.process(box); // The refresh may have added it.
      htmx.trigger(box, "again");
    }
  }, LATER);
});

document.addEventListener("submit", async (event) => {
  const form = event.target.closest("form[data-signal]");
  if (!form) return;
  event.preventDefault();
  const text = new FormData(form).get("data").trim();
  let body;
  try {
    body = text ? { data: JSON.parse(text) } : undefined;
  } catch {
    return toast('Not valid JSON. Put strings in "quotes".', "failed");
  }
  try {
    await send(form.dataset.signal, { body });
    toast("Signal sent");
    await refreshNow();
  } catch (error) {
    toast(error.message, "failed");
  }
});
