// The dead letters of all queues: first those that need someone most.

import { get } from "./api.js";
import { listDeadLetters } from "./commands.js";
import { Depths } from "./depths.js";
import { command, el, fill, link, queueLink, row, table } from "./dom.js";
import { count, span, taskText } from "./format.js";
import { Listing } from "./listing.js";
import { History } from "./live.js";
import { resource } from "./resource.js";

const REFRESH_MS = 5000;
const SOON_S = 86400;
const DEFAULTS = { search: "", sort: "severity", reverse: "", tag: "", all: "", after: "" };
const history = new History();
const COLUMNS = [
  ["Dead-letter queue", "name queue", "name"],
  ["Severity", "wide", "severity"],
  ["Messages", "number", "visible"],
  ["Came in 1 h", "number wide", "arrived"],
  ["Lost in", "number", "expires"],
  ["Oldest", "number wide wider", "oldest"],
  ["Last hour", "wide"],
  ["Sources", "wide wider names"],
  ["Latest redrive", "wide wider"],
  ["Action", ""],
];

export async function showDeadLetters({ view, query, signal, fail }) {
  const listing = new Listing("/dead-letters", query, DEFAULTS, () => list.ask());
  const { state } = listing;
  const depths = new Depths("dead-letters/depths", history, () => list.show());
  const list = resource({ what: "The dead-letter queues", ask, show, signal, fail });

  async function ask(mine) {
    const { search, tag, all, after } = state;
    const wanted = { search, after, by_tag: tag, ...listing.order, with_messages: all === "" };
    const page = await get("dead-letters", wanted, mine);
    page.queues.forEach((queue) => history.add(queue));
    depths.read(wanted, mine).catch(fail);
    return page;
  }

  function show(page) {
    fill(tag, tagOptions(page.tags));
    return [
      page.queues.length > 0
        ? table(listing.columns(COLUMNS), rowsOf(page, state.tag, depths), "Dead-letter queues")
        : el("p", { class: "empty" }, nothing()),
      listing.pager(page.next, list.state),
      command(listDeadLetters(state)),
    ];
  }

  function nothing() {
    if (state.search) return "No dead-letter queue has such a name.";
    return state.all ? "No queue has a redrive policy." : "There are no dead letters: nothing waits for you.";
  }

  function tagOptions(tags) {
    const known = !state.tag || tags.includes(state.tag) ? tags : [state.tag, ...tags];
    return [el("option", { value: "" }, "not grouped"), known.map((each) =>
      el("option", { value: each, selected: each === state.tag }, `by ${each}`))];
  }

  const all = el("input", { type: "checkbox", onchange: () => listing.begin({ all: all.checked ? "yes" : "" }) });
  all.checked = state.all !== "";
  const tag = el("select", { "aria-label": "Group by a tag", onchange: () => listing.begin({ tag: tag.value }) },
    tagOptions([]));
  fill(
    view,
    el("h1", {}, "Dead letters"),
    el("p", { class: "hint" }, "Severity weighs the time until a message is lost, how many there are, "
      + "and how many came in the last hour."),
    el("p", { class: "toolbar" }, listing.search("Search dead-letter queues by name"), tag,
      el("label", { class: "choice" }, all, "Empty ones, too")),
    list.place,
  );
  await list.watch(REFRESH_MS);
}

function rowsOf({ queues, groups }, tag, depths) {
  if (!tag) return queues.map((queue) => deadRow(queue, depths));
  return groups.map((group) => [
    groupRow(group, tag),
    queues.filter((queue) => queue.group === group.value).map((queue) => deadRow(queue, depths)),
  ]);
}

function groupRow({ value, queues, messages }, tag) {
  const numbers = ` ${count(queues)} ${queues === 1 ? "queue" : "queues"}, ${count(messages)} messages`;
  return el("tr", { class: "group", "data-key": `group ${value}` },
    el("th", { colspan: COLUMNS.length, scope: "rowgroup" }, value || `without ${tag}`,
      el("span", { class: "hint" }, numbers)));
}

function deadRow(queue, depths) {
  const { name, task, hidden } = queue;
  const may = new Set(queue.may);
  const holds = queue.visible || queue.in_flight || queue.delayed;
  const urgency = holds && queue.expires_in_s < SOON_S ? "urgent" : "";
  const total = queue.visible === null ? null : queue.visible + queue.in_flight + queue.delayed;
  return row(COLUMNS, [
    queueLink(name, may.has("holdfast:GetQueue")),
    el("span", { class: `state ${queue.level}`, title: `${queue.severity} of 100` }, queue.level),
    count(total),
    queue.arrived ? `+${count(queue.arrived)}` : "",
    holds ? el("strong", { class: urgency }, span(queue.expires_in_s)) : "",
    span(queue.oldest_age_s),
    depths.line(name),
    queue.sources.slice(0, 5).map((source) => [queueLink(source, !hidden.includes(source)), " "]),
    task && el("span", { class: task.paused ? "urgent" : "" }, taskText(task)),
    action(queue, may),
  ], { "data-key": name });
}

/** What is next to be done about a queue. */
function action({ name, task }, may) {
  if (!may.has("holdfast:GetQueue")) return null;
  const to = (text, screen, kind = "button") =>
    link(text, `#/queues/${name}/${screen}`, { class: kind, "aria-label": `${text} ${name}` });
  if (may.has("holdfast:RedriveMessages"))
    return task?.status === "RUNNING" ? to("See redrive", "redrive") : to("Redrive", "redrive", "button main");
  return may.has("holdfast:BrowseMessages") && to("Look", "messages");
}
