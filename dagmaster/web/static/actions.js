// Buttons that call the API and show the outcome; destructive ones ask for confirmation first.
import { element } from "./elements.js";
import { refreshNow } from "./live.js";

const STAYS = { completed: 6000, failed: 20000, warning: 20000 };
const LATER = "toasts";

// Announced to screen readers too; stays while the pointer or the focus is in it.
export function toast(text, kind = "completed") {
  const close = element("button", "ghost tiny", "×");
  close.type = "button";
  close.ariaLabel = "Dismiss";
  const box = element("div", `toast is-${kind}`, element("span", "grow", text), close);
  close.addEventListener("click", () => box.remove());
  document.getElementById("toasts").append(box);
  const leave = () => (box.matches(":hover, :focus-within") ? setTimeout(leave, 1000) : box.remove());
  setTimeout(leave, STAYS[kind]);
}

// Shown on the next page.
export function toastLater(text, kind = "completed") {
  const waiting = JSON.parse(sessionStorage.getItem(LATER) ?? "[]");
  sessionStorage.setItem(LATER, JSON.stringify([...waiting, [text, kind]]));
}

export function warnLater(warnings) {
  for (const warning of warnings) toastLater(warning[0].toUpperCase() + warning.slice(1), "warning");
}

function toastFromBefore() {
  const waiting = JSON.parse(sessionStorage.getItem(LATER) ?? "[]");
  sessionStorage.removeItem(LATER);
  for (const [text, kind] of waiting) toast(text, kind);
}

// The API's response; throws an Error with the API's message. `text` is a body that is already JSON.
export async function send(path, { method = "POST", body = undefined, text = body && JSON.stringify(body) } = {}) {
  const headers = { "X-CSRF-Token": document.querySelector("meta[name=csrf-token]").content, Accept: "application/json" };
  if (text !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { method, headers, body: text });
  } catch {
    throw new Error("The server cannot be reached. The change was probably not made.");
  }
  if (answer.status === 401) {
    toastLater("You were signed out. The change was not made.", "failed");
    location.assign(`/ui/login?next=${encodeURIComponent(location.pathname + location.search)}`);
  }
  const reply = answer.status === 204 ? null : await answer.json().catch(() => null);
  if (!answer.ok) {
    const error = new Error(reply?.error?.message ?? `The server answered ${answer.status}.`);
    error.details = reply?.error?.details ?? [];
    error.status = answer.status;
    throw error;
  }
  return reply;
}

// Call the API from a form: its button is disabled meanwhile, and `problem` shows the error.
export async function askFrom(button, problem, ask) {
  button.disabled = true;
  problem.hidden = true;
  try {
    await ask();
  } catch (error) {
    problem.textContent = error.message;
    problem.hidden = false;
  } finally {
    button.disabled = false;
  }
}

// Resolves to null if the user declines, otherwise to the reason ("" without one).
export function confirmed({ title, text = "", yes = "Yes", reason = false, isDanger = true }) {
  const dialog = document.getElementById("confirm");
  dialog.querySelector("#confirm-title").textContent = title;
  dialog.querySelector("#confirm-text").textContent = text;
  const agree = dialog.querySelector("#confirm-yes");
  agree.textContent = yes;
  agree.className = `button ${isDanger ? "danger" : "primary"}`;
  const field = dialog.querySelector("#confirm-reason");
  field.hidden = !reason;
  field.querySelector("input").value = "";
  dialog.returnValue = "no";
  dialog.showModal();
  dialog.querySelector("[value=no]").focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "yes" ? field.querySelector("input").value : null);
    }, { once: true });
  });
}

async function act(button) {
  const { action, method, done, confirm, yes } = button.dataset;
  let body;
  if (confirm) {
    const isDanger = button.classList.contains("danger");
    const question = { title: confirm, text: button.dataset.text, yes, reason: "reason" in button.dataset, isDanger };
    const reason = await confirmed(question);
    if (reason === null) return;
    if (reason) body = { [button.dataset.reason]: reason };
  }
  button.disabled = true;
  button.classList.add("busy");
  try {
    const reply = await send(action, { method, body });
    const text = reply?.is_done === false ? `${done} (requested; takes effect when an orchestrator runs)` : done;
    if (button.dataset.next) {
      toastLater(text);
      return location.assign(button.dataset.next);
    }
    toast(text);
    await refreshNow();
  } catch (error) {
    toast(error.message, "failed");
  } finally {
    button.disabled = false;
    button.classList.remove("busy");
  }
}

export function installActions() {
  toastFromBefore();
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-action]");
    // An action changes the page: the second click of a double click would hit whatever is then under the pointer.
    if (button && event.detail < 2) act(button);
  });
}
