// The KV cache as a map: one cell for each block, or for several where there are very many.

import { pageColour, prepare, requestColour } from "./canvas.js";
import { el } from "./dom.js";
import { bytes, count, percent } from "./format.js";

const [FREE, CACHED, SHARED, OTHERS, FIRST_OWNER] = [0, 1, 2, 3, 4]; // as in the server's documents
const MAX_CELLS = 6000;
const GAP = 1.5;

export class BlockMap {
  constructor() {
    this.canvas = el("canvas", { role: "img", class: "map" });
    this.number = el("p", { class: "now" });
    this.readout = el("p", { class: "readout" });
    this.facts = el("p", { class: "note" });
    const legend = el("ul", { class: "legend" });
    for (const [name, kind] of [["free", "free"], ["cached prefix", "cached"], ["shared", "shared"], ["one request's, in its colour", "owned"]]) {
      legend.append(el("li", {}, el("span", { class: `swatch ${kind}` }), name));
    }
    const head = el("div", { class: "card-head" }, el("h2", { text: "KV cache blocks" }), this.readout);
    const line = el("div", { class: "now-line" }, this.number, legend);
    this.element = el("section", { class: "card" }, head, line, this.canvas, this.facts);
    this.states = [];
    this.pointer = null;
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerleave", () => this.#point(null));
  }

  show({ total, owned, cached, block_size, map }, memory) {
    this.states = map.flatMap(([state, length]) => Array(length).fill(state));
    this.number.textContent = percent(owned, total);
    this.number.append(el("small", { text: "in use" }));
    const free = total - owned - cached;
    const words = `${count(owned, "block")} in use, ${cached.toLocaleString("en")} cached, ${free.toLocaleString("en")} free`;
    this.facts.textContent = `${words}; ${block_size} tokens each. ${bytes(memory.kv_owned_bytes)} of ${bytes(memory.kv_bytes)}.`;
    this.canvas.setAttribute("aria-label", `Map of ${count(total, "block")}: ${words}`);
    this.draw();
  }

  #point(event) {
    const box = this.canvas.getBoundingClientRect();
    this.pointer = event && { x: event.clientX - box.left, y: event.clientY - box.top };
    this.draw();
  }

  draw() {
    const { width } = this.canvas.getBoundingClientRect();
    if (!width || !this.states.length) return;
    const perCell = Math.ceil(this.states.length / MAX_CELLS);
    const cells = Math.ceil(this.states.length / perCell);
    const size = Math.max(4, Math.min(13, Math.sqrt((width * 150) / cells)));
    const columns = Math.floor(width / size);
    const height = Math.ceil(cells / columns) * size;
    if (Math.abs(parseFloat(this.canvas.style.height) - height) > 0.5 || !this.canvas.style.height) {
      this.canvas.style.height = `${height}px`;
    }
    const ready = prepare(this.canvas);
    if (!ready) return;
    const colours = { [FREE]: pageColour("--sunken"), [CACHED]: pageColour("--cached"), [SHARED]: pageColour("--text"), [OTHERS]: pageColour("--muted") };
    for (let cell = 0; cell < cells; cell += 1) {
      const state = perCell === 1 ? this.states[cell] : Math.max(...this.states.slice(cell * perCell, (cell + 1) * perCell));
      ready.context.fillStyle = colours[state] ?? requestColour(state - FIRST_OWNER);
      ready.context.beginPath();
      ready.context.roundRect((cell % columns) * size, Math.floor(cell / columns) * size, size - GAP, size - GAP, 2);
      ready.context.fill();
    }
    this.#read(columns, size, perCell);
  }

  #read(columns, size, perCell) {
    const cell = this.pointer && Math.floor(this.pointer.y / size) * columns + Math.floor(this.pointer.x / size);
    const block = cell === null ? null : cell * perCell;
    const state = this.states[block];
    if (block === null || state === undefined) {
      this.readout.textContent = "";
      return;
    }
    const words = { [FREE]: "free", [CACHED]: "a cached prefix", [SHARED]: "shared by several requests", [OTHERS]: "another tenant's" };
    this.readout.textContent = `Block ${block}: ${words[state] ?? `request ${state - FIRST_OWNER}`}`;
  }
}
