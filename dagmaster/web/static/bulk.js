// Steer many jobs at once: how many is said before anything is done.
import { confirmed, send, toast } from "./actions.js";
import { refreshNow } from "./live.js";

const bar = document.querySelector("[data-bulk]");
const marked = new Set();

function show() {
  if (!bar) return;
  for (const box of document.querySelectorAll("[data-check]")) box.checked = marked.has(box.dataset.check);
  bar.hidden = marked.size === 0;
  bar.querySelector("[data-bulk-count]").textContent = marked.size;
}

document.addEventListener("change", (event) => {
  const { target } = event;
  if (target.matches("[data-check]")) marked[target.checked ? "add" : "delete"](target.dataset.check);
  else if (target.matches("[data-check-all]")) {
    for (const box of document.querySelectorAll("[data-check]")) marked[target.checked ? "add" : "delete"](box.dataset.check);
  } else return;
  show();
});
document.addEventListener("dm:refreshed", show);

document.addEventListener("click", async (event) => {
  if (event.target.closest("[data-bulk-clear]")) {
    marked.clear();
    return show();
  }
  const button = event.target.closest("[data-bulk-action]");
  if (!button) return;
  const n = marked.size === 1 ? "1 job" : `${marked.size} jobs`;
  const { bulkAction, confirm, yes } = button.dataset;
  const reason = await confirmed({ title: confirm.replace("{n}", n), yes, reason: "reason" in button.dataset });
  if (reason === null) return;
  const body = reason ? { reason } : undefined;
  const refused = [];
  let done = 0;
  for (const jobId of [...marked]) {
    try {
      await send(`/api/v1/jobs/${jobId}/${bulkAction}`, { body });
      done += 1;
      marked.delete(jobId);
    } catch (error) {
      if (error.status === 401) return; // The sign-in page comes.
      refused.push(error.message.includes(jobId) ? error.message : `${jobId}: ${error.message}`);
    }
  }
  if (done) toast(`${done === 1 ? "1 job is" : `${done} jobs are`} ${button.dataset.done}`);
  if (refused.length) toast(`${refused.length} not changed. ${refused[0]}`, "failed");
  show();
  await refreshNow();
});
