// What the tab remembers: the conversation, the settings and the last speeds. Gone when the tab is closed.

import { Answer } from "./answer.js";

const CONVERSATION = "forerun.conversation";

/** JSON under a key of the tab's storage; null when there is none or it cannot be read. */
export function load(key) {
  try {
    return JSON.parse(sessionStorage.getItem(key));
  } catch {
    return null;
  }
}

/** False when the tab's storage is full. */
export function save(key, value) {
  try {
    sessionStorage.setItem(key, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

/** Turns: {role: "user", text} or {role: "assistant", answer, versus}; versus is the answer without speculation. */
export function loadConversation() {
  const turns = load(CONVERSATION);
  if (!Array.isArray(turns)) return [];
  return turns.map((turn) => {
    if (turn.role === "user") return turn;
    return { role: "assistant", answer: new Answer(turn.answer), versus: turn.versus && new Answer(turn.versus) };
  });
}

/** Where there is no room for the tokens, the texts alone are kept. False when not even they fit. */
export function saveConversation(turns) {
  if (save(CONVERSATION, turns)) return true;
  const bare = (answer) => answer && { content: { text: answer.text, places: [] }, finish: answer.finish };
  const texts = turns.map((turn) => (turn.role === "user" ? turn : { role: turn.role, answer: bare(turn.answer) }));
  return save(CONVERSATION, texts);
}
