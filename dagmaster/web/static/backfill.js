// Jobs for times gone by: how many they would be is asked and said before one is started.
import { send, toast } from "./actions.js";
import { refreshNow } from "./live.js";

const MOST = 1000; // that the API starts at once
const dialog = document.getElementById("backfill");
const form = document.getElementById("backfill-form");
const said = document.getElementById("backfill-count");
const start = form.querySelector("[type=submit]");
let schedule = "";
let asked = 0;

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-backfill]");
  if (button) open(button.dataset);
  else if (event.target.closest("#backfill [data-close]")) dialog.close();
});

function open({ backfill, timezone }) {
  schedule = backfill;
  form.reset();
  dialog.querySelector("[data-name]").textContent = schedule;
  dialog.querySelector("[data-zone]").textContent = timezone;
  tell("Choose a range to see how many jobs it would start.");
  start.disabled = true;
  start.textContent = "Start";
  dialog.showModal();
}

const range = () => Object.fromEntries(new FormData(form));
const ask = (dry_run) => send(`/api/v1/schedules/${encodeURIComponent(schedule)}/backfill`, { body: { ...range(), dry_run } });

function tell(text, kind = "") {
  said.className = `notice ${kind}`;
  said.textContent = text;
}

form.addEventListener("input", async () => {
  start.disabled = true;
  const { start: from, end: until } = range();
  if (!from || !until) return;
  const mine = ++asked; // An answer to an older question is not shown.
  try {
    const found = await ask(true);
    if (mine === asked) count(found);
  } catch (error) {
    if (mine === asked) tell(error.message, "is-error");
  }
});

function count({ times, existing, left }) {
  const now = Math.min(left, MOST);
  const jobs = now === 1 ? "1 job" : `${now} jobs`;
  const had = existing ? ` ${existing} of its ${times} times have a job already.` : "";
  const rest = left > MOST ? ` ${left - MOST} are left for another time.` : "";
  tell(left ? `This starts ${jobs}.${had}${rest}` : `Nothing is to be started in this range.${had}`, left ? "is-warning" : "");
  start.disabled = left === 0;
  start.textContent = left ? `Start ${jobs}` : "Start";
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  start.disabled = true;
  try {
    const done = await ask(false);
    dialog.close();
    toast(`${done.submitted === 1 ? "1 job is" : `${done.submitted} jobs are`} started${done.left ? `; ${done.left} are left` : ""}`);
    await refreshNow();
  } catch (error) {
    tell(error.message, "is-error");
    start.disabled = false;
  }
});
