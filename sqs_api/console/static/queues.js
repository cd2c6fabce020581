// All queues: search, sort, pages, rates. Those that were deleted or purged lately, with Restore.

import { addressOf } from "./address.js";
import { caller, get } from "./api.js";
import { keep, kept } from "./columns.js";
import { listQueues } from "./commands.js";
import { Depths } from "./depths.js";
import { command, el, fill, link, patch, queueLink, row, table } from "./dom.js";
import { FilterBox } from "./filter_box.js";
import { conditionText, isCondition, QUEUES, withMore } from "./filters.js";
import { count, rate, span } from "./format.js";
import { Listing } from "./listing.js";
import { History } from "./live.js";
import { recentlyDeleted } from "./recently_deleted.js";
import { resource } from "./resource.js";
import { shownText } from "./unseen_characters.js";

const REFRESH_MS = 5000;
const DEFAULTS = { search: "", tags: "", sort: "name", reverse: "", after: "" };
const KEPT = "holdfast tag columns";
const KEYS_MAX = 6;
const history = new History();
const COLUMNS = [
  ["Queue", "name queue", "name"],
  ["Visible", "number", "visible"],
  ["In flight", "number", "in_flight"],
  ["Delayed", "number wide", "delayed"],
  ["Oldest", "number", "oldest"],
  ["Lost in", "number wide", "expires"],
  ["In/s", "number wide"],
  ["Out/s", "number wide"],
  ["Last hour", "wide trend"],
  ["Dead letters", "wide names"],
];

export async function showQueues({ view, query, signal, fail }) {
  const listing = new Listing("/queues", query, DEFAULTS, () => list.ask());
  const { state } = listing;
  const { may } = await caller();
  const depths = new Depths("depths", history, () => list.show());
  const list = resource({ what: "The queues", ask, show, signal, fail });
  const box = new FilterBox(query, QUEUES, {
    label: "Search queues by name",
    placeholder: "A name, or team = pay  ( / )",
    typed: (text) => isCondition(text) || listing.begin({ search: text.trim() }),
    changed: () => listing.begin({ tags: box.texts.tags ?? "", search: box.input.value.trim() }),
    seen: () => known.flatMap(({ key, values }) => Object.keys(values).map((value) => conditionText("tags", `${key}=${value}`))),
  });
  box.input.value = state.search;
  const chosen = new Set(kept(KEPT).split("\n").filter(Boolean));
  const columns = el("details", { class: "more", open: chosen.size > 0 }, el("summary", {}, "Columns of tags"));
  /** @type {Schemas["ShownTagKey"][]} */
  let known = [];

  /** The tags there are, for suggestions and columns. */
  async function readTags() {
    const found = await get("queue-tags", {}, signal).catch(() => null); // it is a help only
    if (!found) return;
    known = found.tags;
    if (!box.list.hidden) box.offer();
    showColumns();
  }

  function showColumns() {
    const keys = [...new Set([...chosen, ...known.map(({ key }) => key)])].slice(0, 20);
    patch(columns, el("summary", {}, "Columns of tags"), keys.length
      ? el("div", { class: "choices" }, keys.map((key) => {
        const tick = el("input", { type: "checkbox", disabled: chosen.size >= KEYS_MAX && !chosen.has(key), onchange: choose });
        tick.checked = chosen.has(key);
        return el("label", { class: "choice", "data-key": key }, tick, key);
      }))
      : el("p", { class: "hint" }, "No queue has a tag."));
  }

  function choose({ currentTarget: tick }) {
    const key = tick.closest("label").dataset.key;
    if (tick.checked) chosen.add(key);
    else chosen.delete(key);
    keep(KEPT, [...chosen].join("\n"));
    showColumns();
    list.read();
  }

  async function ask(mine) {
    const { search, tags, after } = state;
    const wanted = { search, tags, after, ...listing.order, limit: 100 };
    const page = await get("queues", { ...wanted, columns: [...chosen].join("\n") }, mine);
    page.queues.forEach((queue) => history.add(queue));
    depths.read(wanted, mine).catch(fail);
    return page;
  }

  function show(page) {
    const [name, ...others] = COLUMNS;
    const shown = [name, ...[...chosen].map((key) => [key, "value"]), ...others];
    return [
      el("p", { class: "hint", role: "status" }, `${count(page.total)} queue${page.total === 1 ? "" : "s"}`),
      page.queues.length > 0
        ? table(listing.columns(shown), page.queues.map((queue) => queueRow(queue, depths, shown, tagCells(queue))), "Queues")
        : nothing(),
      listing.pager(page.next, list.state),
      command(listQueues(state)),
    ];
  }

  /** Values of the chosen tags; each leads to the queues that have it, too. */
  function tagCells({ tags }) {
    return [...chosen].map((key) => Object.hasOwn(tags, key) && link(shownText(tags[key]) || "(empty)", addressOf("/queues", {
      ...state, after: "", ...withMore(state.tags ? { tags: state.tags } : {}, { tags: `${key}=${tags[key]}` }) }, DEFAULTS)));
  }

  function nothing() {
    if (state.tags) return el("p", { class: "empty" }, "No queue matches. ", link("Show all queues", "#/queues"), ".");
    if (state.search) return el("p", { class: "empty" }, "No queue has such a name.");
    return el("p", { class: "empty" }, "There is no queue yet. ", may.includes("sqs:CreateQueue")
      && [link("Create the first one", "#/new-queue"), ", or let a program do it: this service answers as SQS does."]);
  }

  fill(
    view,
    el("h1", {}, "Queues"),
    el("div", { class: "toolbar" }, box.element,
      may.includes("sqs:CreateQueue") && link("Create a queue", "#/new-queue", { class: "button main" }),
      columns),
    list.place,
    may.includes("holdfast:ListDeletedQueues") && recentlyDeleted({ may, signal, fail, restored: list.read }),
  );
  readTags();
  await list.watch(REFRESH_MS);
}

function queueRow(queue, depths, columns, tagCells) {
  const { name, may, hidden } = queue;
  const holds = queue.visible || queue.in_flight || queue.delayed;
  const dead = queue.dead_letter_queue;
  return row(columns, [
    queueLink(name, may.includes("holdfast:GetQueue")),
    ...tagCells,
    shown(queue.visible),
    shown(queue.in_flight),
    shown(queue.delayed),
    span(queue.oldest_age_s),
    holds ? span(queue.expires_in_s) : "",
    rate(history.rate(name, "sent")),
    rate(history.rate(name, "received")),
    depths.line(name),
    [
      dead && ["to ", queueLink(dead.name, !hidden.includes(dead.name))],
      queue.sources_total > 0 && redriveLink(queue),
    ],
  ], { "data-key": name });
}

/** What is there stands out from what is not. */
function shown(number) {
  return number === 0 ? el("span", { class: "zero" }, "0") : count(number);
}

function redriveLink({ name, may, sources_total: sources }) {
  const mayRedrive = ["holdfast:GetQueue", "holdfast:RedriveMessages"].every((each) => may.includes(each));
  const text = sources === 1 ? "of one queue" : `of ${sources} queues`;
  return mayRedrive ? link(text, `#/queues/${name}/redrive`,
    { title: `redrive ${name}`, "aria-label": `${text}, redrive ${name}` }) : text;
}
