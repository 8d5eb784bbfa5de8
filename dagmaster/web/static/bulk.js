// Control several jobs at once, after a confirmation with their number.
import { confirmed, send, toast } from "./actions.js";
import { refreshNow } from "./live.js";

const bar = document.querySelector("[data-bulk]");
const selected = new Set();

function show() {
  for (const box of document.querySelectorAll("[data-check]")) box.checked = selected.has(box.dataset.check);
  bar.hidden = selected.size === 0;
  bar.querySelector("[data-bulk-count]").textContent = selected.size;
}

document.addEventListener("change", (event) => {
  const { target } = event;
  if (target.matches("[data-check]")) selected[target.checked ? "add" : "delete"](target.dataset.check);
  else if (target.matches("[data-check-all]")) {
    for (const box of document.querySelectorAll("[data-check]")) selected[target.checked ? "add" : "delete"](box.dataset.check);
  } else return;
  show();
});
document.addEventListener("dm:refreshed", show);

document.addEventListener("click", async (event) => {
  if (event.target.closest("[data-bulk-clear]")) {
    selected.clear();
    return show();
  }
  const button = event.target.closest("[data-bulk-action]");
  if (!button) return;
  const jobs = (count) => (count === 1 ? "1 job" : `${count} jobs`);
  const { bulkAction, confirm, yes } = button.dataset;
  const reason = await confirmed({ title: confirm.replace("{n}", jobs(selected.size)), yes, reason: "reason" in button.dataset });
  if (reason === null) return;
  const body = reason ? { reason } : undefined;
  const refused = [];
  let done = 0;
  for (const jobId of [...selected]) {
    try {
      await send(`/api/v1/jobs/${jobId}/${bulkAction}`, { body });
      done += 1;
      selected.delete(jobId);
    } catch (error) {
      if (error.status === 401) return; // The browser is on its way to the sign-in page.
      refused.push(error.message.includes(jobId) ? error.message : `${jobId}: ${error.message}`);
    }
  }
  if (done) toast(button.dataset.done.replace("{n}", jobs(done)));
  if (refused.length) toast(`${jobs(refused.length)} not changed. ${refused[0]}`, "failed");
  show();
  await refreshNow();
});
