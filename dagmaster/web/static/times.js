// Relative times that stay true while the page is open.
const STEPS = [[60, 1, "s"], [3600, 60, "min"], [86400, 3600, "h"], [Infinity, 86400, "d"]];

export function since(then, now = Date.now()) {
  const seconds = (now - then) / 1000;
  const size = Math.abs(seconds);
  if (size < 2) return "now";
  const [, step, unit] = STEPS.find(([limit]) => size < limit);
  const said = `${Math.floor(size / step)} ${unit}`;
  return seconds > 0 ? `${said} ago` : `in ${said}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1).replace(/\.0$/, "")} s`;
  let rest = Math.round(seconds);
  const said = [];
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    const count = Math.floor(rest / size);
    rest %= size;
    if (count || said.length) said.push([count, unit]);
  }
  return said.slice(0, 2).filter(([count]) => count).map(([count, unit]) => `${count} ${unit}`).join(" ");
}

export function keepTimesFresh() {
  const update = () => {
    for (const one of document.querySelectorAll("time[data-ago]")) {
      const said = since(Date.parse(one.dateTime));
      if (one.textContent !== said) one.textContent = said;
    }
  };
  update();
  setInterval(update, 1000);
}
