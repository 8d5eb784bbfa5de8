// Tooltips of charts, for the pointer and for the keyboard. The server renders the shapes and live updates morph them, so
// all listeners are on the document.
import { element } from "./elements.js";
import { refreshSoon } from "./live.js";
import { exact } from "./times.js";

const LOOK_AGAIN = 30000; // milliseconds: the time axis moves even while nothing happens
let pointed = null;

function tip() {
  let box = document.querySelector(".tip");
  if (!box) {
    box = element("div", "tip");
    box.setAttribute("aria-hidden", "true"); // the element itself has the text as its label
    document.body.append(box);
  }
  return box;
}

function show(target) {
  pointed = target;
  const box = tip();
  box.hidden = false;
  const { tip: text, at: time } = target.dataset;
  box.textContent = time ? `${text}, ${exact(Date.parse(time))}` : text;
  const at = target.getBoundingClientRect();
  const { width, height } = box.getBoundingClientRect();
  const left = Math.min(Math.max(8, at.left + at.width / 2 - width / 2), window.innerWidth - width - 8);
  const above = at.top - height - 8;
  box.style.left = `${left}px`;
  box.style.top = `${above > 0 ? above : at.bottom + 8}px`;
}

function hide() {
  pointed = null;
  const box = document.querySelector(".tip");
  if (box) box.hidden = true;
}

for (const kind of ["pointerover", "focusin"]) {
  document.addEventListener(kind, (event) => {
    const target = event.target.closest?.("[data-tip]");
    if (target) show(target);
    else if (kind === "pointerover" && pointed && pointed !== document.activeElement) hide();
  });
}
document.addEventListener("focusout", hide);
document.addEventListener("scroll", hide, { capture: true, passive: true });
document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
document.addEventListener("dm:refreshed", () => pointed && (pointed.isConnected ? show(pointed) : hide()));

// The newest runs are on the right.
for (const box of document.querySelectorAll("[data-scroll-end]")) box.scrollLeft = box.scrollWidth;

setInterval(refreshSoon, LOOK_AGAIN);
