// Replays archived messages: a dry run first, then copies, a hundred a request.

import { post } from "./api.js";
import { ofArchive } from "./archive.js";
import { ArchivedFilter } from "./archived_filter.js";
import * as commands from "./commands.js";
import { button, command, el, field, fill, link, row, table } from "./dom.js";
import { bytes, count, instant } from "./format.js";

const COUNTS = ["messages", "bytes", "sealed", "damaged", "too_large"];
const LEFT_OUT = [["sealed", "sealed: the archive has them encrypted only"],
  ["damaged", "damaged: their checksum is wrong"], ["too_large", "too large for the queue"]];
const PLAN = [["To", "name"], ["Messages", "number"], ["Bytes", "number"], ["Sent", ""]];
const COPIES = [["Original", "name"], ["Copy", "name"], ["Note", ""]];
const SHOWN = 50;

export async function showReplay({ view, parts: [name], query, signal, fail }) {
  const places = query.get("places")?.split(",") ?? null;
  const filter = new ArchivedFilter(query);
  const to = el("input", { value: name, required: true, autocomplete: "off" });
  const status = el("div", { role: "status" });
  const start = button("Send copies", () => run(), { class: "main", disabled: true });
  const stop = button("Stop", () => (isStopped = true), { hidden: true });
  let isStopped = false;

  function wanted() {
    const chosen = places ? { places } : { filter: filter.conditions };
    return { ...chosen, to: to.value.trim() };
  }

  /** Go on step by step until the end or a stop; `seen` gets each step. */
  async function steps(path, seen) {
    isStopped = false;
    let token = null;
    do {
      const content = token === null ? wanted() : { ...wanted(), token };
      const step = await post(ofArchive(name, path), content);
      token = step.next;
      seen(step, token !== null);
      if (step.stopped) throw new Error(`${step.stopped} The rest was not sent.`);
    } while (token !== null && !isStopped && !signal.aborted);
  }

  async function plan(event) {
    event?.preventDefault();
    start.disabled = true;
    const sums = Object.fromEntries(COUNTS.map((each) => [each, 0]));
    sums.oldest = sums.newest = 0;
    try {
      await steps("/replays/plan", (step, isUnfinished) => {
        for (const each of COUNTS) sums[each] += step[each];
        sums.oldest ||= step.oldest_ms;
        sums.newest = step.newest_ms || sums.newest;
        fill(status, planOf(sums, isUnfinished));
      });
      fill(status, planOf(sums, false), command(commands.replay(name, wanted())));
      start.disabled = sums.messages === 0;
    } catch (error) {
      tell(error);
    }
  }

  /** The queue that gets the copies may not be there: then the screen stays. */
  function tell(error) {
    if (error.status !== 404) fail(error);
    fill(status, error.status === 404 && el("p", { class: "notice error" }, error.message));
  }

  function planOf(sums, isUnfinished) {
    const span = sums.messages ? `${instant(sums.oldest)} to ${instant(sums.newest)}` : "";
    const target = link(to.value, `#/queues/${to.value}`);
    const left = LEFT_OUT.filter(([each]) => sums[each] > 0).map(([each, why]) =>
      row(PLAN, [el("em", {}, "left out"), count(sums[each]), "", why]));
    return [
      el("h2", {}, isUnfinished ? "Copies, so far" : "Copies that would be sent"),
      table(PLAN, [row(PLAN, [target, count(sums.messages), bytes(sums.bytes), span]), ...left],
        "Copies that would be sent"),
    ];
  }

  async function run() {
    start.disabled = true;
    stop.hidden = false;
    const copies = [];
    const leftOut = [];
    let isWhole = false;
    try {
      await steps("/replays", (step, isUnfinished) => {
        copies.push(...step.copies);
        leftOut.push(...step.left_out);
        isWhole = !isUnfinished;
        fill(status, sentOf(copies, leftOut, isWhole ? "" : "so far"));
      });
      if (!isWhole) fill(status, sentOf(copies, leftOut, "then it was stopped"));
    } catch (error) {
      fail(error);
    }
    stop.hidden = true;
  }

  function sentOf(copies, leftOut, note) {
    const known = copies.filter((each) => each.is_duplicate).length;
    const rows = [
      ...leftOut.map((each) => row(COPIES, [each.original_id, el("em", {}, "none"), each.reason])),
      ...copies.map((each) => row(COPIES, [each.original_id, each.message_id,
        each.is_duplicate ? "sent before" : ""])),
    ];
    return [
      el("h2", {}, "Copies"),
      el("p", {}, `${count(copies.length)} sent to `, link(to.value, `#/queues/${to.value}/messages`),
        note && `, ${note}`, known > 0 && `, ${count(known)} of them before`,
        leftOut.length > 0 && `; ${count(leftOut.length)} left out`, "."),
      rows.length > 0 && table(COPIES, rows.slice(0, SHOWN), "Copies"),
      rows.length > SHOWN && el("p", { class: "hint" }, `The audit log has all ${count(rows.length)}.`),
    ];
  }

  fill(
    view,
    el("h1", {}, "Replay from the archive of ", link(name, `#/archive/${name}`)),
    el("p", { class: "hint" }, "Copies are sent in the order in which the messages were sent. The "
      + "audit log links each copy to its original."),
    el(
      "form",
      { onsubmit: plan, oninput: () => (start.disabled = true) },
      places
        ? el("p", {}, `${count(places.length)} selected message${places.length === 1 ? "" : "s"}`)
        : el("details", { class: "filter", open: Object.keys(filter.conditions).length > 0 },
            el("summary", {}, "Only messages that match"),
            el("div", { class: "search" }, filter.elements)),
      el("div", { class: "search" }, field("To", to)),
      el("p", { class: "actions" }, button("Dry run", () => {}, { type: "submit" }), start, stop),
    ),
    status,
  );
}
