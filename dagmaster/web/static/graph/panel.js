// The panel beside the graph, rendered by the server: a node, or the items folded into it.
import { element } from "../elements.js";
import { icon } from "./cards.js";
import { TYPE_NAMES } from "./states.js";

export class Panel {
  constructor(root, { onClose }) {
    this.box = root.querySelector(".graph-panel");
    // The path of the panels of nodes; a workflow has none.
    this.place = root.dataset.panels;
    this.onClose = onClose;
    this.shown = null; // {node, part}
    this.box.addEventListener("click", (event) => {
      if (event.target.closest("[data-panel-close]")) this.close();
    });
    this.box.addEventListener("htmx:responseError", (event) => event.detail.target === this.box && this.#fail(event.detail.xhr.status));
    this.box.addEventListener("htmx:sendError", (event) => event.detail.target === this.box && this.#fail(0));
    // After a link inside the panel, its target is refreshed instead.
    this.box.addEventListener("htmx:beforeRequest", (event) => {
      if (event.detail.requestConfig?.verb === "get" && event.detail.elt !== this.box && event.detail.target === this.box) this.address = event.detail.pathInfo.requestPath;
    });
  }

  open(node, part = "panel") {
    const isNew = this.shown?.node !== node.node_id || this.shown.part !== part;
    this.shown = { node: node.node_id, part };
    this.box.hidden = false;
    if (!this.place) return this.#fill(node);
    this.address = `${this.place}${encodeURIComponent(node.node_id)}/${part}`;
    if (isNew) this.box.replaceChildren(element("div", "graph-panel-skeleton skeleton"));
    this.#load(isNew);
  }

  refresh() {
    if (this.shown && this.place && !this.busy) this.#load(false);
  }

  async #load(isNew) {
    const { address } = this;
    this.busy = true;
    try {
      await htmx.ajax("GET", address, { target: this.box, source: this.box, swap: isNew ? "innerHTML" : "morph:innerHTML" });
    } finally {
      this.busy = false;
    }
    if (isNew && address === this.address) this.focus();
  }

  #fail(status) {
    const reason = status ? `The server answered ${status}.` : "The server cannot be reached.";
    this.box.replaceChildren(header(this.shown?.node ?? ""), element("p", "notice is-failed", icon("alert-triangle"), reason));
  }

  focus() {
    this.box.querySelector("[data-panel-close]")?.focus();
  }

  close() {
    if (!this.shown) return false;
    const { node } = this.shown;
    this.shown = null;
    this.box.hidden = true;
    this.box.replaceChildren();
    this.onClose(node);
    return true;
  }

  // The panel of a workflow shows only the data of the graph.
  #fill(node) {
    const facts = element("dl", "facts");
    const details = { Type: TYPE_NAMES[node.type] ?? node.type, Handler: node.handler, Queue: node.queue, Timeout: node.timeout_seconds && `${node.timeout_seconds} s`, About: node.description };
    for (const [name, value] of Object.entries(details)) if (value) facts.append(element("dt", "", name), element("dd", "", String(value)));
    this.box.replaceChildren(header(node.node_id), facts);
    this.focus();
  }
}

function header(title) {
  const close = element("button", "ghost", icon("x"));
  close.type = "button";
  close.dataset.panelClose = "";
  close.setAttribute("aria-label", "Close panel");
  return element("header", "panel-head", element("h2", "", title), close);
}
