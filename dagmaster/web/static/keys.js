// Only the API's response contains a new key, so it stays visible until the user closes the dialog.
import { askFrom, send } from "./actions.js";
import { copy } from "./clipboard.js";
import { refreshNow } from "./live.js";

const form = document.getElementById("new-key");
const platforms = form.querySelector("[data-roles]");
const problem = document.getElementById("key-problem");
const dialog = document.getElementById("made-key");

function body() {
  const { name, role, platform, days } = Object.fromEntries(new FormData(form));
  const expires = Number(days) ? new Date(Date.now() + Number(days) * 86400000).toISOString() : null;
  return { name: name.trim(), role, platform_id: (mayHavePlatform() && platform) || null, expires_at: expires };
}

function mayHavePlatform() {
  return platforms.dataset.roles.split(" ").includes(form.elements.role.value);
}

function showPlatforms() {
  platforms.hidden = !mayHavePlatform();
}

form.elements.role.addEventListener("change", showPlatforms);
// After the fields have been reset.
form.addEventListener("reset", () => setTimeout(showPlatforms));
showPlatforms();

form.addEventListener("submit", (event) => {
  event.preventDefault();
  askFrom(form.querySelector("button"), problem, create);
});

async function create() {
  show(await send("/api/v1/keys", { body: body() }));
  form.reset();
}

function show({ name, key }) {
  dialog.querySelector("[data-name]").textContent = name;
  dialog.querySelector("[data-key]").textContent = key;
  dialog.showModal();
}

// Not with data-copy, which would show the key in a message.
dialog.querySelector("[data-copy-key]").addEventListener("click", () => {
  copy(dialog.querySelector("[data-key]").textContent, "Key copied");
});

dialog.addEventListener("close", () => {
  dialog.querySelector("[data-key]").textContent = "";
  refreshNow();
});
