// The behaviour of every page: live regions, actions, shortcuts, the palette, times, copying.
import { startLive, refreshNow } from "./live.js";
import { installActions } from "./actions.js";
import { copy } from "./clipboard.js";
import { installFilters } from "./filters.js";
import { installPalette } from "./palette.js";
import { installShortcuts, showSidebar } from "./shortcuts.js";
import { keepTimesFresh } from "./times.js";

const on = (selector, act) =>
  document.addEventListener("click", (event) => {
    const element = event.target.closest(selector);
    if (element) act(element, event);
  });

on("[data-refresh]", () => refreshNow());
on("[data-reload]", () => location.reload());
on("[data-back]", () => (history.length > 1 ? history.back() : location.assign("/ui/")));
on("[data-theme-toggle]", () => {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  // Choosing the theme of the system means following the system again.
  const isSystems = matchMedia("(prefers-color-scheme: dark)").matches === (theme === "dark");
  if (isSystems) localStorage.removeItem("theme");
  else localStorage.setItem("theme", theme);
  document.documentElement.dataset.theme = theme;
  document.dispatchEvent(new CustomEvent("dm:theme"));
});
on("[data-toggle-sidebar]", () => {
  const sidebar = document.getElementById("sidebar");
  showSidebar(!sidebar.classList.contains("open"));
  sidebar.querySelector("nav a")?.focus();
});
document.addEventListener("click", (event) => {
  const isOpen = document.getElementById("sidebar")?.classList.contains("open");
  if (isOpen && !event.target.closest("#sidebar, [data-toggle-sidebar]")) showSidebar(false);
});
on("[data-copy]", ({ dataset: { copy: text } }) => copy(text, `Copied ${text.length > 60 ? "" : text}`.trim()));

installActions();
installFilters();
installPalette();
installShortcuts();
keepTimesFresh();
startLive();
