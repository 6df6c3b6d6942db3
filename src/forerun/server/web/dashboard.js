// The dashboard: what the engine is doing, four times a second while somebody looks.

import { ApiError, documents } from "./api.js";
import { BlockMap } from "./block_map.js";
import { Chart } from "./chart.js";
import { DraftersCard, RequestsCard, strip } from "./dashboard_cards.js";
import { el } from "./dom.js";
import { number, percent, seconds } from "./format.js";
import { History } from "./history.js";
import { failed, know } from "./server.js";

const RETRY_MS = 1500;

export class Dashboard {
  constructor(root) {
    this.root = root;
    this.history = new History();
    this.feed = null; // AbortController of the stream
    this.notice = el("p", { class: "problem", role: "status", hidden: true });
    this.strip = el("dl", { class: "strip", "aria-label": "Now" });
    this.blocks = new BlockMap();
    this.drafters = new DraftersCard();
    this.requests = new RequestsCard();
    this.charts = {
      tokens: new Chart({ title: "Tokens per second", kind: "area", format: number, series: [{ name: "tokens/s", colour: "--accent" }] }),
      rows: new Chart({
        title: "Rows per step", note: "square-root scale", kind: "area", power: 0.5, format: number,
        series: [{ name: "decoding", colour: "--accent" }, { name: "drafts", colour: "--d0" }, { name: "prompts", colour: "--d1" }],
      }),
      first: new Chart({ title: "Time to first token", note: "median of the last minute", kind: "dots", format: seconds, series: [{ name: "", colour: "--d2" }] }),
      accepted: new Chart({ title: "Drafts accepted", note: "last minute", kind: "line", max: 100, format: (value) => `${Math.round(value)} %`, series: [{ name: "", colour: "--d0" }] }),
    };
    const charts = el("div", { class: "grid two" }, ...Object.values(this.charts).map((chart) => chart.element));
    const wide = el("div", { class: "grid wide" }, this.blocks.element, this.drafters.element);
    const title = el("h2", { class: "hidden", text: "Dashboard" });
    root.append(el("div", { class: "sheet" }, title, this.notice, this.strip, charts, wide, this.requests.element));
    addEventListener("resize", () => this.redraw());
    document.addEventListener("themechange", () => this.redraw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
  }

  /** Begin or stop being fed. */
  watch(isWatching) {
    if (isWatching && !this.feed) this.#follow((this.feed = new AbortController()).signal);
    if (!isWatching && this.feed) {
      this.feed.abort();
      this.feed = null;
    }
  }

  /** Follow the stream until `signal` says so, beginning again when it breaks off. */
  async #follow(signal) {
    while (!signal.aborted) {
      try {
        for await (const document of documents("/v1/dashboard/stream", { signal })) this.show(document);
        this.#tell("The server stopped feeding the dashboard.");
      } catch (error) {
        if (error.name === "AbortError") return;
        if (!(error instanceof ApiError)) throw error;
        this.#tell(error.message);
        await failed(error);
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }

  #tell(problem) {
    this.notice.hidden = !problem;
    this.notice.textContent = problem;
    this.root.classList.toggle("stale", Boolean(problem));
  }

  show(document) {
    if (this.history.isNew(document)) know(document.server);
    if (!this.notice.hidden) this.#tell("");
    const minute = this.history.add(document);
    this.charts.tokens.show([minute.tokensPerSecond], `${number(minute.tokensPerSecond.at(-1))}`);
    this.charts.rows.show(minute.rowsPerStep, number(minute.lastRows));
    this.charts.first.show([minute.firstToken], seconds(minute.medianFirstToken));
    this.charts.accepted.show([minute.acceptance], percent(minute.accepted, minute.drafted));
    this.strip.replaceChildren(...strip(document, minute));
    this.blocks.show(document.blocks, document.memory);
    this.drafters.show(document.drafters);
    this.requests.show(document);
  }

  redraw() {
    for (const chart of Object.values(this.charts)) chart.draw();
    this.blocks.draw();
  }
}
