// An overview of a large graph in a corner, with a movable frame around the visible part.
import { palette, sized } from "./far.js";
import { HEIGHT, WIDTH } from "./layout.js";
import { displayState } from "./states.js";

const FEW = 6; // fewer are found without a map
const ROOM = { width: 190, height: 110, least: 40 };
const EDGE = 6;

export class Minimap {
  // `move(x, y)` centres that point of the graph.
  constructor(canvas, move) {
    this.canvas = canvas;
    this.move = move;
    this.drag = false;
    canvas.addEventListener("pointerdown", (event) => {
      this.drag = true;
      canvas.setPointerCapture(event.pointerId);
      this.#go(event);
      event.stopPropagation();
    });
    canvas.addEventListener("pointermove", (event) => this.drag && this.#go(event));
    canvas.addEventListener("pointerup", () => { this.drag = false; });
    canvas.addEventListener("pointercancel", () => { this.drag = false; });
  }

  #go(event) {
    const box = this.canvas.getBoundingClientRect();
    const ratio = ROOM.width / box.width; // It is smaller on small screens.
    const [x, y] = [(event.clientX - box.left) * ratio, (event.clientY - box.top) * ratio];
    this.move((x - this.left) / this.scale, (y - this.top) / this.scale);
  }

  // The image is cached until the graph changes; moving the view redraws only the frame.
  draw({ model, layout, transform: at, size }, changed) {
    const [left, top] = at.invert([0, 0]);
    const [right, bottom] = at.invert([size.width, size.height]);
    const isAllSeen = left <= 0 && top <= 0 && right >= layout.width && bottom >= layout.height;
    this.canvas.hidden = model.nodes.size <= FEW || (isAllSeen && !this.drag);
    this.isOld ||= changed;
    if (this.canvas.hidden) return;
    if (this.isOld || !this.picture) this.#paint(model, layout);
    this.isOld = false;
    const context = sized(this.canvas, ROOM.width, this.height);
    context.drawImage(this.picture, 0, 0, ROOM.width, this.height);
    context.strokeStyle = palette().accent;
    context.lineWidth = 2;
    context.strokeRect(this.left + left * this.scale, this.top + top * this.scale, (right - left) * this.scale, (bottom - top) * this.scale);
  }

  #paint(model, layout) {
    this.scale = Math.min((ROOM.width - 2 * EDGE) / layout.width, (ROOM.height - 2 * EDGE) / layout.height);
    this.height = Math.max(ROOM.least, Math.round(layout.height * this.scale + 2 * EDGE));
    this.canvas.style.aspectRatio = `${ROOM.width} / ${this.height}`;
    this.left = (ROOM.width - layout.width * this.scale) / 2;
    this.top = (this.height - layout.height * this.scale) / 2;
    this.picture = document.createElement("canvas");
    const context = sized(this.picture, ROOM.width, this.height);
    const colours = palette();
    for (const [id, { x, y }] of layout.places) {
      context.fillStyle = colours[displayState(model.nodes.get(id)).name] ?? colours.pending;
      const width = Math.max(WIDTH * this.scale, 1);
      context.fillRect(this.left + x * this.scale, this.top + y * this.scale, width, Math.max(HEIGHT * this.scale, 1));
    }
  }
}
