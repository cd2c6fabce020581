// The dry run of a redrive: what would move where, and what would go wrong.

import { ofQueue, question } from "./api.js";
import { el, link, row, table } from "./dom.js";
import { bytes, count, nameOf } from "./format.js";

const COLUMNS = [["To", "name"], ["Messages", "number"], ["Bytes", "number"], ["Note", ""]];
const COUNTS = ["passed", "expiring", "overtaking"];
const REASONS = {
  InFlight: "in flight: a consumer has them",
  Held: "held, or about to be deleted: release them first",
  MessageGone: "not in the queue any more",
  CouldNotDetermineMessageSource: "sent here directly: choose a queue",
  AccessDenied: "you may not send to their source",
  InternalFailure: "damaged, or their group is",
  "AWS.SimpleQueueService.NonExistentQueue": "their source is gone or of another type",
  "KMS.AccessDeniedException": "under a key that is neither the queue's nor their source's",
  "KMS.DisabledException": "the key is disabled",
  "KMS.NotFoundException": "the key of the queue they go to is gone",
};
const WARNINGS = {
  expiring: "expire before their turn comes: choose a higher rate",
  overtaking: "leave earlier messages of their group behind, and overtake them",
};

export function reasonText(code) {
  return REASONS[code] ?? code;
}

/** Plan step by step; `show` gets the sums so far, and true while more steps follow. */
export async function planned(name, wanted, signal, show) {
  const sums = { targets: {}, refused: {}, passed: 0, expiring: 0, overtaking: 0, messages: 0 };
  let at = /** @type {number | null} */ (0);
  while (at !== null) {
    const content = { ...wanted, from_sequence: at, planned: sums.messages };
    const step = await question(ofQueue(name, "/redrives/plan"), content, signal);
    add(sums, step);
    at = step.next;
    show(sums, at !== null);
  }
  return sums;
}

function add(sums, step) {
  for (const [arn, target] of Object.entries(step.targets)) {
    const known = (sums.targets[arn] ??= { ...target, messages: 0, bytes: 0, too_large: 0 });
    known.messages += target.messages;
    known.bytes += target.bytes;
    known.too_large += target.too_large;
    sums.messages += target.messages;
  }
  for (const [reason, messages] of Object.entries(step.refused))
    sums.refused[reason] = (sums.refused[reason] ?? 0) + messages;
  for (const name of COUNTS) sums[name] += step[name];
}

export function planTable(sums, isUnfinished) {
  const targets = Object.entries(sums.targets).map(([arn, target]) =>
    row(COLUMNS, [
      link(nameOf(arn), `#/queues/${nameOf(arn)}`),
      count(target.messages),
      bytes(target.bytes),
      notes(target),
    ]));
  const refused = Object.entries(sums.refused).map(([reason, messages]) =>
    row(COLUMNS, [el("em", {}, "they stay"), count(messages), "", reasonText(reason)]));
  if (sums.passed > 0)
    refused.push(row(COLUMNS, [el("em", {}, "they stay"), count(sums.passed), "", "do not match"]));
  if (targets.length + refused.length === 0)
    return el("p", { class: "empty" }, isUnfinished ? "…" : "Nothing would move.");
  return [
    el("h2", {}, isUnfinished ? "What would move, so far" : "What would move"),
    table(COLUMNS, [...targets, ...refused], "What would move"),
    Object.entries(WARNINGS).map(([name, text]) =>
      sums[name] > 0 && el("p", { class: "notice warning" }, `${count(sums[name])} ${text}.`)),
  ];
}

function notes(target) {
  const after = target.returns_after;
  return [
    after === null
      ? "those that fail there do not come back here"
      : `back here after ${count(after)} failed receive${after === 1 ? "" : "s"}`,
    target.too_large > 0
      && `; ${count(target.too_large)} above the queue's MaximumMessageSize move all the same`,
  ];
}
