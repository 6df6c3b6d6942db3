// The dashboard's cards that are no charts: figures, drafters, requests.

import { requestColour } from "./canvas.js";
import { colourClass } from "./drafters.js";
import { el } from "./dom.js";
import { bytes, number, percent, seconds } from "./format.js";

/** The strip of figures on top: pairs of terms and values. */
export function strip({ running, waiting, server, totals, memory }, minute) {
  const preempted = totals.preemptions ? ` · ${totals.preemptions} preempted` : "";
  const failed = totals.failed_steps ? ` · ${totals.failed_steps} failed` : "";
  const figures = [
    ["Running", String(running), `of ${server.max_num_seqs} at most`],
    ["Waiting", String(waiting), `${totals.requests_ended.toLocaleString("en")} answered${preempted}`],
    ["Step", seconds(minute.stepSeconds), `${totals.steps.toLocaleString("en")} steps${failed}`],
    ["Busy", percent(Math.min(1, minute.busy), 1), "of the last second"],
    ["Prefix hits", percent(totals.cached_tokens, totals.prompt_tokens), `of ${totals.prompt_tokens.toLocaleString("en")} prompt tokens`],
    ["Memory", bytes(memory.resident_bytes), `KV ${bytes(memory.kv_bytes)}, weights ${bytes(memory.weights_bytes)}`],
  ];
  return figures.map(([name, value, note]) =>
    el("div", {}, el("dt", { text: name }), el("dd", { class: "figure", text: value }), el("dd", { class: "note", text: note })));
}

/** How much of what each drafter proposed was accepted, and at which depth. */
export class DraftersCard {
  constructor() {
    this.list = el("ul", { class: "drafters" });
    const head = el("div", { class: "card-head" }, el("h2", { text: "Acceptance by drafter" }), el("p", { class: "readout", text: "since start" }));
    this.element = el("section", { class: "card" }, head, this.list);
  }

  show(drafters) {
    const rows = Object.entries(drafters).map(([name, stats]) => drafterRow(name, stats));
    this.list.replaceChildren(...(rows.length ? rows : [el("li", { class: "note", text: "No drafter is loaded." })]));
  }
}

function drafterRow(name, { drafted, accepted, drafted_at, accepted_at }) {
  const share = el("span", { class: "share", text: percent(accepted, drafted) });
  const line = el("div", { class: "drafter-line" }, el("span", { class: `swatch ${colourClass(name)}` }), el("span", { class: "name", text: name }), share);
  const fill = el("span");
  fill.style.width = drafted ? `${(100 * accepted) / drafted}%` : "0";
  const bar = el("div", { class: "meter", "aria-hidden": "true" }, fill);
  const note = el("p", { class: "note", text: `${accepted.toLocaleString("en")} of ${drafted.toLocaleString("en")} tokens` });
  return el("li", { class: colourClass(name).replace("tinted ", "") }, line, bar, el("div", { class: "drafter-foot" }, note, depths(drafted_at, accepted_at)));
}

/** A column for each depth: how much of what was drafted there was accepted. */
function depths(drafted_at, accepted_at) {
  const described = drafted_at.map((drafted, at) => `${at + 1}: ${percent(accepted_at[at] ?? 0, drafted)}`);
  const columns = drafted_at.map((drafted, at) => {
    const column = el("span", {});
    const share = drafted ? (accepted_at[at] ?? 0) / drafted : 0;
    column.style.height = `${Math.max(6, 100 * share)}%`;
    return column;
  });
  const words = described.length ? `By depth, ${described.join(", ")}` : "";
  return el("div", { class: "depths", role: "img", "aria-label": words, title: words }, ...columns);
}

const COLUMNS = ["Request", "State", "Prompt", "Cached", "Output", "Drafts accepted", "First token", "Tokens/s"];

/** What runs, what waits, and the last that ended. */
export class RequestsCard {
  constructor() {
    this.body = el("tbody");
    const head = el("thead", {}, el("tr", {}, ...COLUMNS.map((name) => el("th", { scope: "col", text: name }))));
    const table = el("table", {}, el("caption", { class: "hidden", text: "Requests" }), head, this.body);
    const title = el("div", { class: "card-head" }, el("h2", { text: "Requests" }), el("p", { class: "readout", text: "running, waiting, and the last that ended" }));
    this.element = el("section", { class: "card" }, title, el("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Requests" }, table));
  }

  show({ requests, ended, running, waiting }) {
    const rows = [...requests, ...[...ended].reverse()].map(requestRow);
    const unlisted = (state, total) => total - requests.filter((one) => one.state === state).length;
    const notes = [[unlisted("running", running), "more run"], [unlisted("waiting", waiting), "more wait"]].filter(([number]) => number > 0);
    rows.splice(requests.length, 0, ...notes.map(([number, what]) => el("tr", {}, el("td", { colspan: COLUMNS.length, class: "note", text: `${number} ${what}` }))));
    if (!rows.length) rows.push(el("tr", {}, el("td", { colspan: COLUMNS.length, class: "note", text: "Nothing has been asked yet." })));
    this.body.replaceChildren(...rows);
  }
}

function requestRow(request) {
  const isLive = request.state === "running" || request.state === "waiting";
  const swatch = el("span", { class: "swatch" });
  if (request.state === "running") swatch.style.background = requestColour(request.id);
  const prefilling = request.state === "running" && !request.output_tokens;
  const cells = [
    prefilling ? `prompt, ${percent(request.computed_tokens, request.prompt_tokens)}` : request.state,
    request.prompt_tokens.toLocaleString("en"),
    request.cached_tokens.toLocaleString("en"),
    request.output_tokens.toLocaleString("en"),
    percent(request.accepted, request.drafted),
    seconds(request.first_token_s ?? null),
    number(request.tokens_per_s),
  ];
  const name = el("th", { scope: "row" }, swatch, String(request.id));
  return el("tr", { class: isLive ? "live" : "ended" }, name, ...cells.map((text) => el("td", { text })));
}
