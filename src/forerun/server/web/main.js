// The page: tabs, and everything started once.

import { initChat } from "./chat.js";
import { Dashboard } from "./dashboard.js";
import { byId } from "./dom.js";
import { askForKey, connect } from "./server.js";
import { initSettings } from "./settings.js";
import { initTheme } from "./theme.js";

const tabs = [...document.querySelectorAll('[role="tab"]')];
const dashboard = new Dashboard(byId("dashboard"));

function select(tab, moveFocus = false) {
  for (const other of tabs) {
    other.setAttribute("aria-selected", String(other === tab));
    other.tabIndex = other === tab ? 0 : -1;
    byId(other.getAttribute("aria-controls")).hidden = other !== tab;
  }
  if (moveFocus) tab.focus();
  watch();
}

/** The dashboard costs the server something, so it is fed only while it can be seen. */
function watch() {
  dashboard.watch(!byId("dashboard").hidden && document.visibilityState === "visible");
}

// With a slash it names no element, so that the browser does not scroll to one.
const hashOf = (tab) => `#/${tab.getAttribute("aria-controls")}`;
const tabOfHash = () => tabs.find((tab) => hashOf(tab) === location.hash) ?? tabs[0];

for (const tab of tabs) {
  tab.addEventListener("click", () => {
    history.replaceState(null, "", hashOf(tab));
    select(tab);
  });
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length].focus();
  });
}
addEventListener("hashchange", () => select(tabOfHash()));
document.addEventListener("visibilitychange", watch);
byId("key-button").addEventListener("click", async () => (await askForKey()) && connect());

initTheme();
initSettings();
initChat();
select(tabOfHash());
connect();
if (!matchMedia("(pointer: coarse)").matches && byId("dashboard").hidden) byId("prompt").focus();
