// Start jobs for past scheduled times; the dialog shows how many before any is started.
import { send, toast } from "./actions.js";
import { refreshNow } from "./live.js";

const MOST = 1000; // jobs that the API starts per request
const dialog = document.getElementById("backfill");
const form = document.getElementById("backfill-form");
const notice = document.getElementById("backfill-count");
const start = form.querySelector("[type=submit]");
let schedule = "";
let requests = 0;

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

const number = (count) => count.toLocaleString("en");
const jobsOf = (count) => (count === 1 ? "1 job" : `${number(count)} jobs`);
const range = () => Object.fromEntries(new FormData(form));
const ask = (dry_run) => send(`/api/v1/schedules/${encodeURIComponent(schedule)}/backfill`, { body: { ...range(), dry_run } });

function tell(text, kind = "") {
  notice.className = `notice ${kind}`;
  notice.textContent = text;
}

form.addEventListener("input", async () => {
  start.disabled = true;
  const { start: from, end: until } = range();
  if (!from || !until) return;
  const request = ++requests; // Answers to older requests are dropped.
  try {
    const preview = await ask(true);
    if (request === requests) count(preview);
  } catch (error) {
    if (request === requests) tell(error.message, "is-error");
  }
});

function count({ times, existing, left }) {
  const jobs = jobsOf(Math.min(left, MOST));
  const had = existing ? ` ${number(existing)} of ${number(times)} times already have a job.` : "";
  const rest = left > MOST ? ` ${number(left - MOST)} more remain for another backfill.` : "";
  tell(left ? `This starts ${jobs}.${had}${rest}` : `No jobs to start in this range.${had}`, left ? "is-warning" : "");
  start.disabled = left === 0;
  start.textContent = left ? `Start ${jobs}` : "Start";
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  start.disabled = true;
  try {
    const done = await ask(false);
    dialog.close();
    toast(`Started ${jobsOf(done.submitted)}${done.left ? `; ${done.left} remain` : ""}`);
    await refreshNow();
  } catch (error) {
    tell(error.message, "is-error");
    start.disabled = false;
  }
});
