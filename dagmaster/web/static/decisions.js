// Decisions about assets: a dialog asks for the fields that the API needs, and shows its errors.
import { askFrom, send, toast, toastLater, warnLater } from "./actions.js";
import { element } from "./elements.js";
import { refreshNow } from "./live.js";

const dialog = document.getElementById("decide");
const form = dialog.querySelector("form");
const [clearance, reason] = ["[data-clearance-field]", "[data-reason-field]"].map((name) => form.querySelector(name));
const level = clearance.querySelector("select");
const words = reason.querySelector("textarea");
const problem = form.querySelector(".problem");
const yes = form.querySelector("[data-decide-yes]");
const warnings = document.getElementById("decision-warnings");
let decision = null;

// A copy: the button may have changed by the time the user decides.
function ask(button) {
  decision = { ...button.dataset };
  form.reset();
  dialog.querySelector("#decide-title").textContent = decision.title;
  dialog.querySelector("#decide-text").textContent = decision.text;
  clearance.hidden = decision.clearance === undefined;
  reason.hidden = decision.reason === undefined;
  reason.querySelector("span").textContent = decision.reasonLabel ?? "";
  words.required = decision.required !== undefined;
  problem.hidden = true;
  yes.textContent = decision.yes;
  yes.className = `button ${button.classList.contains("danger") ? "danger" : "primary"}`;
  showPublicWarning();
  dialog.showModal();
  (words.required ? words : form.querySelector("[data-decide-close]")).focus();
}

function showPublicWarning() {
  const isPublic = !clearance.hidden && level.value === "public";
  form.querySelector("[data-public-warning]").hidden = !isPublic;
}

function request() {
  const body = decision.body ? JSON.parse(decision.body) : {};
  const text = reason.hidden ? "" : words.value.trim();
  if (!clearance.hidden) body.clearance_level = level.value;
  if (decision.method === "DELETE") {
    return [text ? `${decision.decide}?${new URLSearchParams({ [decision.reason]: text })}` : decision.decide, { method: "DELETE" }];
  }
  if (text) body[decision.reason] = text;
  return [decision.decide, { method: decision.method, body }];
}

async function decide() {
  const reply = await send(...request());
  dialog.close();
  if (decision.next) {
    toastLater(decision.done);
    warnLater(reply?.warnings ?? []);
    return location.assign(decision.next);
  }
  toast(decision.done);
  warn(reply?.warnings ?? []);
  await refreshNow();
}

// Warnings stay until the next decision, because the user has to act on them.
function warn(texts) {
  warnings.hidden = !texts.length;
  warnings.replaceChildren(...texts.map((text) => element("p", "notice is-warning", text)));
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-decide]");
  if (button && event.detail < 2) ask(button);
});
form.querySelector("[data-decide-close]").addEventListener("click", () => dialog.close());
level.addEventListener("change", showPublicWarning);
form.addEventListener("submit", (event) => {
  event.preventDefault();
  askFrom(yes, problem, decide);
});
