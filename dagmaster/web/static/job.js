// What the pages of jobs and nodes do by themselves: durations that go on, why it stands still, and signals that people send.
import { send, toast } from "./actions.js";
import { refreshNow } from "./live.js";
import { duration } from "./times.js";

// On a small screen the tab that is shown may lie beside it.
const tab = document.querySelector(".tabs [aria-current]");
if (tab) tab.parentElement.scrollLeft = tab.offsetLeft - (tab.parentElement.clientWidth - tab.offsetWidth) / 2;

setInterval(() => {
  for (const one of document.querySelectorAll("[data-since]")) {
    one.textContent = duration(Math.max(0, Math.floor((Date.now() - Date.parse(one.dataset.since)) / 1000)));
  }
}, 1000);

// Why a large job stands still takes a while to work out: asked for after the page, and not as often.
const LATER = 3000;
let later = null;
document.addEventListener("dm:refreshed", () => {
  later ??= setTimeout(() => {
    later = null;
    for (const one of document.querySelectorAll(".why-later")) {
      htmx.process(one); // It may have come with the refresh.
      htmx.trigger(one, "again");
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
    return toast('That is not JSON; a text goes between "quotes".', "failed");
  }
  try {
    await send(form.dataset.signal, { body });
    toast("The signal is sent");
    await refreshNow();
  } catch (error) {
    toast(error.message, "failed");
  }
});
