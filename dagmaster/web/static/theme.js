// Before the first paint: the chosen theme, otherwise that of the system.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    document.documentElement.dataset.theme = localStorage.getItem("theme") || (dark.matches ? "dark" : "light");
    document.dispatchEvent(new CustomEvent("dm:theme"));
  };
  apply();
  dark.addEventListener("change", apply);
  addEventListener("storage", (event) => event.key === "theme" && apply()); // Chosen in another tab.
})();
