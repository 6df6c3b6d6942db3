// The conversation's messages on the page.

import { copyText, el, flash, icon } from "./dom.js";
import { colourClass, colourOf } from "./drafters.js";
import { count, number, percent, seconds } from "./format.js";
import { TokenText } from "./token_text.js";
import { inspectable } from "./token_tip.js";

const ENDS = { length: "cut at the longest answer", stopped: "stopped by you", error: "ended by an error" };

export function userMessage(text) {
  const label = el("span", { class: "hidden", text: "You said: " });
  return el("article", { class: "message user" }, el("div", { class: "body" }, label, text));
}

/** An answer's text, with its tokens. */
export class AnswerBody {
  constructor(label) {
    this.answer = null;
    this.reasoning = el("details", { class: "reasoning", hidden: true }, el("summary", { text: "Reasoning" }), el("div"));
    const text = el("div");
    this.text = new TokenText(text);
    this.problem = el("p", { class: "problem", role: "alert", hidden: true });
    const properties = { class: "answer", tabindex: "0", role: "group", "aria-label": label };
    properties["aria-description"] = "Arrow keys go through the tokens";
    this.element = el("div", properties, this.reasoning, text, this.problem);
    inspectable(this.element, () => this.answer);
  }

  show(answer, isDone) {
    this.answer = answer;
    this.reasoning.hidden = !answer.reasoning.text;
    this.reasoning.lastChild.textContent = answer.reasoning.text;
    this.text.show(answer);
    this.element.classList.toggle("caret", !isDone && !answer.text);
    this.element.setAttribute("aria-busy", String(!isDone));
    if (this.problem.hidden === Boolean(answer.problem)) {
      this.problem.hidden = !answer.problem;
      this.problem.textContent = answer.problem;
    }
  }
}

/** One answer with what is known about it and what can be done with it. */
export class AnswerMessage {
  /** actions: {retry, compare}, called with nothing. */
  constructor(actions) {
    this.body = new AnswerBody("Answer");
    this.facts = el("div", { class: "facts" });
    this.actions = el("div", { class: "actions", hidden: true });
    this.actions.append(
      button("copy", "Copy", (label) => copyText(this.body.answer.text).then(() => flash(label, "Copied"))),
      (this.retry = button("retry", "Retry", () => actions.retry())),
      (this.compare = button("compare", "Compare speeds", () => actions.compare())),
    );
    this.element = el("article", { class: "message assistant" }, this.body.element, this.facts, this.actions);
  }

  show(answer, isDone) {
    this.body.show(answer, isDone);
    this.facts.replaceChildren(...(answer.tokens.length ? [summary(answer), legend(answer)] : []));
    this.actions.hidden = !isDone;
  }

  /** Only the last answer can be made again. */
  setLast(isLast) {
    this.retry.hidden = this.compare.hidden = !isLast;
  }
}

function button(name, text, act) {
  const label = el("span", { text });
  return el("button", { type: "button", on: { click: () => act(label) } }, icon(name), label);
}

/** "120 tokens, 84.1 tokens/s, first token after 210 ms". */
export function summary(answer) {
  const line = el("span");
  const facts = [[count(answer.tokens.length, "token"), ""]];
  if (answer.speed !== null) facts.push([number(answer.speed), " tokens/s"]);
  if (answer.firstTokenSeconds !== null) facts.push([seconds(answer.firstTokenSeconds), " to the first"]);
  facts.forEach(([bold, rest], at) => line.append(at ? " · " : "", el("strong", { text: bold }), rest));
  const end = ENDS[answer.finish];
  if (end) line.append(` · ${end}`);
  return line;
}

/** Who made the tokens: a swatch, a name and a count for each source. */
export function legend(answer) {
  const list = el("ul", { class: "legend", "aria-label": "Where the tokens came from" });
  const sources = [...answer.sources].sort(([a], [b]) => (a === "") - (b === "") || colourOf(a) - colourOf(b));
  for (const [drafter, tokens] of sources) {
    const swatch = el("span", { class: drafter ? `swatch ${colourClass(drafter)}` : "swatch own" });
    const text = `${drafter || "model"} ${tokens} (${percent(tokens, answer.tokens.length)})`;
    list.append(el("li", {}, swatch, text));
  }
  return list;
}
