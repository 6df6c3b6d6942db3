// What stands where no conversation is yet.

import { el } from "./dom.js";

const EXAMPLES = [
  "Write a Python function that parses an ISO date, with three tests.",
  "Explain how rainbows form, step by step.",
  "List the planets of the solar system with one fact about each.",
  "Rewrite this more politely: send me the report today.",
];

/** choose: called with the example that was clicked. */
export function welcome(choose) {
  const tinted = el("span", { class: "sample tinted d0", text: "Tinted tokens" });
  const about = el("p", {}, tinted, " were guessed ahead by a drafter and confirmed by the model: the answer is the same as "
    + "without them, it only comes sooner. Point at a token, or use the arrow keys, to see how likely it was and who guessed it.");
  const examples = EXAMPLES.map((text) => el("button", { type: "button", text, on: { click: () => choose(text) } }));
  return el("div", { class: "welcome" }, el("h2", { text: "What would you like to know?" }), about, el("div", { class: "examples" }, ...examples));
}
