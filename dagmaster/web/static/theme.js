// Before the first paint: the chosen theme, otherwise that of the system.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    document.documentElement.dataset.theme = localStorage.getItem("theme") || (dark.matches ? "dark" : "light");
  };
  apply();
  dark.addEventListener("change", () => {
    apply();
    document.dispatchEvent(new CustomEvent("dm:theme"));
  });
  // Chosen in another tab.
  addEventListener("storage", (event) => event.key === "theme" && apply());
})();
