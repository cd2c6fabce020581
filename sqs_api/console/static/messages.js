// The message browser: it receives nothing, so no count rises and no message is hidden.

import { get, latest, needs, ofQueue } from "./api.js";
import { holdButtons } from "./holds.js";
import * as commands from "./commands.js";
import { button, command, el, field, fill, link, pickAll, row, table } from "./dom.js";
import { FilterFields } from "./filters.js";
import { bytes, count, instant } from "./format.js";

const COLUMNS = [
  ["", "pick"],
  ["Message", "name"],
  ["State", ""],
  ["Sent", "wide"],
  ["Receives", "number wide"],
  ["Size", "number wide"],
  ["Body", "body"],
];
/** The beginning is that of the redrive for messages that it moved. */
function shortId(id) {
  return `${id.slice(0, 8)}…${id.slice(-4)}`;
}

const STATES = ["all", "visible", "in flight", "delayed", "held", "deleting"];

function holdText({ state, hold }) {
  if (state !== "held") return null;
  return el("div", { class: "hint" }, [hold.owner, hold.reference].filter(Boolean).join(": "));
}

export async function showMessages({ view, parts: [name], query, signal, fail }) {
  const tokens = /** @type {(string | null)[]} */ ([null]);
  const newest = latest(signal);
  let isStopped = false;
  const picked = new Map();
  const list = el("div");
  const same = el("div");
  const chosen = el("p", { class: "actions", role: "status" });
  const filter = new FilterFields(query);
  const redriveThese = el("p", { class: "actions" });
  const old = query.get("state") === "quarantined"; // in addresses of the release before
  const state = el("select", { name: "state" }, STATES.map((each) =>
    el("option", { selected: each === (old ? "held" : query.get("state")) }, each)));
  const queue = await get(ofQueue(name), {}, signal);
  needs(queue, "holdfast:BrowseMessages");

  function search() {
    return { state: state.value, ...filter.texts };
  }

  /** Of the messages that are shown, whatever is in the fields meanwhile. */
  function redriveLink({ state: _, ...conditions }) {
    const may = queue.sources_total > 0 && queue.may.includes("holdfast:RedriveMessages");
    if (Object.keys(conditions).length === 0 || !may) return null;
    const address = `#/queues/${name}/redrive?${new URLSearchParams(conditions)}`;
    return link("Redrive all that match", address, { class: "button" });
  }

  /** Show the page that begins at the last token. A search goes on to the first match by itself. */
  async function read() {
    const mine = newest();
    const asked = search();
    isStopped = false;
    try {
      let page;
      let scanned = 0;
      for (;;) {
        const parameters = { ...asked, token: tokens.at(-1) };
        page = await get(ofQueue(name, "/messages"), parameters, mine);
        scanned += page.scanned;
        if (page.messages.length || !page.next || isStopped) break;
        showSearching(scanned);
        tokens[tokens.length - 1] = page.next;
      }
      fill(list, pageOf({ ...page, scanned }));
      fill(same, command(commands.browse(name, asked)));
      fill(redriveThese, redriveLink(asked));
    } catch (error) {
      fail(error);
      if (!mine.aborted && list.querySelector(".searching"))
        fill(list, el("p", { class: "actions" }, button("Search on", () => read())));
    }
  }

  function showSearching(scanned) {
    const looked = `${count(scanned)} messages looked at`;
    const said = list.querySelector(".searching .hint");
    if (said) {
      said.textContent = looked;
      return;
    }
    const stop = button("Stop", () => (isStopped = true));
    fill(list, el("p", { class: "actions searching" }, stop, el("span", { class: "hint" }, looked)));
  }

  function begin(event) {
    event?.preventDefault();
    tokens.splice(0, tokens.length, null);
    window.history.replaceState(null, "", `#/queues/${name}/messages?${new URLSearchParams(search())}`);
    return read();
  }

  function pageOf(page) {
    const go = (change) => () => {
      change();
      read();
    };
    const { messages } = page;
    return [
      messages.length
        ? table(columns(messages), messages.map(messageRow), "Messages")
        : el("p", { class: "empty" }, page.next ? "Nothing so far." : "No message matches."),
      el(
        "p",
        { class: "actions" },
        tokens.length > 1 && button("Previous page", go(() => tokens.pop())),
        page.next && button(messages.length ? "Next page" : "Search on", go(() => tokens.push(page.next))),
        el("span", { class: "hint" }, `${count(page.scanned)} messages looked at`),
      ),
    ];
  }

  function columns(messages) {
    const [, ...others] = COLUMNS;
    return [[messages.length ? pickAll(list) : "", "pick"], ...others];
  }

  function messageRow(message) {
    const { sequence } = message;
    const box = el("input", { type: "checkbox", "aria-label": `Select message ${sequence}` });
    box.checked = picked.has(sequence);
    box.addEventListener("change", () => {
      if (box.checked) picked.set(sequence, message);
      else picked.delete(sequence);
      showChosen();
    });
    const due = message.state === "delayed" ? `?due_ms=${message.due_ms}` : "";
    const body = message.body ?? (message.is_masked ? "masked" : "cannot be opened");
    return row(COLUMNS, [
      box,
      link(shortId(message.message_id), `#/queues/${name}/messages/${sequence}${due}`, {
        title: message.message_id,
      }),
      [el("span", { class: `state ${message.state.replace(" ", "-")}` }, message.state),
        holdText(message)],
      instant(message.sent_at_ms),
      count(message.receive_count),
      bytes(message.size),
      el("code", { class: message.body === null ? "masked" : "" }, body.slice(0, 300)),
    ]);
  }

  function showChosen() {
    const sequences = [...picked.keys()];
    if (sequences.length === 0) {
      fill(chosen);
      return;
    }
    const done = async () => {
      picked.clear();
      showChosen();
      await read();
    };
    const may = new Set(queue.may);
    fill(
      chosen,
      el("strong", {}, `${count(sequences.length)} selected`),
      queue.sources_total > 0 && may.has("holdfast:RedriveMessages")
        && link("Redrive", `#/queues/${name}/redrive?sequences=${sequences}`, { class: "button main" }),
      holdButtons(queue, [...picked.values()], done, fail),
      button("Select none", done),
    );
  }

  fill(
    view,
    el("h1", {}, "Messages of ", link(name, `#/queues/${name}`)),
    !queue.may.includes("holdfast:ReadMessageBodies")
      && el("p", { class: "notice" }, "Bodies are masked: your policies do not allow "
        + "holdfast:ReadMessageBodies."),
    el(
      "form",
      { class: "search", onsubmit: begin },
      field("State", state),
      filter.elements,
      button("Search", () => {}, { type: "submit", class: "main" }),
    ),
    chosen,
    redriveThese,
    list,
    same,
  );
  await read();
}
