// The screen of redrives: choose messages and a pace, a dry run first, then the move.

import { get, latest, needs, ofQueue, post } from "./api.js";
import * as commands from "./commands.js";
import { button, command, el, field, fill, form, link, notice, refill, submit, USED } from "./dom.js";
import { conditionsOf, FilterFields } from "./filters.js";
import { count } from "./format.js";
import { repeat } from "./live.js";
import { planned, planTable } from "./plan.js";
import { Redrives } from "./redrives.js";

const REFRESH_MS = 1000;
const PACE = [
  ["rate", "Messages a second", "no limit", 500],
  ["ramp_s", "Rate rises for … seconds", "at once", 86400],
  ["canary", "Wait for me after", "do not wait"],
  ["stop_after", "Stop when … came back", "do not stop"],
];

export async function showRedrive({ view, parts: [name], query, signal, fail }) {
  const queue = await get(ofQueue(name), {}, signal);
  needs(queue, "holdfast:RedriveMessages");
  const sequences = query.get("sequences")?.split(",").map(Number) ?? null;
  const filter = new FilterFields(query);
  const destination = el("input", { placeholder: "their own sources", list: "sources" });
  const reason = el("input", { placeholder: "for the history", maxlength: "500" });
  const pace = PACE.map(([option, label, placeholder, max = null]) =>
    [option, label, el("input", { type: "number", min: "1", max, placeholder })]);
  const dryRun = el("div", { role: "status" });
  const list = el("div");
  const redrives = new Redrives(queue, { signal, fail }, () => read());
  const start = button("Start", () => run(), { class: "main", disabled: true, busy: "Starting …" });
  const newest = latest(signal);
  let counted = 0; // messages of the last plan

  function wanted() {
    const given = {};
    if (sequences) given.sequences = sequences;
    else if (filter.conditions) given.filter = filter.conditions;
    if (destination.value.trim()) given.destination = destination.value.trim();
    for (const [option, , input] of pace) if (input.value) given[option] = Number(input.value);
    if (reason.value.trim()) given.reason = reason.value.trim();
    return given;
  }

  /** Another choice: a plan under way is not its plan. */
  function begin() {
    start.disabled = true;
    return newest();
  }

  async function plan() {
    const mine = begin();
    try {
      const show = (sums, isUnfinished) => fill(dryRun, planTable(sums, isUnfinished));
      const whole = await planned(name, wanted(), mine, show);
      fill(dryRun, planTable(whole, false), hint(), same());
      counted = whole.messages;
      start.disabled = counted === 0;
    } catch (error) {
      if (!mine.aborted) fill(dryRun);
      fail(error);
    }
  }

  function hint() {
    const { stop_after: stops, rate, canary } = wanted();
    return stops && !rate && !canary && el("p", { class: "notice warning" },
      "Without a rate or a canary all have moved before one can come back.");
  }

  function same() {
    return command(commands.plan(name, wanted()), commands.start(queue, wanted()));
  }

  async function run() {
    try {
      await post(ofQueue(name, "/redrives"), { ...wanted(), planned: counted });
      notice("The redrive has begun.");
      await read();
    } catch (error) {
      fail(error);
    }
    return USED;
  }

  async function read() {
    try {
      refill(list, await redrives.read());
    } catch (error) {
      fail(error);
    }
  }

  fill(
    view,
    el("h1", {}, "Redrive ", link(name, `#/queues/${name}`)),
    el("datalist", { id: "sources" }, queue.sources.map((source) => el("option", { value: source }))),
    form(
      { onsubmit: plan, oninput: begin },
      sequences
        ? el("p", {}, `${count(sequences.length)} selected messages`)
        : el(
            "details",
            { class: "filter", open: Object.keys(conditionsOf(query)).length > 0 },
            el("summary", {}, "Only messages that match"),
            el("div", { class: "search" }, filter.elements),
          ),
      el(
        "div",
        { class: "search" },
        field("To", destination),
        pace.map(([, label, input]) => field(label, input)),
        field("Reason", reason),
      ),
      el("p", { class: "actions" }, submit("Dry run", { class: null }), start),
    ),
    dryRun,
    el("h2", {}, "Latest redrives"),
    list,
  );
  await repeat(signal, REFRESH_MS, read);
}
