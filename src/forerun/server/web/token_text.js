// Text as spans, one for each token, so that each can be tinted and asked about.

import { blocks, ranges } from "./markdown.js";
import { colourClass } from "./drafters.js";
import { copyText, el, flash } from "./dom.js";

/** Shows an answer's text and keeps up with it: only blocks that changed are made again. */
export class TokenText {
  /** root: the element that holds the blocks. */
  constructor(root) {
    this.root = root;
    this.shown = []; // {key, element} of each block
  }

  show(answer) {
    const { text, places } = answer.content;
    const found = blocks(text);
    found.forEach((block, at) => {
      const key = `${block.kind} ${block.start} ${block.end} ${text.slice(block.start, block.end).length}`;
      if (this.shown[at]?.key === key && at < found.length - 1) return;
      const element = blockElement(answer, text, places, block);
      if (this.shown[at]) this.shown[at].element.replaceWith(element);
      else this.root.append(element);
      this.shown[at] = { key, element };
    });
    for (const { element } of this.shown.splice(found.length)) element.remove();
  }
}

function blockElement(answer, text, places, block) {
  const parts = ranges(text, block).map((range) => {
    const pieces = pieceNodes(answer, text, places, range);
    if (range.style === "code") return el("code", { class: "inline" }, ...pieces);
    return range.style === "bold" ? el("strong", {}, ...pieces) : pieces;
  });
  if (block.kind === "code") return codeElement(text.slice(block.start, block.end), block.language, parts.flat());
  const kind = { heading: "text heading", item: "text item", text: "text" }[block.kind];
  const element = el("div", { class: kind, role: block.kind === "heading" ? "heading" : null }, ...parts.flat());
  if (block.kind === "heading") element.setAttribute("aria-level", "3");
  if (block.depth) element.style.marginLeft = `${block.depth}em`;
  return element;
}

function codeElement(text, language, pieces) {
  const copy = el("button", { type: "button", text: "Copy" });
  copy.addEventListener("click", () => copyText(text).then(() => flash(copy, "Copied")));
  const head = el("div", { class: "code-head" }, el("span", { text: language || "code" }), copy);
  return el("div", { class: "code" }, head, el("pre", { tabindex: "0" }, el("code", {}, ...pieces)));
}

/** Nodes for the text of one range, cut where tokens begin and end. */
function pieceNodes(answer, text, places, { start, end }) {
  const nodes = [];
  let at = start;
  for (let i = firstPlace(places, start); i < places.length && places[i][0] < end; i += 1) {
    const [from, to, index] = places[i];
    if (from > at) nodes.push(text.slice(at, from));
    const [, drafter] = answer.tokens[index];
    const span = el("span", { class: drafter ? `tok ${colourClass(drafter)}` : "tok", "data-token": index, tabindex: "-1" });
    span.textContent = text.slice(Math.max(from, start), Math.min(to, end));
    nodes.push(span);
    at = Math.min(to, end);
  }
  if (at < end) nodes.push(text.slice(at, end));
  return nodes;
}

/** Index of the first place that ends behind `start`. */
function firstPlace(places, start) {
  let low = 0;
  let high = places.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (places[middle][1] > start) high = middle;
    else low = middle + 1;
  }
  return low;
}
