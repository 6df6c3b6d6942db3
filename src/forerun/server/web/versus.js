// Two answers to the same question, speculation off and on, side by side.

import { el } from "./dom.js";
import { count, number, seconds } from "./format.js";
import { AnswerBody, legend } from "./messages.js";

const TITLES = { off: "Speculation off", on: "Speculation on" };

/** Both answers; the one with speculation goes on in the conversation. */
export class VersusMessage {
  constructor() {
    this.sides = { off: new Side("off"), on: new Side("on") };
    this.verdict = el("div", { class: "verdict", hidden: true });
    const sides = el("div", { class: "versus-sides" }, this.sides.off.element, this.sides.on.element);
    const properties = { class: "message versus", "aria-label": "Comparison of speeds" };
    this.element = el("article", properties, sides, this.verdict);
  }

  /** answers: {off, on}, null for one that has not begun. */
  show(answers, isDone) {
    const fastest = Math.max(answers.off?.speed ?? 0, answers.on?.speed ?? 0);
    this.sides.off.show(answers.off, isDone || answers.on !== null, fastest);
    this.sides.on.show(answers.on, isDone, fastest);
    this.verdict.hidden = !isDone;
    if (isDone) this.verdict.replaceChildren(...verdict(answers));
  }

  setLast() {}
}

class Side {
  constructor(which) {
    this.body = new AnswerBody(`Answer, ${TITLES[which].toLowerCase()}`);
    this.speed = el("p", { class: "speed" });
    this.meter = el("span");
    this.facts = el("div", { class: "facts" });
    this.element = el("section", { class: `side ${which}`, "aria-label": TITLES[which] });
    const meter = el("div", { class: "meter", "aria-hidden": "true" }, this.meter);
    this.element.append(el("h3", { text: TITLES[which] }), this.speed, meter, this.facts, this.body.element);
  }

  show(answer, isDone, fastest) {
    const speed = answer?.speed ?? null;
    this.speed.replaceChildren(number(speed), el("small", { text: "tokens/s" }));
    this.meter.style.width = speed ? `${(100 * speed) / fastest}%` : "0";
    this.body.element.hidden = answer === null;
    if (answer === null) return this.facts.replaceChildren("waits for the other");
    this.body.show(answer, isDone);
    const first = answer.firstTokenSeconds;
    const line = el("span", { text: count(answer.tokens.length, "token") });
    if (first !== null) line.append(` · ${seconds(first)} to the first`);
    this.facts.replaceChildren(line, legend(answer));
  }
}

/** What the comparison came to. */
function verdict({ off, on }) {
  if (off?.problem || on?.problem) return ["One of the two failed, so there is nothing to compare."];
  if (!on || off.finish === "stopped" || on.finish === "stopped") return ["Stopped, so there is nothing to compare."];
  const nodes = [];
  if (on.speed && off.speed) nodes.push(el("strong", { text: `${(on.speed / off.speed).toFixed(2)}× as fast with speculation` }));
  const different = firstDifference(off.tokens, on.tokens);
  if (different < 0) {
    nodes.push(el("span", { class: "same", text: `✓ The answers are equal, token for token (${on.tokens.length})` }));
  } else {
    nodes.push(el("span", { class: "different", text: `✗ The answers differ from token ${different + 1} on` }));
  }
  return nodes;
}

/** Index of the first token whose id differs, -1 when there is none. */
function firstDifference(a, b) {
  const length = Math.max(a.length, b.length);
  for (let i = 0; i < length; i += 1) if (a[i]?.[3] !== b[i]?.[3]) return i;
  return -1;
}
