// Archived messages of one queue, which may be deleted: search, one message.

import { enter, isNextPage, keep } from "./address.js";
import { caller, filled, get } from "./api.js";
import * as commands from "./commands.js";
import { button, command, el, facts, field, fill, link, pickAll, queueLink, row, table, time } from "./dom.js";
import { FilterBox, seenIn } from "./filter_box.js";
import { ARCHIVED, numbered } from "./filters.js";
import { bytes, causeText, count, nameOf } from "./format.js";
import { preview } from "./hits.js";
import { attributesOf, bodyOf, receivesText } from "./message.js";
import { queueInput } from "./redrive_forms.js";
import { needed, resource } from "./resource.js";

const PICKED_MAX = 100;
const COLUMNS = [
  ["", "pick"],
  ["Message", "name"],
  ["Sent", ""],
  ["Left", "wide"],
  ["Receives", "number wide"],
  ["Size", "number wide"],
  ["Body", "body"],
  ["Actions", ""],
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
  const { input: name, names } = queueInput(() => true, { required: true });
  const id = el("input", { autocomplete: "off", spellcheck: "false" });
  const go = (event) => {
    event.preventDefault();
    const wanted = id.value.trim() ? `?${new URLSearchParams({ id: id.value.trim() })}` : "";
    location.hash = `#/archive/${encodeURIComponent(name.value.trim())}${wanted}`;
  };
  if (!(await caller()).has_archive) {
    fill(view, el("h1", {}, "Archive"), el("p", { class: "empty" }, "This service keeps no archive: set "
      + "lake to a folder or a bucket, and messages that leave their queues can be found here."));
    return;
  }
  fill(
    view,
    el("h1", {}, "Archive"),
    el("p", { class: "hint" }, "Messages that left their queues, of deleted queues, too."),
    el("form", { class: "search", onsubmit: go }, names, field("Queue", name), field("Message id", id),
      button("Search", () => {}, { type: "submit", class: "main" })),
  );
}

export async function showArchive({ view, parts: [name], query, signal, fail }) {
  const path = `/archive/${name}`;
  const picked = new Set((query.get("picked") ?? "").split(",").filter(Boolean));
  const filter = new FilterBox(query, ARCHIVED, { changed: () => begin(), seen: () => seenIn(list.state.value?.messages ?? []),
    placeholder: 'left = expired, sent >= 2026-11-29 10:00, error.type = "Tax…"' });
  const order = el("select", { name: "order" }, ["latest", "oldest"].map((each) =>
    el("option", { value: each, selected: query.get("order") === each }, `${each} first`)));
  const title = el("span", {}, name);
  let asked = search(); // of the messages that are shown
  let after = query.get("after") ?? ""; // a page's token
  const list = resource({ what: "The archive", ask, show, signal, fail });

  function address() {
    return { ...asked, picked: [...picked].join(","), after };
  }

  function search() {
    return { order: order.value, ...filter.texts };
  }

  async function ask(mine) {
    const of = asked;
    return { ...await get(ofArchive(name, "/messages"), { ...of, token: after }, mine), asked: of };
  }

  function begin() {
    asked = search();
    after = "";
    keep(path, address());
    return list.ask();
  }

  function turn(next) {
    after = next;
    enter(path, address());
    list.ask();
  }

  function show(page) {
    const { messages, may, scanned, next } = page;
    fill(title, queueLink(name, may.includes("holdfast:GetQueue")));
    return [
      el("p", { class: "actions", role: "status" }, replays(page)),
      messages.some((each) => each.is_masked) && el("p", { class: "notice" },
        "Bodies are masked: your policies do not allow holdfast:ReadMessageBodies."),
      messages.length
        ? table([[pickAll(list.place), "pick"], ...COLUMNS.slice(1)], messages.map((each) => messageRow(each, may.includes("holdfast:RedriveMessages"))), "Archived messages")
        : el("p", { class: "empty" }, next ? "Nothing so far." : nothing(page.asked)),
      el(
        "p",
        { class: "actions" },
        after && (isNextPage() ? button("Previous page", () => history.back()) : button("First page", () => begin())),
        next && button(messages.length ? "Next page" : "Search on", () => turn(next)),
        el("span", { class: "hint" }, `${count(scanned)} messages looked at`),
      ),
      command(commands.searchArchive(name, numbered(page.asked))),
    ];
  }

  function messageRow(message, mayReplay) {
    const { place, message_id: id } = message;
    const onchange = ({ currentTarget: { checked } }) => {
      if (checked) picked.add(place);
      else picked.delete(place);
      keep(path, address());
      list.show();
    };
    const box = el("input", { type: "checkbox", "aria-label": `Select message ${id}`, onchange });
    box.checked = picked.has(place);
    box.disabled = !message.is_readable;
    return row(COLUMNS, [
      box,
      link(`${id.slice(0, 8)}…${id.slice(-4)}`, `#${path}/${place}`, { title: id }),
      time(message.sent_at_ms),
      [`${message.reason}, `, time(message.removed_at_ms)],
      count(message.receive_count),
      bytes(message.size),
      el("code", { class: message.body === null ? "masked" : "" },
        message.body === null || !message.is_readable ? textOf(message) : preview(message.body, asked)),
      message.is_readable && mayReplay
        && link("Replay", `#${path}/replay?places=${place}`, { class: "button", "aria-label": `Replay ${id}` }),
    ], { "data-key": place });
  }

  /** Why there is nothing, and what to do next. */
  function nothing({ order: _, ...conditions }) {
    if (Object.keys(conditions).length > 0)
      return ["No archived message matches. ", link("Show all archived messages", `#${path}`), "."];
    return [`The archive has no message of ${name}: the name may be wrong, or its tag holdfast:archive is not set. `,
      link("Search another queue", "#/archive"), "."];
  }

  /** Links to replays: of what is selected; otherwise of all that match, once that is known. */
  function replays({ may, asked: { order: _, ...conditions } }) {
    const mayReplay = may.includes("holdfast:RedriveMessages");
    if (picked.size > PICKED_MAX)
      return [picks(), el("span", { class: "hint" }, `at most ${PICKED_MAX} at once`)];
    if (picked.size > 0)
      return [picks(),
        mayReplay && link("Replay selected", `#${path}/replay?places=${[...picked]}`, { class: "button main" })];
    const matching = new URLSearchParams(conditions);
    const text = matching.size ? "Replay all that match" : "Replay all";
    return mayReplay && !list.state.isOther && link(text, `#${path}/replay?${matching}`, { class: "button" });
  }

  function picks() {
    return el("strong", {}, `${count(picked.size)} selected`);
  }

  fill(
    view,
    el("h1", {}, "Archive of ", title),
    el("form", { class: "search", onsubmit: (event) => filter.submitted(event, begin) },
      el("div", { class: "filter-row" }, filter.element, button("Search", () => {}, { type: "submit", class: "main" })),
      field("Order", order)),
    list.place,
  );
  await list.read();
}

function textOf(message) {
  if (message.is_masked) return "masked";
  if (message.is_sealed) return "sealed";
  return message.is_readable ? message.body : "damaged";
}

export async function showArchived(screen) {
  const { view, parts: [name, place] } = screen;
  const message = await needed(screen, "The message", (mine) =>
    get(ofArchive(name, "/messages/{place}", place), {}, mine));
  const why = message.is_sealed
    ? "The message is sealed: the archive has it encrypted only."
    : "The message is damaged: its checksum in the archive is wrong.";
  fill(
    view,
    el("h1", {}, "Archived message of ", name),
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
    ["Left the queue", [`${message.reason}, `, time(message.removed_at_ms)]],
    ["First id", message.origin?.message_id],
    ["First sent", time(message.origin?.sent_at_ms)],
    ["Sent", time(message.sent_at_ms)],
    ["Receives", receivesText(message)],
    ["First received", time(message.first_received_at_ms)],
    ["Dead letter of", nameOf(message.source_arn)],
    ["Cause", message.cause && [el("span", { title: message.cause }, causeText(message.cause)), ", ", time(message.died_at_ms)]],
    ["Hops", message.hops > 0 && count(message.hops)],
    ["Size", bytes(message.size)],
    ["Group", message.group_id],
    ["Deduplication id", message.deduplication_id],
    ["Sequence number", message.sequence_number],
    ["Sender", message.sender_id],
    ["Trace header", message.trace_header],
  ];
}
