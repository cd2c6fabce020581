// What happened to a message, as a list with the oldest first.

import { el, link, time } from "./dom.js";
import { causeText, count, local, nowMs, span } from "./format.js";

/** What happened, in a sentence without its end. */
export function eventText({ what, by, text, queue, count: times, until_ms: untilMs }) {
  const who = by ? ` by ${by}` : "";
  const told = text ? `: ${text}` : "";
  switch (what) {
    case "sent": return "Sent";
    case "received": return `Received ${times === 1 ? "once" : `${count(times)} times`}${untilMs ? `, hidden until ${local(untilMs)}` : ""}`;
    case "died": return `Became a dead letter${queue ? ` of ${queue}` : ""}${text ? `: ${causeText(text)}` : ""}`;
    case "redriven": return `Redriven${queue ? ` from ${queue}` : ""}${who || ", by whom is not known"}${told}`;
    case "undone": return `Brought back by an undo${by ? ` of ${by}` : ""}`;
    case "edited": return `Edited${who}${queue ? `, in ${queue}` : ""}`;
    case "held": return `Held${who}${told}`;
    case "released": return `Released${who}`;
    case "deleting": return `Deleted${who}${untilMs ? `, for good at ${local(untilMs)}` : ""}`;
    case "undeleted": return `Delete undone${who}`;
    case "copied": return `Copied${queue ? ` to ${queue}` : ""}${who}`;
    case "lost": return "Lost";
    default: return `${text ?? what}${who}`;
  }
}

/** When it happened, as far as that is kept: words, and times in ms. `nowMs` is for what is still to come. */
export function timesOf({ what, at_ms: atMs, first_ms: firstMs, count: times }, nowMs) {
  if (what === "lost") return [`in ${span(Math.max(0, (atMs - nowMs) / 1000))}, `, atMs];
  if (what !== "received") return [atMs || "time not kept"];
  if (!atMs) return firstMs ? [times === 1 ? "" : "first ", firstMs] : ["times not kept"];
  return firstMs && firstMs !== atMs ? ["first ", firstMs, ", last ", atMs] : [atMs];
}

/** The list, with what is not known of it. `name` is the message's queue. */
export function timelineOf(name, { entries, without_audit: withoutAudit, missing }) {
  const hidden = withoutAudit && "Earlier holds, copies and who edited it are in the audit log, which your policies do not allow to read.";
  const silent = missing.length > 0 && `Without the audit log of ${missing.join(", ")}: no answer.`;
  return [
    el("h2", {}, "Timeline"),
    el("ol", { class: "timeline" }, entries.map((entry) =>
      el("li", { class: entry.what, "data-key": `${entry.what} ${entry.at_ms} ${entry.first_ms} ${entry.by}` },
        el("span", { class: "hint" }, timesOf(entry, nowMs()).map((part) => (typeof part === "number" ? time(part) : part))),
        el("span", {}, eventText(entry), detail(name, entry))))),
    el("p", { class: "hint" }, "Single receives are not kept: their number is, and the first and the last one in a queue."),
    [hidden, silent].map((text) => text && el("p", { class: "hint" }, text)),
  ];
}

function detail(name, { what, queue, message_id: id, redrive }) {
  if (redrive) return [" ", link("All redrives", `#/queues/${queue ?? name}/redrive`)];
  return what === "sent" && id && [" as ", el("code", {}, id)];
}
