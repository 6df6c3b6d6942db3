// What is told about a token under the pointer or the keyboard's focus: probability and source.

import { byId, el } from "./dom.js";
import { colourClass } from "./drafters.js";

const MOVES = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 };

/** Let the tokens within `root` be asked about; `answer` gives the present answer. */
export function inspectable(root, answer) {
  const tip = byId("tooltip");
  const show = (span) => {
    const token = span && answer()?.tokens[span.dataset.token];
    if (!token) return hide();
    tip.replaceChildren(...describe(token));
    tip.hidden = false;
    place(tip, span);
    span.setAttribute("aria-describedby", "tooltip");
  };
  const hide = () => (tip.hidden = true);
  const tokenOf = (event) => event.target.closest?.("[data-token]");
  root.addEventListener("pointerover", (event) => show(tokenOf(event)));
  root.addEventListener("pointerleave", hide);
  root.addEventListener("focusin", (event) => (tokenOf(event) ? show(tokenOf(event)) : hide()));
  root.addEventListener("focusout", hide);
  root.addEventListener("click", (event) => show(tokenOf(event)));
  root.addEventListener("keydown", (event) => move(event, root));
}

/** Arrow keys go from token to token, Home and End to the first and last, Escape back to the answer. */
function move(event, root) {
  if (event.target !== root && !event.target.dataset?.token) return;
  if (event.key === "Escape" && event.target !== root) {
    root.focus();
  } else {
    const tokens = [...root.querySelectorAll("[data-token]")];
    const here = tokens.indexOf(event.target);
    const last = tokens.length - 1;
    let to = null;
    if (event.key in MOVES) to = here < 0 ? 0 : here + MOVES[event.key];
    else if (event.key === "Home") to = 0;
    else if (event.key === "End") to = last;
    if (to === null || last < 0) return;
    tokens[Math.max(0, Math.min(last, to))].focus();
  }
  event.preventDefault();
}

function describe([text, drafter, logprob, id]) {
  const facts = el("dl");
  const fact = (name, value) => facts.append(el("dt", { text: name }), value);
  if (logprob !== null) fact("Probability", el("dd", { text: chance(logprob) }));
  const source = el("dd", {});
  if (drafter) source.append(el("span", { class: `swatch ${colourClass(drafter)}` }), ` drafted by ${drafter}`);
  else source.append("the model itself");
  fact("Source", source);
  fact("Token", el("dd", { text: String(id) }));
  const shown = text.replaceAll("\n", "⏎").replaceAll(" ", "␣");
  const nodes = [el("div", { class: "token-text", text: shown || "(part of a character)" }), facts];
  if (logprob !== null) {
    const bar = el("span");
    bar.style.width = `${100 * Math.exp(logprob)}%`;
    nodes.push(el("div", { class: "chance", "aria-hidden": "true" }, bar));
  }
  return nodes;
}

function chance(logprob) {
  const percent = 100 * Math.exp(logprob);
  if (percent >= 99.995) return "> 99.99 %";
  return percent < 0.01 ? "< 0.01 %" : `${percent.toFixed(2)} %`;
}

/** Above the token where there is room, else below it. */
function place(tip, span) {
  const box = span.getClientRects()[0] ?? span.getBoundingClientRect();
  const size = tip.getBoundingClientRect();
  const left = Math.max(8, Math.min(box.left, innerWidth - size.width - 8));
  const above = box.top - size.height - 8;
  tip.style.left = `${left}px`;
  tip.style.top = `${above >= 8 ? above : box.bottom + 8}px`;
}
