// All queues: search, sort, pages, rates. Those that were deleted or purged lately, with Restore.

import { caller, get } from "./api.js";
import { listQueues } from "./commands.js";
import { Depths } from "./depths.js";
import { command, el, fill, link, queueLink, row, table } from "./dom.js";
import { count, rate, span } from "./format.js";
import { Listing } from "./listing.js";
import { History } from "./live.js";
import { recentlyDeleted } from "./recently_deleted.js";
import { resource } from "./resource.js";

const REFRESH_MS = 5000;
const DEFAULTS = { search: "", sort: "name", reverse: "", after: "" };
const history = new History();
const COLUMNS = [
  ["Queue", "name", "name"],
  ["Visible", "number", "visible"],
  ["In flight", "number", "in_flight"],
  ["Delayed", "number wide", "delayed"],
  ["Oldest", "number", "oldest"],
  ["Lost in", "number wide", "expires"],
  ["In/s", "number wide"],
  ["Out/s", "number wide"],
  ["Last hour", "wide"],
  ["Dead letters", "wide"],
];

export async function showQueues({ view, query, signal, fail }) {
  const listing = new Listing("/queues", query, DEFAULTS, () => list.ask());
  const { state } = listing;
  const { may } = await caller();
  const depths = new Depths("depths", history, () => list.show());
  const list = resource({ what: "The queues", ask, show, signal, fail });

  async function ask(mine) {
    const { search, after } = state;
    const wanted = { search, after, ...listing.order, limit: 100 };
    const page = await get("queues", wanted, mine);
    page.queues.forEach((queue) => history.add(queue));
    depths.read(wanted, mine).catch(fail);
    return page;
  }

  function show(page) {
    return [
      el("p", { class: "hint" }, `${count(page.total)} queues`),
      page.queues.length > 0
        ? table(listing.columns(COLUMNS), page.queues.map((queue) => queueRow(queue, depths)), "Queues")
        : nothing(),
      listing.pager(page.next),
      command(listQueues(state)),
    ];
  }

  function nothing() {
    if (state.search) return el("p", { class: "empty" }, "No queue has such a name.");
    return el("p", { class: "empty" }, "There is no queue yet. ", may.includes("sqs:CreateQueue")
      && [link("Create the first one", "#/new-queue"), ", or let a program do it: this service answers as SQS does."]);
  }

  fill(
    view,
    el("h1", {}, "Queues"),
    el("p", { class: "toolbar" }, listing.search("Search queues by name"),
      may.includes("sqs:CreateQueue") && link("Create a queue", "#/new-queue", { class: "button main" })),
    list.place,
    may.includes("holdfast:ListDeletedQueues") && recentlyDeleted({ may, signal, fail, restored: list.read }),
  );
  await list.watch(REFRESH_MS);
}

function queueRow(queue, depths) {
  const { name, may, hidden } = queue;
  const holds = queue.visible || queue.in_flight || queue.delayed;
  const dead = queue.dead_letter_queue;
  return row(COLUMNS, [
    queueLink(name, may.includes("holdfast:GetQueue")),
    count(queue.visible),
    count(queue.in_flight),
    count(queue.delayed),
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

function redriveLink({ name, may, sources_total: sources }) {
  const mayRedrive = ["holdfast:GetQueue", "holdfast:RedriveMessages"].every((each) => may.includes(each));
  return mayRedrive ? link(`of ${sources}`, `#/queues/${name}/redrive`) : `of ${sources}`;
}
