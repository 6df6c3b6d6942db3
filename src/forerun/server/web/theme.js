// Light, dark, or as the system has it.

import { byId } from "./dom.js";

const KEY = "forerun.theme";
const NEXT = { system: "light", light: "dark", dark: "system" };

export function initTheme() {
  apply(localStorage.getItem(KEY) ?? "system");
  byId("theme").addEventListener("click", () => apply(NEXT[document.documentElement.dataset.theme]));
}

function apply(theme) {
  const known = theme in NEXT ? theme : "system";
  document.documentElement.dataset.theme = known;
  localStorage.setItem(KEY, known);
  const words = `Colours: ${known}. Change to ${NEXT[known]}`;
  byId("theme").setAttribute("aria-label", words);
  byId("theme").title = words;
  document.dispatchEvent(new Event("themechange"));
}
