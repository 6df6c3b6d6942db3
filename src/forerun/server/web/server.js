// What the page knows about the server: its name, its drafters, whether it answers, and the key it may ask for.

import { ApiError, apiKey, request } from "./api.js";
import { byId } from "./dom.js";
import { setDrafters } from "./drafters.js";
import { offerDrafters } from "./settings.js";

const RETRY_MS = 2000;

export const server = { model: null };

let timer = null;

/** Ask the server who it is, until it answers. */
export async function connect() {
  clearTimeout(timer);
  timer = null;
  try {
    know((await (await request("/v1/dashboard")).json()).server);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    await failed(error);
  }
}

/** Take the server's own description. */
export function know(description) {
  server.model = description.model;
  setDrafters(description.drafters);
  offerDrafters(description.drafters);
  byId("model-name").textContent = description.model;
  document.title = `${description.model} · forerun`;
  setStatus("up", "Connected");
}

/** Something failed: show it, ask for a key when it is for want of one, look for the server when it is gone. True when a
 * key was given, so that it may be tried again. */
export async function failed(error) {
  if (error.status === 401) {
    setStatus("down", "Key needed");
    if (!(await askForKey(error.message))) return false;
    await connect();
    return true;
  } if (error.status === 0) {
    setStatus("down", "Not reachable");
    timer ??= setTimeout(connect, RETRY_MS);
  } else {
    setStatus("up", "Connected");
  }
}

function setStatus(state, text) {
  const status = byId("status");
  if (status.dataset.state === state && status.textContent === text) return;
  status.dataset.state = state;
  status.textContent = status.title = text;
}

let asking = null;

/** Show the dialog for a key; true when one was given. One dialog at a time. */
export function askForKey(reason = "") {
  asking ??= new Promise((resolve) => {
    const dialog = byId("key-dialog");
    const field = byId("key");
    byId("key-reason").textContent = reason || "Needed only where the server asks for one.";
    field.value = apiKey.get();
    byId("key-cancel").onclick = () => dialog.close("cancel");
    byId("key-form").onsubmit = () => apiKey.set(field.value.trim());
    dialog.onclose = () => {
      asking = null;
      resolve(dialog.returnValue !== "cancel");
    };
    dialog.returnValue = "cancel";
    dialog.showModal();
    field.focus();
  });
  return asking;
}
