// The dry run of a redrive: what would move where, and what would go wrong.

import { ofQueue, question } from "./api.js";
import { el, link, row, table } from "./dom.js";
import { bytes, count, nameOf } from "./format.js";
import { resultText } from "./presets.js";

const COLUMNS = [["To", "name"], ["Messages", "number"], ["Bytes", "number"], ["Note", ""]];
const REASONS = {
  InFlight: "in flight: a consumer has them",
  Held: "held, or about to be deleted: release them first",
  MessageGone: "not in the queue any more",
  CouldNotDetermineMessageSource: "sent here directly: choose a queue",
  AccessDenied: "you may not send to their source",
  BodyIsNoObject: "their body is no JSON object, so it cannot be edited",
  EditedTooLong: "edited, they would be too long for their queue",
  InternalFailure: "damaged, or their group is",
  "AWS.SimpleQueueService.NonExistentQueue": "the queue they go to is gone or of another type",
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

/** What a redrive did, and why it failed, in a sentence. */
export function endText(redrive) {
  return resultText(redrive) + (redrive.failure ? `: ${reasonText(redrive.failure)}` : "");
}

/** Plan step by step; `show` gets the sums so far, and true while more steps follow. */
export async function planned(name, wanted, signal, show) {
  /** @type {any} */
  let content = wanted;
  /** @type {Schemas["EditedSample"][]} */
  const samples = [];
  for (;;) {
    const plan = await question(ofQueue(name, "/redrives/plan"), content, signal);
    samples.push(...plan.samples);
    plan.samples = samples;
    show(plan, plan.next !== null);
    if (plan.next === null) return plan;
    content = { ...wanted, token: plan.next };
  }
}

export function planTable(plan, isUnfinished) {
  const targets = Object.entries(plan.targets).map(([arn, target]) =>
    row(COLUMNS, [
      link(nameOf(arn), `#/queues/${nameOf(arn)}`),
      count(target.messages),
      bytes(target.bytes),
      notes(target),
    ]));
  const refused = Object.entries(plan.refused).map(([reason, messages]) =>
    row(COLUMNS, [el("em", {}, "they stay"), count(messages), "", reasonText(reason)]));
  if (plan.passed > 0)
    refused.push(row(COLUMNS, [el("em", {}, "they stay"), count(plan.passed), "", "do not match"]));
  if (targets.length + refused.length === 0)
    return el("p", { class: "empty" }, isUnfinished ? "…" : "Nothing would move.");
  return [
    el("h2", {}, isUnfinished ? "What would move, so far" : "What would move"),
    table(COLUMNS, [...targets, ...refused], "What would move"),
    Object.entries(WARNINGS).map(([name, text]) =>
      plan[name] > 0 && el("p", { class: "notice warning" }, `${count(plan[name])} ${text}.`)),
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
