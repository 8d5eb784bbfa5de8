// Keyboard shortcuts, except while a field has the focus.
import { refreshNow } from "./live.js";
import { openPalette } from "./palette.js";

const GAP = 1500;
let first = { key: "", at: 0 };

const isTyping = (target) => target.closest?.("input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]") != null;

export function installShortcuts() {
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return close();
    if ((event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      return openPalette();
    }
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || isTyping(event.target)) return;
    if (document.querySelector("dialog[open]")) return;
    const pair = Date.now() - first.at < GAP ? `${first.key} ${event.key}` : "";
    const place = pair && document.querySelector(`.sidebar [data-keys="${CSS.escape(pair)}"]`);
    first = { key: event.key, at: Date.now() };
    if (place) return location.assign(place.href);
    if (event.key === "r") refreshNow();
    else if (event.key === "?") document.getElementById("shortcuts").showModal();
    else if (event.key === "/") {
      event.preventDefault();
      openPalette();
    }
  });
}

function close() {
  const sidebar = document.getElementById("sidebar");
  if (sidebar?.classList.contains("open")) {
    showSidebar(false);
    document.querySelector("[data-toggle-sidebar]").focus();
  }
  document.dispatchEvent(new CustomEvent("dm:escape"));
}

// On small screens it overlays the page.
export function showSidebar(isOpen) {
  document.getElementById("sidebar").classList.toggle("open", isOpen);
  document.querySelector("[data-toggle-sidebar]").setAttribute("aria-expanded", String(isOpen));
}
