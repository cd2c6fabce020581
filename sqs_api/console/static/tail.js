// The live tail of a queue: messages as they come, the newest first. Nothing is received.

import { keep, stateOf } from "./address.js";
import { get, needs, ofQueue } from "./api.js";
import * as commands from "./commands.js";
import { button, command, el, field, fill, link, row, table, time } from "./dom.js";
import { bytes, count, local } from "./format.js";
import { needed, resource } from "./resource.js";
import { shownText } from "./unseen_characters.js";

const REFRESH_MS = 1500;
const SHOWN_MAX = 200;
const COLUMNS = [["Came", "wide"], ["Message", "name"], ["State", "wide"], ["Size", "number wide"], ["Body", "body"]];
const DEFAULTS = { text: "" };

/** The newest messages first, each once, and no more than are shown. */
export function merged(known, came, most = SHOWN_MAX) {
  const seen = new Set(known.map(({ message_id: id }) => id));
  const fresh = came.filter(({ message_id: id }) => !seen.has(id));
  return [...fresh.toReversed(), ...known].slice(0, most);
}

/** True for a message whose body, id or group has this text. */
export function hasText({ body, message_id: id, group_id: group }, text) {
  const wanted = text.toLowerCase();
  return [body, id, group].some((each) => (each ?? "").toLowerCase().includes(wanted));
}

export async function showTail(screen) {
  const { view, parts: [name], query, signal, fail } = screen;
  const queue = await needed(screen, "The queue", (mine) => get(ofQueue(name), {}, mine));
  needs(queue, "holdfast:BrowseMessages");
  const address = stateOf(query, DEFAULTS);
  const text = el("input", { type: "search", name: "text", value: address.text });
  const state = { messages: [], token: "", came: 0, leftOut: 0, isPaused: false };
  const list = resource({ what: "The tail", ask, show, signal, fail });

  async function ask(mine) {
    if (state.isPaused) return state;
    const page = await get(ofQueue(name, "/tail"), { token: state.token }, mine);
    const before = state.messages.length;
    if (state.token) state.came += page.messages.length + page.left_out;
    Object.assign(state, {
      messages: merged(state.messages, page.messages), token: page.next, leftOut: state.leftOut + page.left_out,
    });
    return before || page.messages.length ? { ...state } : state;
  }

  function show() {
    const found = state.messages.filter((each) => hasText(each, text.value));
    return [
      el("p", { class: "actions", role: "status" },
        el("span", {}, state.isPaused ? "Paused." : "Live."),
        el("span", { class: "hint" }, `${count(state.came)} came since this was opened`
          + (state.leftOut ? `, ${count(state.leftOut)} of them too fast to be shown.` : "."))),
      found.length
        ? table(COLUMNS, found.map(line), "Messages as they come")
        : el("p", { class: "empty" }, state.messages.length ? "No message here has this text."
          : "Nothing came so far. What is received and deleted at once is not seen here."),
      command(commands.tail(name)),
    ];
  }

  function line(message) {
    const body = message.body ?? (message.is_masked ? "masked" : "cannot be opened");
    return row(COLUMNS, [
      time(message.sent_at_ms, local(message.sent_at_ms).slice(11)),
      link(`${message.message_id.slice(0, 8)}…`, `#/queues/${name}/messages/${message.sequence}`,
        { title: message.message_id }),
      message.state,
      bytes(message.size),
      el("code", { class: message.body === null ? "masked" : "" }, shownText(body.slice(0, 300))),
    ], { "data-key": message.message_id });
  }

  function turn() {
    state.isPaused = !state.isPaused;
    fill(controls, buttons());
    list.show();
    if (!state.isPaused) list.read();
  }

  function clear() {
    Object.assign(state, { messages: [], came: 0, leftOut: 0 });
    list.show();
  }

  function buttons() {
    return [button(state.isPaused ? "Go on" : "Pause", turn), button("Clear", clear)];
  }

  text.addEventListener("input", () => {
    keep(`/queues/${name}/tail`, { text: text.value }, DEFAULTS);
    list.show();
  });
  const controls = el("span", { class: "actions" }, buttons());
  fill(
    view,
    el("h1", {}, "Live tail of ", name),
    !queue.may.includes("holdfast:ReadMessageBodies")
      && el("p", { class: "notice" }, "Bodies are masked: your policies do not allow holdfast:ReadMessageBodies."),
    el("div", { class: "search" }, field("Only with this text", text), controls),
    list.place,
  );
  await list.watch(REFRESH_MS);
}
