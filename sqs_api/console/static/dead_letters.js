// The dead letters of all queues: first those of which a message is lost soonest.

import { get } from "./api.js";
import { command, el, fill, link, queueLink, row, table } from "./dom.js";
import { count, span, taskText } from "./format.js";
import { Listing } from "./listing.js";
import { History } from "./live.js";
import { resource } from "./resource.js";

const REFRESH_MS = 5000;
const SOON_S = 86400;
const DEFAULTS = { search: "", sort: "expires", all: "", after: "" };
const history = new History();
const COLUMNS = [
  ["Dead-letter queue", "name", "name"],
  ["Messages", "number", "visible"],
  ["Lost in", "number", "expires"],
  ["Oldest", "number wide", "oldest"],
  ["Over time", "wide"],
  ["Sources", "wide"],
  ["Latest redrive", "wide"],
  ["Actions", "wide"],
];

export async function showDeadLetters({ view, query, signal, fail }) {
  const listing = new Listing("/dead-letters", query, DEFAULTS, () => list.ask());
  const { state } = listing;
  const list = resource({ what: "The dead-letter queues", ask, show, signal, fail });

  async function ask(mine) {
    const { all, ...wanted } = state;
    const page = await get("dead-letters", { ...wanted, with_messages: all === "" }, mine);
    page.queues.forEach((queue) => history.add(queue));
    return page;
  }

  function show(page) {
    return [
      page.queues.length > 0
        ? table(listing.columns(COLUMNS), page.queues.map(deadRow), "Dead-letter queues")
        : el("p", { class: "empty" }, nothing()),
      listing.pager(page.next),
      command(`holdfast queues list --dead-letters --url ${location.origin}`),
    ];
  }

  function nothing() {
    if (state.search) return "No dead-letter queue has such a name.";
    return state.all ? "No queue has a redrive policy." : "There are no dead letters: nothing waits for you.";
  }

  const all = el("input", { type: "checkbox", onchange: () => listing.begin({ all: all.checked ? "yes" : "" }) });
  all.checked = state.all !== "";
  fill(
    view,
    el("h1", {}, "Dead letters"),
    el("p", { class: "hint" }, "The queues that lose a message soonest come first."),
    el("p", { class: "toolbar" }, listing.search("Search dead-letter queues by name"), el("label", { class: "choice" }, all, "Empty ones, too")),
    list.place,
  );
  await list.watch(REFRESH_MS);
}

function deadRow(queue) {
  const { name, task, hidden } = queue;
  const may = new Set(queue.may);
  const browses = may.has("holdfast:GetQueue") && may.has("holdfast:BrowseMessages");
  const redrives = may.has("holdfast:GetQueue") && may.has("holdfast:RedriveMessages");
  const holds = queue.visible || queue.in_flight || queue.delayed;
  const urgency = holds && queue.expires_in_s < SOON_S ? "urgent" : "";
  const total = queue.visible === null ? null : queue.visible + queue.in_flight + queue.delayed;
  return row(COLUMNS, [
    queueLink(name, may.has("holdfast:GetQueue")),
    count(total),
    holds ? el("strong", { class: urgency }, span(queue.expires_in_s)) : "",
    span(queue.oldest_age_s),
    history.chart(name),
    queue.sources.slice(0, 5).map((source) => [queueLink(source, !hidden.includes(source)), " "]),
    task && el("span", { class: task.paused ? "urgent" : "" }, taskText(task)),
    [
      browses && [link("Groups", `#/queues/${name}/groups`, { class: "button" }), " ",
        link("Browse", `#/queues/${name}/messages`, { class: "button" }), " "],
      redrives && link("Redrive", `#/queues/${name}/redrive`, { class: "button" }),
    ],
  ], { "data-key": name });
}
