// A chart of the last minute: areas on top of each other, a line, or dots.

import { niceMax, pageColour, prepare } from "./canvas.js";
import { el } from "./dom.js";

const [TOP, BOTTOM] = [8, 18]; // pixels for labels

export class Chart {
  /**
   * title, note  what it shows
   * kind         "area" (stacked), "line" or "dots"
   * format       a value as text
   * max          the highest value; left out: what the values need
   * power        of the vertical scale; below 1 low values are drawn larger
   * series       [{name, colour}], colour being one of the page's, "--accent" for example
   */
  constructor({ title, note = "", kind, format, max = null, power = 1, series }) {
    Object.assign(this, { title, kind, format, max, power, series, values: [], now: "", at: null });
    this.number = el("p", { class: "now" });
    this.readout = el("p", { class: "readout", text: note });
    this.note = note;
    this.canvas = el("canvas", { role: "img" });
    const names = series.length > 1 ? el("ul", { class: "legend" }, ...series.map(legendItem)) : null;
    const head = el("div", { class: "card-head" }, el("h2", { text: title }), this.readout);
    const line = el("div", { class: "now-line" }, this.number, names);
    this.element = el("section", { class: "card chart" }, head, line, this.canvas);
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerleave", () => this.#point(null));
  }

  /** values: per series an array over the last minute, oldest first, null where there is none. */
  show(values, now) {
    Object.assign(this, { values, now });
    this.number.textContent = now;
    this.draw();
  }

  #point(event) {
    const box = this.canvas.getBoundingClientRect();
    this.at = event && (event.clientX - box.left) / box.width;
    this.draw();
  }

  draw() {
    const ready = prepare(this.canvas);
    const length = this.values[0]?.length ?? 0;
    if (!ready || !length) return;
    const totals = this.values[0].map((_, i) => this.values.reduce((sum, one) => sum + (one[i] ?? 0), 0));
    const highest = Math.max(...totals);
    const max = this.max ?? niceMax(highest);
    this.canvas.setAttribute("aria-label", `${this.title}: ${this.now} now, at most ${this.format(highest)} in the last minute`);
    const { context, width, height } = ready;
    const x = (i) => (i / (length - 1)) * width;
    const y = (value) => TOP + (1 - (Math.min(value, max) / max) ** this.power) * (height - TOP - BOTTOM);
    grid(context, width, height, max, y, this);
    if (this.kind === "area") this.#areas(context, x, y);
    else if (this.kind === "line") this.#line(context, x, y);
    else this.#dots(context, x, y);
    this.#read(context, length, x, height);
  }

  #areas(context, x, y) {
    const base = this.values[0].map(() => 0);
    this.series.forEach(({ colour }, at) => {
      const top = base.map((value, i) => value + (this.values[at][i] ?? 0));
      context.beginPath();
      top.forEach((value, i) => context.lineTo(x(i), y(value)));
      const edge = new Path2D(); // where the series has something to show
      for (let i = 1; i < top.length; i += 1) {
        if (top[i] <= base[i] && top[i - 1] <= base[i - 1]) continue;
        edge.moveTo(x(i - 1), y(top[i - 1]));
        edge.lineTo(x(i), y(top[i]));
      }
      for (let i = base.length - 1; i >= 0; i -= 1) context.lineTo(x(i), y(base[i]));
      context.fillStyle = context.strokeStyle = pageColour(colour);
      context.globalAlpha = this.series.length > 1 ? 0.55 : 0.16;
      context.fill();
      context.globalAlpha = 1;
      context.lineWidth = 1.5;
      context.stroke(edge);
      top.forEach((value, i) => (base[i] = value));
    });
  }

  #line(context, x, y) {
    context.strokeStyle = pageColour(this.series[0].colour);
    context.lineWidth = 1.75;
    context.beginPath();
    let isDown = false;
    this.values[0].forEach((value, i) => {
      if (value === null) isDown = false;
      else if (isDown) context.lineTo(x(i), y(value));
      else {
        context.moveTo(x(i) - 1, y(value));
        context.lineTo(x(i), y(value));
        isDown = true;
      }
    });
    context.stroke();
  }

  #dots(context, x, y) {
    context.strokeStyle = context.fillStyle = pageColour(this.series[0].colour);
    this.values[0].forEach((value, i) => {
      if (value === null) return;
      context.globalAlpha = 0.35;
      context.fillRect(x(i) - 0.5, y(value), 1, y(0) - y(value));
      context.globalAlpha = 1;
      context.beginPath();
      context.arc(x(i), y(value), 3, 0, 7);
      context.fill();
    });
  }

  /** The values under the pointer. */
  #read(context, length, x, height) {
    if (this.at === null) {
      this.readout.textContent = this.note;
      return;
    }
    const i = Math.max(0, Math.min(length - 1, Math.round(this.at * (length - 1))));
    context.fillStyle = pageColour("--line-strong");
    context.fillRect(Math.round(x(i)), TOP, 1, height - TOP - BOTTOM);
    const ago = Math.round(((length - 1 - i) / (length - 1)) * 60);
    const text = this.series.map(({ name }, at) => {
      const value = this.values[at][i];
      return `${this.series.length > 1 ? `${name} ` : ""}${value === null ? "–" : this.format(value)}`;
    });
    this.readout.textContent = `${ago} s ago: ${text.join(", ")}`;
  }
}

function grid(context, width, height, max, y, { format, power }) {
  const middle = power < 1 ? 0.2 : 0.5;
  context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  context.fillStyle = pageColour("--muted");
  context.textBaseline = "alphabetic";
  context.textAlign = "left";
  context.fillText("1 min ago", 0, height - 3);
  context.textAlign = "right";
  context.fillText("now", width, height - 3);
  context.textAlign = "left";
  for (const part of [0, middle, 1]) {
    const at = Math.round(y(max * part)) + 0.5;
    context.fillStyle = pageColour("--line");
    context.fillRect(0, at, width, 1);
    context.fillStyle = pageColour("--muted");
    if (part) context.fillText(format(max * part), 0, at + 12);
  }
}

function legendItem({ name, colour }) {
  const swatch = el("span", { class: "swatch" });
  swatch.style.background = `var(${colour})`;
  return el("li", {}, swatch, name);
}
