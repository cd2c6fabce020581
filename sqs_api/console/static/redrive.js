// Redrives: a dry run first, then the move with its progress; and those of before.

import { get, ofQueue, post } from "./api.js";
import * as commands from "./commands.js";
import { button, command, el, field, fill, link, notice, refill, row, table } from "./dom.js";
import { bytes, count, instant, nameOf } from "./format.js";
import { repeat } from "./live.js";

const REFRESH_MS = 1000;
const PLANNED = [["To", "name"], ["Messages", "number"], ["Bytes", "number"], ["Why they stay", ""]];
const LATEST = [
  ["Started", ""],
  ["Status", ""],
  ["Moved", "number"],
  ["To", "wide"],
  ["Rate", "number wide"],
  ["Failure", "wide"],
];
const REASONS = {
  InFlight: "in flight: a consumer has them",
  MessageGone: "not in the queue any more",
  CouldNotDetermineMessageSource: "sent here directly: choose a queue",
  AccessDenied: "you may not send to their source",
  "AWS.SimpleQueueService.NonExistentQueue": "their source is gone or of another type",
  "AWS.SimpleQueueService.UnsupportedOperation": "their source is in another shard",
};

export async function showRedrive({ view, parts: [name], query, signal, fail }) {
  const queue = await get(ofQueue(name), {}, signal);
  const sequences = query.get("sequences")?.split(",").map(Number) ?? null;
  const destination = el("input", { placeholder: "their own sources", list: "sources" });
  const rate = el("input", { type: "number", min: "1", max: "500", placeholder: "no limit" });
  const planned = el("div", { role: "status" });
  const latest = el("div");
  const start = button("Start", () => run(), { class: "main", disabled: true });

  function wanted() {
    const given = {};
    if (sequences) given.sequences = sequences;
    if (destination.value.trim()) given.destination = destination.value.trim();
    if (rate.value) given.rate = Number(rate.value);
    return given;
  }

  async function plan(event) {
    event?.preventDefault();
    start.disabled = true;
    const sums = { targets: {}, refused: {} };
    let at = 0;
    try {
      while (at !== null) {
        const content = { ...wanted(), from_sequence: at };
        const step = await post(ofQueue(name, "/redrives/plan"), content);
        add(sums, step);
        at = step.next;
        fill(planned, planTable(sums, at !== null));
      }
      fill(planned, planTable(sums, false), same());
      start.disabled = Object.keys(sums.targets).length === 0;
    } catch (error) {
      fill(planned);
      fail(error);
    }
  }

  function same() {
    return command(commands.plan(name, wanted()), commands.start(queue, wanted()));
  }

  async function run() {
    start.disabled = true;
    try {
      await post(ofQueue(name, "/redrives"), wanted());
      notice("The redrive has begun.");
      await read();
    } catch (error) {
      fail(error);
    }
  }

  async function read() {
    try {
      const { redrives } = await get(ofQueue(name, "/redrives"), {}, signal);
      refill(latest, redrives.length
        ? [progress(redrives[0]), table(LATEST, redrives.map(redriveRow), "Latest redrives")]
        : el("p", { class: "empty" }, "There was none so far."));
    } catch (error) {
      fail(error);
    }
  }

  function progress(redrive) {
    if (!redrive.is_active) return null;
    const cancel = async () => {
      try {
        const answer = await post(ofQueue(name, "/redrives/cancel"), { handle: redrive.handle });
        notice(`Cancelled after ${answer.moved} messages.`);
        await read();
      } catch (error) {
        fail(error);
      }
    };
    const { moved, to_move: all } = redrive;
    return el(
      "div",
      { class: "panel" },
      el("p", {}, `${count(moved)} of ${count(all)} messages moved`),
      el("progress", { value: String(moved), max: String(Math.max(1, all)), "aria-label": "Moved" }),
      el("p", { class: "actions" }, button("Cancel", cancel, { class: "danger" })),
      command(commands.cancel(redrive.handle)),
    );
  }

  fill(
    view,
    el("h1", {}, "Redrive ", link(name, `#/queues/${name}`)),
    el("p", {}, sequences
      ? `${count(sequences.length)} selected messages`
      : "All messages of the queue that are not in flight"),
    el("datalist", { id: "sources" }, queue.sources.map((source) => el("option", { value: source }))),
    el(
      "form",
      { class: "search", onsubmit: plan, oninput: () => (start.disabled = true) },
      field("To", destination),
      field("Messages a second", rate),
      button("Dry run", () => {}, { type: "submit" }),
      start,
    ),
    planned,
    el("h2", {}, "Latest redrives"),
    latest,
  );
  await repeat(signal, REFRESH_MS, read);
}

function add(sums, step) {
  for (const [arn, { messages, bytes: size }] of Object.entries(step.targets)) {
    const known = (sums.targets[arn] ??= { messages: 0, size: 0 });
    known.messages += messages;
    known.size += size;
  }
  for (const [reason, messages] of Object.entries(step.refused))
    sums.refused[reason] = (sums.refused[reason] ?? 0) + messages;
}

function planTable(sums, isUnfinished) {
  const targets = Object.entries(sums.targets).map(([arn, { messages, size }]) =>
    row(PLANNED, [link(nameOf(arn), `#/queues/${nameOf(arn)}`), count(messages), bytes(size), ""]));
  const refused = Object.entries(sums.refused).map(([reason, messages]) =>
    row(PLANNED, [el("em", {}, "they stay"), count(messages), "", REASONS[reason] ?? reason]));
  if (targets.length + refused.length === 0)
    return el("p", { class: "empty" }, isUnfinished ? "…" : "Nothing would move.");
  return [
    el("h2", {}, isUnfinished ? "What would move, so far" : "What would move"),
    table(PLANNED, [...targets, ...refused], "What would move"),
  ];
}

function redriveRow(redrive) {
  return row(LATEST, [
    instant(redrive.started_at_ms),
    redrive.status.toLowerCase(),
    `${count(redrive.moved)} of ${count(redrive.to_move)}`,
    redrive.destination_arn ? nameOf(redrive.destination_arn) : "each to its source",
    redrive.rate ?? "",
    redrive.failure ? (REASONS[redrive.failure] ?? redrive.failure) : "",
  ]);
}
