// The settings form: the system prompt and how answers are sampled. An empty field leaves the option to the server.

import { byId, el } from "./dom.js";
import { load, save } from "./store.js";

const KEY = "forerun.settings";
const DEFAULTS = { temperature: "0.7", top_p: "0.95", max_tokens: "512" };
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "max_tokens"];

const form = () => byId("settings-form");

/** Fill the form and remember what is typed. */
export function initSettings() {
  fill(load(KEY) ?? DEFAULTS);
  form().addEventListener("input", () => save(KEY, values()));
  form().addEventListener("submit", (event) => event.preventDefault());
  byId("settings-reset").addEventListener("click", () => {
    fill(DEFAULTS);
    save(KEY, DEFAULTS);
  });
  byId("settings-open").addEventListener("click", () => open(true));
  byId("settings-close").addEventListener("click", () => open(false));
  byId("settings").addEventListener("keydown", (event) => event.key === "Escape" && open(false));
  matchMedia("(width >= 900px)").addEventListener("change", () => open(false, false));
}

/** On narrow screens the settings lie over the conversation, which cannot be reached meanwhile. */
function open(isOpen, moveFocus = true) {
  byId("settings").classList.toggle("open", isOpen);
  byId("settings-open").setAttribute("aria-expanded", String(isOpen));
  for (const other of document.querySelectorAll(".thread, .bar")) other.inert = isOpen;
  if (moveFocus) byId(isOpen ? "settings-close" : "settings-open").focus();
}

/** The drafters to choose from. */
export function offerDrafters(names) {
  const select = form().elements.drafter;
  const chosen = select.value || (load(KEY)?.drafter ?? "");
  select.replaceChildren(el("option", { value: "", text: names.length ? "All that are loaded" : "None is loaded" }));
  for (const name of names) select.append(el("option", { value: name, text: name }));
  select.value = names.includes(chosen) ? chosen : "";
}

export const systemPrompt = () => form().elements.system.value.trim();

/** The request's speculation object with the switch on: null leaves it to the server. */
export function speculationOn() {
  const drafter = form().elements.drafter.value;
  return drafter ? { drafter } : null;
}

/** Sampling options of a request. The server judges them; it says what is wrong. */
export function sampling() {
  const options = {};
  for (const name of NUMBERS) {
    const text = form().elements[name].value.trim();
    if (text !== "") options[name] = Number(text);
  }
  return options;
}

function values() {
  return Object.fromEntries([...form().elements].filter((field) => field.name).map((field) => [field.name, field.value]));
}

function fill(saved) {
  for (const field of form().elements) if (field.name) field.value = saved[field.name] ?? "";
}
