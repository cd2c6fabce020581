// The command palette: queues, screens, and what can be done on this screen, by a few letters.

import { addressOf } from "./address.js";
import { caller, get, latest } from "./api.js";
import { el, fill } from "./dom.js";
import { count } from "./format.js";

const SHOWN_MAX = 12;
const PAUSE_MS = 150;
const MESSAGE_ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;
/** Places of a queue, with what they need. @type {[text: string, rest: string, needs: string][]} */
const OF_QUEUE = [
  ["", "", "holdfast:GetQueue"],
  ["Messages", "/messages", "holdfast:BrowseMessages"],
  ["Redrive", "/redrive", "holdfast:RedriveMessages"],
];

/** One that `stays` runs while the palette is open. @typedef {{text: string, kind: string, run: () => void, stays?: boolean}} Entry */

/** Those with each word in their text; first those that begin with the first. @returns {Entry[]} */
export function matching(/** @type {Entry[]} */ entries, /** @type {string} */ typed) {
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  const found = entries.filter(({ text }) => words.every((word) => text.toLowerCase().includes(word)));
  const rank = ({ text }) => (text.toLowerCase().startsWith(words[0] ?? "") ? 0 : 1);
  return found.map((each, at) => ({ each, at })).sort((one, other) => rank(one.each) - rank(other.each) || one.at - other.at)
    .map(({ each }) => each).slice(0, SHOWN_MAX);
}

/** Entries of a queue that the caller may open. @returns {Entry[]} */
function entriesOf({ name, may, sources_total: sources }) {
  return OF_QUEUE.filter(([text, , needs]) => may.includes(needs) && (text !== "Redrive" || sources > 0))
    .map(([text, rest]) => ({ text: `${name} ${text}`.trim(), kind: "queue", run: () => to(`#/queues/${name}${rest}`) }));
}

/** Go there; a screen that is shown already is shown anew. */
function to(/** @type {string} */ address) {
  location.hash = address;
}

export async function openPalette(/** @type {HTMLElement} */ view) {
  const closed = new AbortController();
  const newest = latest(closed.signal);
  const here = [...onScreen(view), ...screens()];
  /** @type {Entry[]} */
  let queues = [];
  /** @type {Entry[]} */
  let shown = [];
  let at = 0;
  let said = "";
  let failure = ""; // of a search for an id
  const input = el("input", { type: "text", role: "combobox", "aria-controls": "entries", "aria-expanded": "true",
    "aria-label": "Go to, or do", "aria-autocomplete": "list", autocomplete: "off", spellcheck: "false",
    placeholder: "A queue, a screen, or what to do here", oninput: changed, onkeydown: key });
  const list = el("ul", { id: "entries", role: "listbox", "aria-label": "Found" });
  const dialog = el("dialog", { class: "palette", "aria-label": "Go to, or do", onclose: close,
    onclick: (event) => event.target === dialog && dialog.close() }, input, list);

  function close() {
    closed.abort();
    dialog.remove();
  }

  function choose(/** @type {Entry | undefined} */ entry) {
    if (!entry) return;
    if (!entry.stays) dialog.close();
    entry.run();
  }

  /** Look in all queues, and go to the message. */
  async function find(/** @type {string} */ id) {
    const mine = newest();
    let scanned = 0;
    /** @type {string[]} */
    const unseen = [];
    /** @type {string | null} */
    let token = "";
    failure = "";
    try {
      while (token !== null) {
        say(`Looked at ${count(scanned)} messages …`);
        const page = await get("messages", { id, token }, mine);
        scanned += page.scanned;
        unseen.push(...page.unseen);
        const [message] = page.messages;
        if (message) {
          dialog.close();
          to(addressOf(`/queues/${message.queue}/messages/${message.sequence}`, { due_ms: message.state === "delayed" ? String(message.due_ms) : "" }));
          return;
        }
        token = page.next;
      }
      say(`None of ${count(scanned)} messages has this id.${unseen.length > 0 ? ` Not searched, for their shards have no leader: ${unseen.join(", ")}.` : ""}`);
    } catch (error) {
      if (mine.aborted) return;
      failure = error.message;
      say("");
    }
  }

  function say(/** @type {string} */ text) {
    said = text;
    show();
  }

  function show() {
    const typed = input.value.trim();
    shown = MESSAGE_ID.test(typed) && !said ? [{ text: `${failure ? "Try again: find" : "Find"} message ${typed}`, kind: failure || "all queues", run: () => find(typed), stays: true }]
      : matching([...here, ...queues], input.value);
    at = Math.max(0, Math.min(at, shown.length - 1));
    fill(list, shown.length === 0 && el("li", { role: "option", "aria-disabled": "true" }, said || "Nothing has this name."),
      shown.map((entry, index) => el("li", { id: `entry-${index}`, role: "option", "aria-selected": String(index === at),
        onclick: () => choose(entry) }, el("span", {}, entry.text), el("span", { class: "hint" }, entry.kind))));
    input.setAttribute("aria-activedescendant", shown.length ? `entry-${at}` : "");
    list.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  }

  async function changed() {
    at = 0;
    said = "";
    failure = "";
    show();
    const mine = newest();
    const [search = ""] = input.value.trim().split(/\s+/);
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    if (mine.aborted || !search) return;
    const found = await get("queues", { search, limit: SHOWN_MAX }, mine).catch(() => ({ queues: [] }));
    if (mine.aborted) return;
    queues = found.queues.flatMap(entriesOf);
    show();
  }

  function key(event) {
    if (event.key === "Enter") choose(shown[at]);
    else if (event.key === "ArrowDown") at = (at + 1) % Math.max(1, shown.length);
    else if (event.key === "ArrowUp") at = (at + shown.length - 1) % Math.max(1, shown.length);
    else return;
    event.preventDefault();
    if (event.key !== "Enter") show();
  }

  const { may } = await caller();
  if (may.includes("sqs:CreateQueue"))
    here.push({ text: "Create a queue", kind: "screen", run: () => to("#/new-queue") });
  here.push({ text: "API", kind: "screen", run: () => to("#/api") });
  if (document.querySelector("dialog[open]")) return; // it was pressed twice
  document.body.append(dialog);
  dialog.showModal();
  show();
}

/** The screens that the navigation shows. @returns {Entry[]} */
function screens() {
  return [.../** @type {NodeListOf<HTMLAnchorElement>} */ (document.querySelectorAll("header nav a:not([hidden])"))]
    .map((each) => ({ text: each.textContent ?? "", kind: "screen", run: () => to(each.hash) }));
}

const HERE = ".actions a, .actions button, .toolbar a, .failure a, .failure button";

/** The links and buttons of this screen and of its notices, such as Undo. They ask what they always ask. @returns {Entry[]} */
function onScreen(view) {
  const found = new Map();
  for (const each of [...document.querySelectorAll("#notices button"), ...view.querySelectorAll(HERE)]) {
    const text = each.getAttribute("aria-label") ?? each.querySelector("span")?.textContent ?? each.textContent;
    if (!each.disabled && each.checkVisibility() && !found.has(text))
      found.set(text, { text, kind: "here", run: () => each.isConnected && each.click() });
  }
  return [...found.values()];
}
