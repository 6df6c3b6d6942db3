// The chat: what is asked, what is answered, and the buttons around it.

import { announce, byId, el } from "./dom.js";
import { count, number } from "./format.js";
import { generate } from "./generate.js";
import { AnswerMessage, userMessage } from "./messages.js";
import { failed, server } from "./server.js";
import { sampling, speculationOn, systemPrompt } from "./settings.js";
import { load, loadConversation, save, saveConversation } from "./store.js";
import { VersusMessage } from "./versus.js";
import { welcome } from "./welcome.js";

const SPEEDS = "forerun.speeds";
const SWITCH = "forerun.speculation";

let turns = [];
let views = []; // one per turn
let running = null; // AbortController of what is being answered
const speeds = load(SPEEDS) ?? { on: null, off: null };

export function initChat() {
  turns = loadConversation();
  showAll();
  showSpeeds();
  const prompt = byId("prompt");
  byId("speculation").checked = load(SWITCH) ?? true;
  byId("speculation").addEventListener("change", (event) => save(SWITCH, event.target.checked));
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    if (running) running.abort();
    else ask(answerOnce);
  });
  byId("compare").addEventListener("click", () => ask(answerBothWays));
  byId("new-chat").addEventListener("click", clear);
  prompt.addEventListener("input", () => fit(prompt));
  prompt.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!running) ask(answerOnce);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && running && !document.querySelector("dialog[open], .settings.open")) running.abort();
  });
}

// ---- asking ----

/** Answer what is typed; with an empty field, and a question that was answered before, that one again. */
function ask(answer) {
  const prompt = byId("prompt");
  const text = prompt.value.trim();
  if (running || (!text && answer === answerOnce)) return prompt.focus();
  if (text) {
    prompt.value = "";
    fit(prompt);
    push({ role: "user", text });
  } else if (!dropLastAnswer()) {
    return prompt.focus();
  }
  return answer();
}

async function answerOnce() {
  const isOn = byId("speculation").checked;
  const turn = { role: "assistant", answer: null, versus: null };
  const view = new AnswerMessage(actions);
  const stream = begin(turn, view);
  turn.answer = await stream((answer) => view.show(answer, false), { speculation: isOn ? speculationOn() : { drafter: "off" } });
  remember(isOn ? "on" : "off", turn.answer);
  view.show(turn.answer, true);
  finish(turn.answer, `Answer complete, ${count(turn.answer.tokens.length, "token")}`);
}

/** The same request with speculation off and then on. Neither can use what the other left in the caches. */
async function answerBothWays() {
  const turn = { role: "assistant", answer: null, versus: null };
  const view = new VersusMessage();
  const stream = begin(turn, view);
  const seed = sampling().seed ?? random();
  view.show({ off: null, on: null }, false);
  const off = await stream((answer) => view.show({ off: answer, on: null }, false), {
    speculation: { drafter: "off" }, seed, salt: `compare-${random()}`,
  });
  let on = null;
  if (off.finish !== "stopped" && !off.problem) {
    on = await stream((answer) => view.show({ off, on: answer }, false), {
      speculation: speculationOn(), seed, salt: `compare-${random()}`,
    });
    if (!on.problem && on.finish !== "stopped") {
      remember("off", off);
      remember("on", on);
    }
  }
  Object.assign(turn, { answer: on ?? off, versus: on && off });
  if (on === null) showAll(); // an ordinary answer, one that was stopped or failed
  else view.show({ off, on }, true);
  finish(turn.answer, "Comparison complete");
}

const random = () => crypto.getRandomValues(new Uint32Array(1))[0] >>> 1;

/** Show a new turn; returns what streams an answer into it. */
function begin(turn, view) {
  const history = messages();
  running = new AbortController();
  setRunning(true);
  place(view);
  turns.push(turn);
  views.push(view);
  markLast();
  scrollDown(true);
  return (show, { speculation, seed, salt }) => {
    const options = { model: server.model ?? "", sampling: sampling(), speculation, salt, signal: running.signal };
    if (seed !== undefined) options.sampling.seed = seed;
    return generate(history, options, framed(show));
  };
}

/** At most one call a frame, with the last answer; a frame that comes after the end finds nothing to do. */
function framed(show) {
  let latest = null;
  let asked = false;
  return (answer) => {
    latest = answer;
    if (answer.finish) asked = false;
    if (answer.finish || asked) return;
    asked = true;
    requestAnimationFrame(() => {
      if (!asked) return;
      asked = false;
      show(latest);
      scrollDown(false);
    });
  };
}

function finish(answer, words) {
  running = null;
  setRunning(false);
  const isSaved = saveConversation(turns);
  scrollDown(false);
  announce(answer.problem || words);
  if (!isSaved) announce("This conversation is too long to be kept when the page is loaded again.");
  if (answer.error) failed(answer.error).then((hasKey) => hasKey && retry());
}

/** Messages for the server: the system prompt and the turns so far. */
function messages() {
  const system = systemPrompt();
  const said = turns.map((turn) => ({ role: turn.role, content: turn.role === "user" ? turn.text : turn.answer.text }));
  return [...(system ? [{ role: "system", content: system }] : []), ...said.filter(({ content }) => content)];
}

// ---- what can be done with answers ----

const actions = { retry, compare: () => ask(answerBothWays) };

function retry() {
  if (!running && dropLastAnswer()) answerOnce();
}

/** Take back the last answer; false when there is no question left to answer. */
function dropLastAnswer() {
  if (turns.at(-1)?.role === "assistant") {
    turns.pop();
    views.pop().element.remove();
  }
  return turns.at(-1)?.role === "user";
}

function clear() {
  running?.abort();
  turns = [];
  saveConversation(turns);
  showAll();
  byId("prompt").focus();
}

// ---- showing ----

function push(turn) {
  turns.push(turn);
  const view = { element: userMessage(turn.text), setLast() {} };
  views.push(view);
  place(view);
}

function place(view) {
  byId("conversation").querySelector(".welcome")?.remove();
  byId("conversation").append(view.element);
}

function showAll() {
  byId("conversation").replaceChildren();
  views = turns.map((turn) => {
    if (turn.role === "user") return { element: userMessage(turn.text), setLast() {} };
    const view = turn.versus ? new VersusMessage() : new AnswerMessage(actions);
    if (turn.versus) view.show({ off: turn.versus, on: turn.answer }, true);
    else view.show(turn.answer, true);
    return view;
  });
  for (const view of views) byId("conversation").append(view.element);
  if (!turns.length) byId("conversation").append(welcome((text) => fillPrompt(text)));
  markLast();
  scrollDown(true);
}

function markLast() {
  views.forEach((view, at) => view.setLast(at === views.length - 1));
}

function fillPrompt(text) {
  const prompt = byId("prompt");
  prompt.value = text;
  fit(prompt);
  prompt.focus();
}

function fit(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight}px`;
}

function setRunning(isRunning) {
  const send = byId("send");
  send.classList.toggle("stop", isRunning);
  send.setAttribute("aria-label", isRunning ? "Stop" : "Send");
  send.querySelector("use").setAttribute("href", isRunning ? "#icon-stop" : "#icon-send");
  byId("compare").disabled = isRunning;
}

/** Follow the text, unless the reader has scrolled up. */
function scrollDown(always) {
  const scroll = byId("scroll");
  const isNear = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 160;
  if (always || isNear) scroll.scrollTop = scroll.scrollHeight;
}

// ---- speeds ----

function remember(which, answer) {
  if (answer.speed === null || answer.problem) return;
  speeds[which] = answer.speed;
  save(SPEEDS, speeds);
  showSpeeds();
}

/** The last speed with speculation and the last without, beside the switch. */
function showSpeeds() {
  const parts = ["on", "off"].filter((which) => speeds[which] !== null).map((which) =>
    el("span", { class: "pairing" }, `${which} `, el("b", { text: number(speeds[which]) })));
  const unit = parts.length ? [el("span", { class: "unit", text: " tokens/s" })] : [];
  byId("speeds").replaceChildren(...parts, ...unit);
}
