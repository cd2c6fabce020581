// Archived messages of one queue, which may be deleted: search, one message.

import { filled, get, latest } from "./api.js";
import { ArchivedFilter } from "./archived_filter.js";
import * as commands from "./commands.js";
import { button, command, el, facts, field, fill, link, pickAll, queueLink, row, table } from "./dom.js";
import { bytes, count, instant, nameOf } from "./format.js";
import { attributesOf, bodyOf } from "./message.js";

const PICKED_MAX = 100;
const COLUMNS = [
  ["", "pick"],
  ["Message", "name"],
  ["Sent", ""],
  ["Left", "wide"],
  ["Receives", "number wide"],
  ["Size", "number wide"],
  ["Body", "body"],
];

/**
 * The path of something of a queue's archive.
 *
 * @template {string} [R=""]
 * @param {string} name
 * @param {R} rest a braced part of it is replaced by `part`
 * @param {string} part
 * @returns {`archive/{queue}${R}`}
 */
export function ofArchive(name, rest = /** @type {R} */ (""), part = "") {
  return filled(`archive/{queue}${rest}`, name, part);
}

/** A form for the name of a queue: those that are deleted are in no list. */
export async function chooseArchive({ view }) {
  const name = el("input", { required: true, autocomplete: "off", spellcheck: "false" });
  const go = (event) => {
    event.preventDefault();
    location.hash = `#/archive/${encodeURIComponent(name.value.trim())}`;
  };
  fill(
    view,
    el("h1", {}, "Archive"),
    el("p", { class: "hint" }, "Messages that left their queues, of deleted queues, too."),
    el("form", { class: "search", onsubmit: go }, field("Queue", name),
      button("Search", () => {}, { type: "submit", class: "main" })),
  );
}

export async function showArchive({ view, parts: [name], query, signal, fail }) {
  const newest = latest(signal);
  const tokens = /** @type {(string | null)[]} */ ([null]);
  const picked = new Set();
  const filter = new ArchivedFilter(query);
  const order = el("select", { name: "order" }, ["latest", "oldest"].map((each) =>
    el("option", { value: each, selected: query.get("order") === each }, `${each} first`)));
  const list = el("div");
  const same = el("div");
  const chosen = el("p", { class: "actions", role: "status" });
  const title = el("span", {}, name);
  let may = [];
  let shown = null; // the conditions of the messages that are shown, whatever is in the fields meanwhile

  async function read() {
    const mine = newest();
    const conditions = filter.texts;
    const asked = { order: order.value, ...conditions };
    shown = null;
    showChosen();
    fill(list, el("p", { class: "empty" }, "Reading the archive …"));
    try {
      const page = await get(ofArchive(name, "/messages"), { ...asked, token: tokens.at(-1) }, mine);
      may = page.may;
      shown = conditions;
      fill(title, queueLink(name, may.includes("holdfast:GetQueue")));
      fill(list, pageOf(page));
      fill(same, command(commands.searchArchive(name, asked)));
      showChosen();
    } catch (error) {
      if (!mine.aborted) fill(list);
      fail(error);
    }
  }

  function begin(event) {
    event?.preventDefault();
    tokens.length = 1;
    const asked = { order: order.value, ...filter.texts };
    window.history.replaceState(null, "", `#/archive/${name}?${new URLSearchParams(asked)}`);
    return read();
  }

  function pageOf({ messages, scanned, next }) {
    const go = (change) => () => {
      change();
      read();
    };
    return [
      messages.some((each) => each.is_masked) && el("p", { class: "notice" },
        "Bodies are masked: your policies do not allow holdfast:ReadMessageBodies."),
      messages.length
        ? table([[pickAll(list), "pick"], ...COLUMNS.slice(1)], messages.map(messageRow), "Archived messages")
        : el("p", { class: "empty" }, next ? "Nothing so far." : "No archived message matches."),
      el(
        "p",
        { class: "actions" },
        tokens.length > 1 && button("Previous page", go(() => tokens.pop())),
        next && button(messages.length ? "Next page" : "Search on", go(() => tokens.push(next))),
        el("span", { class: "hint" }, `${count(scanned)} messages looked at`),
      ),
    ];
  }

  function messageRow(message) {
    const { place, message_id: id } = message;
    const box = el("input", { type: "checkbox", "aria-label": `Select message ${id}` });
    box.checked = picked.has(place);
    box.disabled = !message.is_readable;
    box.addEventListener("change", () => {
      if (box.checked) picked.add(place);
      else picked.delete(place);
      showChosen();
    });
    return row(COLUMNS, [
      box,
      link(`${id.slice(0, 8)}…${id.slice(-4)}`, `#/archive/${name}/${place}`, { title: id }),
      instant(message.sent_at_ms),
      `${message.reason}, ${instant(message.removed_at_ms)}`,
      count(message.receive_count),
      bytes(message.size),
      el("code", { class: message.body === null ? "masked" : "" }, textOf(message).slice(0, 300)),
    ]);
  }

  function showChosen() {
    const base = `#/archive/${name}/replay`;
    const isMany = picked.size > PICKED_MAX;
    const conditions = new URLSearchParams(shown ?? {});
    const text = conditions.size ? "Replay all that match" : "Replay all";
    const mayReplay = may.includes("holdfast:RedriveMessages");
    fill(
      chosen,
      picked.size > 0 && el("strong", {}, `${count(picked.size)} selected`),
      picked.size > 0 && !isMany && mayReplay
        && link("Replay selected", `${base}?places=${[...picked]}`, { class: "button main" }),
      isMany && el("span", { class: "hint" }, `at most ${PICKED_MAX} at once`),
      picked.size === 0 && shown !== null && mayReplay && link(text, `${base}?${conditions}`, { class: "button" }),
    );
  }

  fill(
    view,
    el("h1", {}, "Archive of ", title),
    el("form", { class: "search", onsubmit: begin }, filter.elements, field("Order", order),
      button("Search", () => {}, { type: "submit", class: "main" })),
    chosen,
    list,
    same,
  );
  await read();
}

function textOf(message) {
  if (message.is_masked) return "masked";
  if (message.is_sealed) return "sealed";
  return message.is_readable ? message.body : "damaged";
}

export async function showArchived({ view, parts: [name, place], signal }) {
  const message = await get(ofArchive(name, "/messages/{place}", place), {}, signal);
  const why = message.is_sealed
    ? "The message is sealed: the archive has it encrypted only."
    : "The message is damaged: its checksum in the archive is wrong.";
  fill(
    view,
    el("h1", {}, "Archived message of ", link(name, `#/archive/${name}`)),
    el(
      "p",
      { class: "actions" },
      link("All archived messages", `#/archive/${name}`, { class: "button" }),
      message.is_readable && message.may.includes("holdfast:RedriveMessages")
        && link("Replay", `#/archive/${name}/replay?places=${place}`, { class: "button main" }),
    ),
    facts(properties(message)),
    message.is_readable ? bodyOf(message) : el("p", { class: "notice" }, why),
    attributesOf(message),
    command(commands.showArchived(name, place)),
  );
}

function properties(message) {
  return [
    ["Message id", message.message_id],
    ["Left the queue", `${message.reason}, ${instant(message.removed_at_ms)}`],
    ["Sent", instant(message.sent_at_ms)],
    ["Receives", count(message.receive_count)],
    ["First received", instant(message.first_received_at_ms)],
    ["Dead letter of", nameOf(message.source_arn)],
    ["Size", bytes(message.size)],
    ["Group", message.group_id],
    ["Deduplication id", message.deduplication_id],
    ["Sequence number", message.sequence_number],
    ["Sender", message.sender_id],
    ["Trace header", message.trace_header],
  ];
}
