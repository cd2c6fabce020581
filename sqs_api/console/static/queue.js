// One queue: counters, settings, dead letters, and what can be done with it.

import { caller, get, ofQueue, post } from "./api.js";
import { charts } from "./charts.js";
import * as commands from "./commands.js";
import { button, command, dashboard, el, facts, fill, link, notice, patch, queueLink, time } from "./dom.js";
import { failures } from "./failures.js";
import { bytes, count, pretty, rate, span, statusText, taskText } from "./format.js";
import { History } from "./live.js";
import { MarkList } from "./marks.js";
import { partsOf } from "./parts.js";
import { allowedBy, meaningOf } from "./redrive_forms.js";
import { resource } from "./resource.js";
import { shownText } from "./unseen_characters.js";

const REFRESH_MS = 3000;
const IN_WORDS = new Set(["RedrivePolicy", "RedriveAllowPolicy"]);
const EDITS = ["sqs:SetQueueAttributes", "sqs:TagQueue", "sqs:UntagQueue"];

export async function showQueue({ view, parts: [name], query, signal, fail }) {
  const history = new History();
  const past = el("div"); // failures and charts, which are read by themselves
  const rest = el("div");
  /** @type {ReturnType<typeof failures> | null} */
  let inbox = null;
  const { has_archive: hasArchive, grafana_url: grafanaUrl } = await caller();
  const now = resource({ what: "The queue", ask, show, signal, fail });

  async function ask(mine) {
    const queue = await get(ofQueue(name), {}, mine);
    history.add(queue);
    return queue;
  }

  function show(queue) {
    if (past.childElementCount === 0) {
      const marks = new MarkList();
      if (showsFailures(queue)) inbox = failures(queue, marks, signal, fail);
      fill(past, inbox && [inbox.place, marks.place], charts(name, query, marks, signal, fail), !inbox && marks.place);
    }
    const { visible, in_flight: inFlight, delayed } = queue; // null while no host leads
    inbox?.changed(visible === null ? null : visible + (inFlight ?? 0) + (delayed ?? 0));
    patch(rest, el("div", { class: "thirds" }, el("div", {}, el("h2", {}, "Queue"), links(queue)), settings(queue)), same(queue));
    return [
      waiting(queue),
      actions(queue, { hasArchive, grafanaUrl, signal }, now.read, fail),
      queue.purges.map((each) => purgeOf(queue, each, now.read, fail)),
      el("div", { class: "cards" }, cards(queue, history)),
    ];
  }

  fill(view, el("h1", {}, name), now.place, partsOf(name, signal), past, rest);
  await now.watch(REFRESH_MS);
}

/** A redrive that waits for someone comes before all else. */
function waiting({ name, task, may }) {
  if (!task?.paused) return null;
  return el("p", { class: "notice warning actions", role: "status", "data-key": "waiting" },
    el("strong", {}, `The redrive ${statusText(task)}.`), " ",
    el("span", {}, `${count(task.moved)} of ${count(task.to_move)} moved.`),
    may.includes("holdfast:RedriveMessages")
      && link("Look and decide", `#/queues/${name}/redrive`, { class: "button main" }));
}

/** The commands for what this screen shows and does. */
function same(queue) {
  const may = new Set(queue.may);
  return command(...commands.showQueue(queue),
    ...(may.has("sqs:PurgeQueue") ? [commands.purge(queue)] : []),
    ...(may.has("sqs:DeleteQueue") ? [commands.deleteQueue(queue)] : []),
    ...(queue.purges.some(({ restoring }) => !restoring) ? [commands.restoreQueue(queue.name)] : []));
}

/** True for a dead-letter queue that the caller may look into. */
function showsFailures(queue) {
  return queue.sources_total > 0 && queue.may.includes("holdfast:BrowseMessages");
}

function card(label, value, more = null) {
  return el("div", { class: "card" }, el("span", {}, label), el("strong", {}, value), more);
}

function cards(queue, history) {
  const holds = queue.visible || queue.in_flight || queue.delayed;
  return [
    card("Visible", count(queue.visible), history.chart(queue.name)),
    card("In flight", count(queue.in_flight)),
    card("Delayed", count(queue.delayed)),
    queue.held > 0 && card("Held", count(queue.held),
      queue.may.includes("holdfast:BrowseMessages") && link("show", `#/queues/${queue.name}/messages?state=held`)),
    queue.quarantined > 0 && card("Damaged", count(queue.quarantined)),
    card("Oldest message", span(queue.oldest_age_s) || "none"),
    holds ? card("Lost in", span(queue.expires_in_s)) : null,
    card("Sent a second", rate(history.rate(queue.name, "sent")) || "…"),
    card("Received a second", rate(history.rate(queue.name, "received")) || "…"),
  ];
}

/** A purge that can be taken back, or what is left of one that comes back. */
function purgeOf(queue, purge, read, fail) {
  const { queue_id: id, purged_at_ms: at, restorable_until_ms: until, obstacle, restoring, messages } = purge;
  const known = { class: "notice", "data-key": String(id) };
  const all = messages === null ? "its messages" : messages === 1 ? "its message" : `its ${count(messages)} messages`;
  if (restoring)
    return el("p", { ...known, role: "status" }, el("span", {}, "Purged at ", time(at), `. Coming back, ${count(messages)} left. `
      + "Those in flight follow when their visibility timeout ends."));
  if (obstacle) return el("p", known, el("span", {}, "Purged at ", time(at), `. ${obstacle}`));
  const undo = async () => {
    try {
      const { complete } = await post("deleted-queues/restore", { queue_id: id });
      notice(complete ? `The messages are back in ${queue.name}.` : `The messages come back to ${queue.name}.`);
    } catch (error) {
      fail(error);
    }
    await read();
  };
  return el("p", { ...known, class: "notice actions" },
    el("span", {}, "Purged at ", time(at), ". Until ", time(until), ` ${all} can be restored.`),
    button("Undo the purge", undo, { busy: "Restoring …" }));
}

function actions(queue, { hasArchive, grafanaUrl, signal }, read, fail) {
  const may = new Set(queue.may);
  const base = `#/queues/${queue.name}`;
  const text = `All messages of ${queue.name} are removed. They can be brought back here for an hour, `
    + "unless the service keeps them for another time."
    + (queue.held ? ` ${count(queue.held)} are held or being deleted: they go, too.` : "");
  const confirm = () => ["Purge the queue?", text, "Purge", queue.name];
  const purge = async () => {
    try {
      await post(ofQueue(queue.name, "/purge"), { confirm: queue.name });
      notice(`${queue.name} is purged.`);
      await read();
    } catch (error) {
      fail(error);
    }
  };
  const deletion = () => ["Delete the queue?", `${queue.name} and its messages go. They can be brought `
    + "back from the list of queues for an hour, unless the service keeps them for another time.", "Delete queue", queue.name];
  const remove = async () => {
    try {
      await post(ofQueue(queue.name, "/delete"), { confirm: queue.name });
      notice(`${queue.name} is deleted.`);
      if (!signal.aborted) location.hash = "#/queues";
    } catch (error) {
      fail(error);
    }
  };
  return el(
    "p",
    { class: "actions" },
    may.has("holdfast:BrowseMessages") && link("Messages", `${base}/messages`, { class: "button main" }),
    may.has("holdfast:BrowseMessages") && link("Live tail", `${base}/tail`, { class: "button" }),
    hasArchive && may.has("holdfast:BrowseMessages") && link("Archive", `#/archive/${queue.name}`, { class: "button" }),
    may.has("sqs:SendMessage") && link("Send", `${base}/send`, { class: "button" }),
    queue.sources_total > 0 && may.has("holdfast:RedriveMessages")
      && link("Redrive", `${base}/redrive`, { class: "button" }),
    EDITS.some((each) => may.has(each)) && link("Edit", `${base}/edit`, { class: "button" }),
    dashboard(grafanaUrl, "owners", { queue: queue.name }),
    may.has("sqs:PurgeQueue") && button("Purge", purge, { class: "danger", busy: "Purging …", confirm }),
    may.has("sqs:DeleteQueue") && button("Delete queue", remove, { class: "danger", busy: "Deleting …", confirm: deletion }),
  );
}

function links(queue) {
  const { dead_letter_queue: dead, hidden } = queue;
  const to = dead && [
    queueLink(dead.name, !hidden.includes(dead.name)),
    ` after ${count(dead.max_receive_count)} receive${dead.max_receive_count === 1 ? "" : "s"}`,
  ];
  const from = queue.sources.map((name) => [queueLink(name, !hidden.includes(name)), " "]);
  const more = queue.sources_total - queue.sources.length;
  return facts([
    ["Dead letters go to", to],
    ["Dead letters come from", from.length ? [from, more > 0 && `and ${more} more`] : null],
    ["Allowed sources", queue.attributes.RedriveAllowPolicy && meaningOf(allowedBy(queue.attributes.RedriveAllowPolicy), queue.name)],
    ["Latest redrive", queue.task && taskText(queue.task)],
    ["ARN", queue.arn],
    ["Created", time(queue.created_at_ms)],
    ["Changed", time(queue.modified_at_ms)],
  ]);
}

function settings(queue) {
  const shown = Object.entries(queue.attributes).filter(([, value]) => pretty(value) === null);
  const documents = Object.entries(queue.attributes).filter(([name, value]) => !IN_WORDS.has(name) && pretty(value) !== null);
  const tags = Object.entries(queue.tags).map(([key, value]) => {
    const own = queue.own_tags.find((each) => each.key === key);
    return [shownText(key), own ? [value, el("span", { class: "hint" }, ` ${own.meaning}`)] : shownText(value)];
  });
  return [
    el("div", { class: "attributes" }, el("h2", {}, "Attributes"), facts(shown.map(([name, value]) => [name, [value, meaning(name, value)]])),
    documents.map(([name, value]) => [
      el("h2", {}, name),
      name === "Policy" && queue.policy_without_effect.length > 0
        && el("p", { class: "notice warning" }, "These statements have no effect, since their "
          + `Resource is not this queue: ${queue.policy_without_effect.join(", ")}`),
      el("pre", { tabindex: "0" }, pretty(value)),
    ])),
    el("div", {}, el("h2", {}, "Tags"),
    Object.entries(queue.tags_without_effect).map(([key, reason]) =>
      el("p", { class: "notice warning" }, `Tag ${key} has no effect, since ${reason}.`)),
    tags.length ? facts(tags) : el("p", { class: "empty" }, "There are no tags.")),
  ];
}

/** A number of an attribute in the unit that people use. */
function meaning(name, value) {
  const text = name === "MaximumMessageSize" ? bytes(Number(value)) : /Timeout$|Period$|Seconds$/.test(name) && (value >= 60 ? span(value) : "s");
  return text && el("span", { class: "hint" }, ` ${text}`);
}
