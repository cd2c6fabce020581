// The message browser: it receives nothing, so no count rises and no message is hidden.

import { addressOf, enter, isNextPage, keep } from "./address.js";
import { get, needs, ofQueue } from "./api.js";
import { Beside } from "./beside.js";
import { holdButtons } from "./holds.js";
import { Columns, sharedBy } from "./columns.js";
import * as commands from "./commands.js";
import { button, command, el, fill, link, patch, pickAll, row, table, time } from "./dom.js";
import { failureLine } from "./failures.js";
import { FilterBox, seenIn } from "./filter_box.js";
import { MESSAGES } from "./filters.js";
import { bytes, causeText, count } from "./format.js";
import { markedValue, preview } from "./hits.js";
import { MatchCount } from "./match_count.js";
import { Matching } from "./matching.js";
import { behind } from "./message.js";
import { needed, resource } from "./resource.js";
import { scheduleButtons } from "./schedules.js";
import { shownText } from "./unseen_characters.js";

const COLUMNS = [
  ["", "pick"],
  ["Message", "name"],
  ["State", ""],
  ["Sent", "wide"],
  ["Receives", "number wide wider"],
  ["Size", "number wide wider"],
  ["Body", "body"],
];
const GROUP = ["Group", "value"];
/** The beginning is that of the redrive for messages that it moved. */
function shortId(id) {
  return `${id.slice(0, 8)}…${id.slice(-4)}`;
}

function holdText({ state, hold }) {
  if (state !== "held") return null;
  return el("div", { class: "hint" }, shownText([hold.owner, hold.reference].filter(Boolean).join(": ")));
}

function behindText({ name }, { waits_behind: sequence }) {
  return sequence && el("div", { class: "hint" }, ...behind(name, sequence));
}

export async function showMessages(screen) {
  const { view, parts: [name], query, signal, fail } = screen;
  const path = `/queues/${name}/messages`;
  if (query.get("state") === "quarantined") query.set("state", "held"); // in addresses of the release before
  if (query.get("state") === "all") query.delete("state");
  const filter = new FilterBox(query, MESSAGES, { changed: () => begin(), seen: () => seenIn(list.state.value?.messages ?? []) });
  const progress = { isStopped: false, scanned: 0 }; // of a search for the first match
  const picked = new Set((query.get("picked") ?? "").split(",").filter(Boolean).map(Number));
  const messages = new Map(); // those that were shown, by sequence
  const searching = el("div");
  const chosen = el("p", { class: "actions", role: "status" });
  let asked = filter.texts; // of the messages that are shown
  let after = query.get("after") ?? ""; // a page's token
  const queue = await needed(screen, "The queue", (mine) => get(ofQueue(name), {}, mine));
  needs(queue, "holdfast:BrowseMessages");
  const readsBodies = queue.may.includes("holdfast:ReadMessageBodies");
  if (!readsBodies) filter.maskBodies();
  const failure = failureLine(queue, query.get("failure"), signal);
  const columns = new Columns(name, queue.sources_total > 0, () => list.show());
  const list = resource({ what: "The messages", ask, show, signal, fail });
  const matches = new MatchCount(name, signal, fail);

  const beside = new Beside(name, { signal, fail, filter: () => asked, changed: again, shown: () => {
    keep(path, address());
    list.show();
  } });

  /** Read and count again: messages have changed. */
  function again() {
    matches.forget();
    return list.read();
  }

  function address() {
    return { ...asked, picked: [...picked].join(","), after, open: beside.open };
  }

  /** @type {{key: string, panel: Matching} | null} what can be done with all that match */
  let matching = null;

  function matchingOf({ state = "all", ...conditions }) {
    if (Object.keys(conditions).length === 0 && state === "all") return null;
    const key = JSON.stringify([state, conditions]);
    if (matching?.key !== key)
      matching = { key, panel: new Matching(queue, conditions, signal, fail, again, state) };
    const { panel } = matching;
    const whole = Object.keys(conditions).length === 0; // a redrive of all names the queue again
    // they are of the older question until the newer one is answered
    return el("div", { inert: list.state.isOther, "data-key": "matching" },
      el("p", { class: "actions" }, el("span", {}, "All that match:"),
        !whole && panel.redriveLinks("all that match"), panel.buttons("all that match")),
      panel.place);
  }

  /** The page at the token. A search goes on to the first match by itself. */
  async function ask(mine) {
    Object.assign(progress, { isStopped: false, scanned: 0 });
    const isFromFirst = after === "";
    for (;;) {
      const page = await get(ofQueue(name, "/messages"), { ...asked, token: after }, mine);
      progress.scanned += page.scanned;
      if (page.messages.length || !page.next || progress.isStopped) {
        page.messages.forEach((each) => messages.set(each.sequence, each));
        return { ...page, scanned: progress.scanned, asked, isFromFirst };
      }
      after = page.next;
      patch(searching, searchingOf());
    }
  }

  function searchingOf() {
    const all = Math.max(progress.scanned, (queue.visible ?? 0) + (queue.in_flight ?? 0) + (queue.delayed ?? 0));
    return el("p", { class: "actions searching" },
      button("Stop", () => (progress.isStopped = true)),
      el("progress", { value: String(progress.scanned), max: String(all), "aria-label": "Messages looked at" }),
      el("span", { class: "hint" }, `${count(progress.scanned)} of about ${count(all)} messages looked at`));
  }

  /** Search for what the box says. */
  function begin() {
    asked = filter.texts;
    failure.hidden = !asked.failure;
    after = "";
    matches.forget();
    keep(path, address());
    return list.ask();
  }

  function turn(next) {
    after = next;
    enter(path, address());
    list.ask();
  }

  function show(page) {
    const { messages: found } = page;
    fill(searching);
    if (!list.state.isOther) matches.of(page.asked, found.length, page.isFromFirst && page.next === null);
    return [
      matchingOf(page.asked),
      found.length
        ? tableOf(found)
        : el("p", { class: "empty" }, page.next ? "Nothing so far." : nothing(page.asked)),
      el(
        "p",
        { class: "actions" },
        after && (isNextPage() ? button("Previous page", () => history.back()) : button("First page", () => begin())),
        page.next && button(found.length ? "Next page" : "Search on", () => turn(page.next)),
        el("span", { class: "hint" }, `${count(page.scanned)} messages looked at`),
      ),
      command(commands.browse(name, page.asked)),
    ];
  }

  /** What to do next where there is nothing. */
  function nothing(conditions) {
    if (Object.keys(conditions).length > 0)
      return ["No message matches. ", link("Show all messages", `#${path}`), elsewhere(conditions)];
    return ["The queue is empty. ", queue.may.includes("sqs:SendMessage")
      && [link("Send a message", `#/queues/${name}/send`), ", or "],
    link("watch what comes", `#/queues/${name}/tail`), "."];
  }

  /** Queues to which a redrive, its undo or a death takes a message: its id finds it there, too. */
  function elsewhere({ id }) {
    const names = [...queue.sources, queue.dead_letter_queue?.name].filter(Boolean);
    if (!id || names.length === 0) return null;
    return [" It may have moved: look in ", names.slice(0, 5).map((each, at) =>
      [at > 0 && ", ", link(each, addressOf(`/queues/${each}/messages`, { id }))]), "."];
  }

  function tableOf(found) {
    columns.offer(found.flatMap(({ body }) => body ?? []));
    const [, ...others] = COLUMNS;
    const body = others.pop() ?? [];
    const shown = [[pickAll(list.place), "pick"], ...others, ...(queue.fifo ? [GROUP] : []), ...columns.columns, body];
    const shared = sharedBy(found.map((each) => each.body ?? ""));
    return table(shown, found.map((each) => messageRow(each, shown, shared)), "Messages");
  }

  function markedId(id) {
    const wanted = (asked.id ?? "").toLowerCase();
    const begin = wanted && id.startsWith(wanted) ? Math.min(wanted.length, 8) : 0;
    return [begin > 0 && el("mark", {}, id.slice(0, begin)), shortId(id).slice(begin)];
  }

  function messageRow(message, shown, shared) {
    const { sequence } = message;
    const onchange = ({ currentTarget: { checked } }) => {
      if (checked) picked.add(sequence);
      else picked.delete(sequence);
      choose();
    };
    const box = el("input", { type: "checkbox", "aria-label": `Select message ${sequence}`, onchange });
    box.checked = picked.has(sequence);
    const isDelayed = message.state === "delayed";
    const { id: _, state: __, ...conditions } = asked;
    const due = isDelayed ? String(message.due_ms) : "";
    const place = isDelayed ? `${sequence}.${message.due_ms}` : String(sequence);
    return row(shown, [
      box,
      link(markedId(message.message_id), addressOf(`/queues/${name}/messages/${sequence}`, { due_ms: due, ...conditions }), {
        title: message.message_id,
        onclick: (event) => beside.takes(event, place),
        onfocus: () => beside.open && beside.show(place), // `j` and `k` turn the pages
      }),
      [el("span", { class: `state ${message.state.replace(" ", "-")}` }, message.state),
        holdText(message), behindText(queue, message), asked.group && !queue.fifo && message.group_id && el("div", { class: "hint" }, markedValue(asked, "group", message.group_id)),
        message.cause && el("span", { class: "hint", title: message.cause }, ` ${causeText(message.cause)}`)],
      time(message.sent_at_ms),
      count(message.receive_count),
      bytes(message.size),
      ...(queue.fifo ? [markedValue(asked, "group", message.group_id)] : []),
      ...columns.cells(message.body),
      el("code", { class: message.body === null ? "masked" : "" }, message.body === null
        ? (message.is_masked ? "masked" : "cannot be opened") : preview(message.body, asked, shared)),
    ], { "data-key": String(sequence), class: place === beside.open ? "open" : null });
  }

  function choose() {
    keep(path, address());
    showChosen();
  }

  function showChosen() {
    const sequences = [...picked];
    if (sequences.length === 0) {
      fill(chosen);
      return;
    }
    const done = async () => {
      picked.clear();
      choose();
      await again();
    };
    const may = new Set(queue.may);
    const { state = "visible" } = asked; // of those on other pages, if this screen was loaded anew; the service looks again
    const shown = sequences.map((sequence) => messages.get(sequence) ?? { sequence, state: state === "delayed" ? "" : state });
    fill(
      chosen,
      el("strong", {}, `${count(sequences.length)} selected`),
      queue.sources_total > 0 && may.has("holdfast:RedriveMessages")
        && link("Redrive", `#/queues/${name}/redrive?sequences=${sequences}`, { class: "button main" }),
      holdButtons(queue, shown, done, fail),
      scheduleButtons(queue, shown, done, fail),
      button("Select none", done),
    );
  }

  fill(
    view,
    el("h1", {}, "Messages of ", name),
    !readsBodies && el("p", { class: "notice" }, "Bodies are masked: your policies do not allow "
      + "holdfast:ReadMessageBodies."),
    el(
      "form",
      { class: "search", onsubmit: (event) => filter.submitted(event, begin) },
      el("div", { class: "filter-row" }, filter.element, button("Search", () => {}, { type: "submit", class: "main" })),
      readsBodies && columns.fold,
    ),
    failure,
    matches.place,
    chosen,
    searching,
    el("div", { class: "with-beside" }, list.place, beside.place),
  );
  await list.read();
  if (query.get("open")) beside.show(query.get("open"));
  showChosen();
}
