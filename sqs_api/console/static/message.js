// One message, by an address that can be passed on.

import { addressOf, keep } from "./address.js";
import { get, ofQueue } from "./api.js";
import { holdButtons } from "./holds.js";
import * as commands from "./commands.js";
import { button, command, copyButton, el, facts, fill, link, queueLink, time } from "./dom.js";
import { compare, conditionsOf, each, REDRIVES } from "./filters.js";
import { bytes, causeText, count, nameOf, nowMs, pretty, span } from "./format.js";
import { hitsOf, marked, markedValue } from "./hits.js";
import { resource } from "./resource.js";
import { scheduleButtons } from "./schedules.js";
import { timelineOf } from "./timeline.js";
import { shownText } from "./unseen_characters.js";

const LONG = 1000;

export async function showMessage({ view, parts: [name, sequence], query, signal, fail }) {
  const due = query.get("due_ms") ?? "";
  const id = query.get("id");
  const { id: _, ...filter } = conditionsOf(query, REDRIVES); // of the list from which one came
  const { places, read } = messageOf(name, { sequence, due, signal, fail,
    missing: (error, mine) => (id ? followed(name, id, error, mine) : Promise.reject(error)),
    // it may move: then its id finds it
    known: (message) => keep(`/queues/${name}/messages/${sequence}`, { due_ms: due, ...filter, id: message.message_id }),
    filter,
  });
  fill(view, el("h1", {}, "Message in ", name), places);
  await read();
}

/**
 * What is shown of a message, on its own page and beside a list. `known` is told of the message at
 * each answer, `missing` of one that is not there, `changed` of what was done to it.
 *
 * @param {string} name of the queue
 * @param {object} given
 * @param {string | number} given.sequence
 * @param {string} given.due the time of a delayed message in ms
 * @param {AbortSignal} given.signal
 * @param {(error: Error) => void} given.fail
 * @param {(error: Error, signal: AbortSignal) => Promise<any>} [given.missing]
 * @param {(message: Schemas["WholeMessage"]) => void} [given.known]
 * @param {() => unknown} [given.changed]
 * @param {Record<string, string>} [given.filter] what of it is marked
 */
export function messageOf(name, { sequence, due, signal, fail, missing, known, changed, filter = {} }) {
  const path = ofQueue(name, "/messages/{sequence}", sequence);
  const ask = (mine) => Promise.all([get(ofQueue(name), {}, mine), get(path, { due_ms: due }, mine)])
    .catch((error) => (missing && error.status === 404 ? missing(error, mine) : Promise.reject(error)));
  const shown = resource({ what: "The message", ask, show, signal, fail });
  const timeline = resource({
    what: "The timeline",
    ask: (mine) => get(ofQueue(name, "/messages/{sequence}/timeline", sequence), { due_ms: due }, mine),
    show: (told) => timelineOf(name, told),
    signal,
    fail,
  });
  const read = async () => {
    await shown.read();
    if (!shown.state.failure) await timeline.read();
  };
  const again = () => Promise.all([read(), changed?.()]);
  /** @type {HTMLElement | null} */
  let body = null;

  function show([queue, message]) {
    known?.(message);
    body ??= el("div", { "data-key": "body" }, bodyOf(message, filter)); // it stays as it was sent
    return [
      actions(queue, message, again, { signal, fail }),
      el("div", { class: "halves", "data-key": "halves" },
        el("div", {}, facts(properties(queue, message, filter)), attributesOf(message, filter)), body),
      command(commands.showMessage(name, sequence) + (due ? ` --due-ms ${due}` : "")),
    ];
  }

  return { places: [shown.place, timeline.place], read };
}

/** Go to where a message is now that is no more at its address; its id finds it. */
async function followed(name, id, error, signal) {
  const { sources, dead_letter_queue: deadLetters } = await get(ofQueue(name), {}, signal);
  for (const each of [...sources, deadLetters?.name, name].filter(Boolean)) {
    const { messages: [found] } = await get(ofQueue(each, "/messages"), { id, limit: 1 }, signal)
      .catch(() => ({ messages: [] })); // it may not be read
    if (!found) continue;
    location.replace(addressOf(`/queues/${each}/messages/${found.sequence}`,
      { due_ms: found.state === "delayed" ? String(found.due_ms) : "" }));
    return new Promise(() => {}); // another screen comes
  }
  throw error;
}

function actions(queue, message, again, { signal, fail }) {
  const may = new Set(queue.may);
  const base = `#/queues/${queue.name}`;
  const isWaiting = message.state === "visible";
  return el(
    "p",
    { class: "actions" },
    link("All messages", `${base}/messages`, { class: "button" }),
    message.body !== null && message.may_resend && message.state !== "delayed"
      && link("Edit and resend", `${base}/messages/${message.sequence}/resend`, { class: "button main" }),
    isWaiting && queue.sources_total > 0 && may.has("holdfast:RedriveMessages")
      && link("Redrive", `${base}/redrive?sequences=${message.sequence}`, { class: "button" }),
    holdButtons(queue, [message], again, fail),
    scheduleButtons(queue, [message], () => !signal.aborted && (location.hash = `${base}/messages`), fail),
  );
}

function properties(queue, message, filter) {
  const left = (message.expires_at_ms - nowMs()) / 1000;
  const source = nameOf(message.source_arn);
  return [
    ["Message id", message.message_id],
    ["Earlier ids", message.origin?.earlier_ids.join(", ")],
    ["First sent", time(message.origin?.sent_at_ms)],
    ["State", [message.state, message.due_ms > 0 && [", until ", time(message.due_ms)],
      message.waits_behind && [", ", ...behind(queue.name, message.waits_behind)]]],
    ["Owner", shownText(message.hold?.owner)],
    ["Reference", shownText(message.hold?.reference)],
    ["Held since", time(message.hold?.since_ms)],
    ["Sent", time(message.sent_at_ms)],
    ["Lost in", [`${left > 0 ? span(left) : "a moment"}, `, time(message.expires_at_ms)]],
    ["Priority", message.priority?.toString()],
    ["Receives", receivesText(message)],
    ["First received", time(message.first_received_at_ms)],
    ["Last received here", time(message.last_received_at_ms)],
    ["Dead letter of", source && queueLink(source, queue.sources.includes(source) && !queue.hidden.includes(source))],
    ["Cause", message.cause && [el("span", { title: message.cause }, causeText(message.cause)), ", ", time(message.died_at_ms)]],
    ["Hops", message.hops > 0 && count(message.hops)],
    ["Size", bytes(message.size)],
    ["Group", markedValue(filter, "group", message.group_id)],
    ["Deduplication id", shownText(message.deduplication_id)],
    ["Sequence number", message.sequence_number],
    ["Sender", message.sender_id],
    ["Trace header", valueOf(message.trace_header)],
  ];
}

/** Behind which message of its group one waits. */
export function behind(name, sequence) {
  return ["waits behind ", link(String(sequence), `#/queues/${name}/messages/${sequence}`, { title: "of its group, in flight or held" })];
}

/** The receives, with those before a redrive or an edit. */
export function receivesText({ receive_count: own, origin }) {
  const before = origin?.receive_count ?? 0;
  return before > 0 ? `${count(own)}, and ${count(before)} before its last redrive or edit` : count(own);
}

export function bodyOf(message, /** @type {Record<string, string>} */ filter = {}) {
  if (message.body === null) {
    const why = message.is_masked
      ? "The body is masked: your policies do not allow holdfast:ReadMessageBodies."
      : "The body cannot be opened: it is damaged.";
    return [el("h2", {}, "Body"), el("p", { class: "notice" }, why)];
  }
  const shown = el("pre", { class: "body", tabindex: "0" });
  const forms = [
    ["Pretty", pretty(message.body)],
    ["Raw", message.body],
    ["Base64", base64(message.body)],
  ].filter(([, text]) => text !== null);
  const tabs = forms.map(([label, text]) =>
    button(label, (event) => select(event.target, text), { "aria-pressed": "false" }));
  function select(tab, text) {
    tabs.forEach((each) => each.setAttribute("aria-pressed", String(each === tab)));
    fill(shown, marked(text, hitsOf(text, filter)));
  }
  select(tabs[0], forms[0][1]);
  return [
    el("h2", {}, "Body"),
    el("p", { class: "tabs" }, tabs, copyButton(message.body)),
    shown,
  ];
}

function base64(text) {
  return btoa(Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join(""));
}

/** A value of whatever length: a long one has a box. A browser takes many seconds to break one of
 * 100 KiB without spaces into lines, unless all letters are as wide. */
function valueOf(/** @type {string | null | undefined} */ text) {
  if (!text) return text;
  return text.length > LONG ? el("pre", { tabindex: "0" }, shownText(text)) : el("code", {}, shownText(text));
}

export function attributesOf(message, /** @type {Record<string, string>} */ filter = {}) {
  const wanted = each({ attribute: filter.attribute ?? "" }).map(([, condition]) => compare(condition)[0]);
  const shown = Object.entries(message.attributes).map(([name, each]) => [
    wanted.includes(name) ? el("mark", {}, shownText(name)) : shownText(name),
    [el("code", {}, each.type), " ", valueOf(each.value ?? each.binary) ?? el("em", {}, "masked")],
  ]);
  return shown.length > 0 && [el("h2", {}, "Message attributes"), facts(shown)];
}
