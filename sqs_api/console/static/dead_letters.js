// The dead letters of all queues: first those of which a message is lost soonest.

import { get, latest } from "./api.js";
import { button, command, el, fill, link, queueLink, refill, row, table } from "./dom.js";
import { count, span, taskText } from "./format.js";
import { History, repeat } from "./live.js";

const REFRESH_MS = 5000;
const SOON_S = 86400;
const history = new History();
const COLUMNS = [
  ["Dead-letter queue", "name"],
  ["Messages", "number"],
  ["Lost in", "number"],
  ["Oldest", "number wide"],
  ["Over time", "wide"],
  ["Sources", "wide"],
  ["Latest redrive", "wide"],
  ["Actions", "wide"],
];

export async function showDeadLetters({ view, signal, fail }) {
  const list = el("div");
  const newest = latest(signal);
  const tokens = /** @type {(string | null)[]} */ ([null]);

  async function read() {
    try {
      const page = await get("dead-letters", { after: tokens.at(-1) }, newest());
      page.queues.forEach((queue) => history.add(queue));
      refill(
        list,
        page.queues.length
          ? table(COLUMNS, page.queues.map(deadRow), "Dead-letter queues")
          : el("p", { class: "empty" }, "No queue has a redrive policy."),
        el(
          "p",
          { class: "actions" },
          tokens.length > 1 && button("Previous page", () => (tokens.pop(), read())),
          page.next && button("Next page", () => (tokens.push(page.next), read())),
        ),
      );
    } catch (error) {
      fail(error);
    }
  }

  fill(
    view,
    el("h1", {}, "Dead letters"),
    el("p", { class: "hint" }, "The queues that lose a message soonest come first."),
    list,
    command(`holdfast queues list --dead-letters --url ${location.origin}`),
  );
  await repeat(signal, REFRESH_MS, read);
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
  ]);
}
