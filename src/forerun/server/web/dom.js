// Making elements. Text only ever becomes text: nothing here parses HTML.

/** An element. Properties: class, text, on (listeners), everything else is an attribute; false and null are left out. */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === false || value === null || value === undefined) continue;
    if (name === "class") element.className = value;
    else if (name === "text") element.textContent = value;
    else if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** One of the page's icons. */
export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#icon-${name}`);
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

export const byId = (id) => document.getElementById(id);

/** Say something to screen readers. */
export function announce(text) {
  byId("announcer").textContent = text;
}

/** Copy text, also where the page is not served securely and browsers hide the clipboard. */
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = el("textarea", { class: "hidden" });
  const before = document.activeElement;
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  before?.focus();
}

/** A button's word changes for a moment, to say that it worked. */
export function flash(label, text) {
  const before = label.textContent;
  label.textContent = text;
  announce(text);
  setTimeout(() => (label.textContent = before), 1500);
}
