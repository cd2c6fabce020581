// Replays archived messages: a dry run first, then copies, a hundred a request. A replay that was
// stopped goes on; its address has the place.

import { post, question } from "./api.js";
import { ofArchive } from "./archive.js";
import * as commands from "./commands.js";
import { button, command, el, field, fill, form, link, row, submit, table, time, USED } from "./dom.js";
import { FilterBox } from "./filter_box.js";
import { ARCHIVED } from "./filters.js";
import { bytes, count } from "./format.js";
import { queueInput } from "./redrive_forms.js";
import { resource } from "./resource.js";

const COUNTS = ["messages", "bytes", "sealed", "damaged", "too_large"];
const LEFT_OUT = [["sealed", "sealed: the archive has them encrypted only"],
  ["damaged", "damaged: their checksum is wrong"], ["too_large", "too large for the queue"]];
const PLAN = [["To", "name"], ["Messages", "number"], ["Bytes", "number"], ["Sent", ""]];
const COPIES = [["Original", "name"], ["Copy", "name"], ["Note", ""]];
const SHOWN = 50;
const NO_QUEUE = "AWS.SimpleQueueService.NonExistentQueue";

/** @typedef {{sums: Record<string, number>, chosen: object | null, refusal?: string}} Counted `chosen` once all is counted */

export async function showReplay({ view, parts: [name], query, signal, fail }) {
  const places = query.get("places")?.split(",") ?? null;
  const filter = new FilterBox(query, ARCHIVED, { label: "Only messages that match", placeholder: "all messages",
    changed: () => begin() });
  const { input: to, names } = queueInput(() => true, { value: query.get("to") ?? name, required: true });
  const status = el("div", { role: "status" });
  const dryRun = resource({ what: "The dry run", ask: plan, show: showPlan, signal, fail });
  const start = button("Send copies", () => run().then(() => USED), { class: "main", disabled: true, busy: "Sending …" });
  const stop = button("Stop", () => (isStopped = true), { hidden: true });
  const goOn = button("Go on", () => run(),
    { class: "main", hidden: query.get("token") === null, busy: "Sending …" });
  const fields = el(
    "fieldset",
    {},
    places
      ? el("p", {}, `${count(places.length)} selected message${places.length === 1 ? "" : "s"}`)
      : el("div", { class: "field" }, el("span", {}, "Only messages that match"), filter.element),
    el("div", { class: "search" }, field("To", to), names),
  );
  let isStopped = false;
  let rest = query.get("token"); // null at the beginning, and at the end
  let copies = [];
  let leftOut = [];

  function wanted() {
    const chosen = places ? { places } : { filter: filter.conditions };
    return { ...chosen, to: to.value.trim() };
  }

  /** Where the replay goes on from; null forgets that. */
  function remember(token) {
    rest = token;
    const chosen = places ? { places } : filter.texts;
    const kept = new URLSearchParams({ ...chosen, to: to.value.trim(), ...(token && { token }) });
    window.history.replaceState(null, "", `#/archive/${name}/replay?${kept}`);
  }

  /** Another choice: a replay of it begins with a dry run. */
  function begin() {
    start.disabled = goOn.hidden = true;
    remember(null);
    fill(status);
    dryRun.forget(); // a plan under way is not its plan
  }

  /**
   * Count step by step what would be sent. The queue that gets the copies may not be there: then the screen stays.
   *
   * @param {AbortSignal} mine
   * @param {(counted: Counted) => void} partly
   * @returns {Promise<Counted>}
   */
  async function plan(mine, partly) {
    const chosen = wanted();
    const sums = Object.fromEntries(COUNTS.map((each) => [each, 0]));
    let token = /** @type {string | null} */ (null);
    try {
      do {
        const content = token === null ? chosen : { ...chosen, token };
        const step = await question(ofArchive(name, "/replays/plan"), content, mine);
        for (const each of COUNTS) sums[each] += step[each];
        sums.oldest ||= step.oldest_ms;
        sums.newest = step.newest_ms || sums.newest;
        token = step.next;
        if (token !== null) partly({ sums, chosen: null });
      } while (token !== null);
    } catch (error) {
      if (error.status !== 404) throw error;
      const isGone = error.code === NO_QUEUE;
      return { sums, chosen: null, refusal: isGone ? `There is no queue ${chosen.to}: name another one, or create it.` : error.message };
    }
    return { sums, chosen };
  }

  function showPlan(/** @type {Counted} */ { sums, chosen, refusal = "" }) {
    start.disabled = chosen === null || sums.messages === 0;
    if (refusal) return el("p", { class: "notice error" }, refusal);
    return [planOf(sums, chosen === null), chosen && command(commands.replay(name, chosen))];
  }

  function planOf(sums, isUnfinished) {
    const span = sums.messages ? [time(sums.oldest), " to ", time(sums.newest)] : "";
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
    const chosen = wanted();
    dryRun.forget();
    start.disabled = fields.disabled = true;
    stop.hidden = isStopped = false;
    if (rest === null) copies = leftOut = [];
    try {
      do {
        const content = rest === null ? chosen : { ...chosen, token: rest };
        const step = await post(ofArchive(name, "/replays"), content);
        copies = [...copies, ...step.copies];
        leftOut = [...leftOut, ...step.left_out];
        rest = step.next;
        if (!signal.aborted) remember(rest);
        fill(status, sentOf(copies, leftOut, rest === null ? "" : "so far"));
        if (step.stopped) throw new Error(`${step.stopped} The rest was not sent.`);
      } while (rest !== null && !isStopped && !signal.aborted);
      if (rest !== null) fill(status, sentOf(copies, leftOut, "then it was stopped"));
    } catch (error) {
      fail(error);
      if (rest === null) dryRun.ask(); // nothing was sent: it can be begun again
    }
    stop.hidden = true;
    fields.disabled = false;
    goOn.hidden = rest === null;
    if (rest !== null) status.append(command(commands.replay(name, { ...chosen, token: rest })));
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
    el("h1", {}, "Replay from the archive of ", name),
    el("p", { class: "hint" }, "Copies are sent in the order in which the messages were sent. The "
      + "audit log links each copy to its original."),
    form(
      { onsubmit: () => filter.commit() && (begin(), dryRun.ask()), oninput: begin },
      fields,
      el("p", { class: "actions" }, submit("Dry run", { class: null }), start, goOn, stop),
    ),
    el("div", { role: "status" }, dryRun.place),
    status,
  );
  if (rest === null && (places || Object.keys(filter.conditions).length > 0)) dryRun.ask();
  if (rest !== null)
    fill(status, el("p", { class: "notice" }, "A replay of these messages was stopped. Go on to send the rest."));
}
