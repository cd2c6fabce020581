// The screen of redrives, a short conversation: what, where to, how carefully; a dry run; the move.

import { keep } from "./address.js";
import { get, latest, needs, ofQueue, post } from "./api.js";
import * as commands from "./commands.js";
import { button, command, el, field, fill, form, notice, patch, submit, USED } from "./dom.js";
import { EditFields, shownSamples } from "./edit.js";
import { failureLine } from "./failures.js";
import { FilterBox } from "./filter_box.js";
import { REDRIVES } from "./filters.js";
import { callerName, count, nameOf, statusText } from "./format.js";
import { planned, planTable } from "./plan.js";
import { LIMIT, limitOf, paceText, PRESETS } from "./presets.js";
import { Redrives } from "./redrives.js";
import { needed, resource } from "./resource.js";

const REFRESH_MS = 1000;
const QUIET_MINUTES = 10;
const USUAL = "normal";
const PACE = [
  ["rate", "Messages a second", "no limit", 500],
  ["ramp_s", "Rate rises for … seconds", "at once", 86400],
  ["canary", "Wait for me after", "do not wait"],
];

export async function showRedrive(screen) {
  const { view, parts: [name], query, signal, fail } = screen;
  const queue = await needed(screen, "The queue", (mine) => get(ofQueue(name), {}, mine));
  needs(queue, "holdfast:RedriveMessages");
  const sequences = query.get("sequences")?.split(",").map(Number) ?? null;
  const filter = new FilterBox(query, REDRIVES, { label: "Only messages that match", placeholder: "all messages",
    changed: () => (begin(), remember()) });
  const failure = failureLine(queue, query.get("failure"), signal);
  const edit = new EditFields(query.has("edit"));
  const destination = el("input", { name: "to", placeholder: "their own sources", list: "sources" });
  const reason = el("input", { name: "why", placeholder: "for the history", maxlength: "500" });
  const pace = PACE.map(([option, label, placeholder, max = null]) =>
    [option, label, el("input", { name: option, type: "number", min: "1", max, placeholder })]);
  const stop = el("input", { name: "stop_after", pattern: LIMIT, placeholder: "do not stop; 20, or 5%" });
  pace.push(["stop_after", "Stop when … came back", stop]);
  const typed = [destination, reason, ...edit.inputs]; // in the address, as the preset is, or numbers in its place
  /** @type {{plan: Answer<"post", "queues/{queue}/redrives/plan"> | null, isWhole: boolean, warnings: string[], preset: string}} */
  const state = { plan: null, isWhole: false, warnings: [], preset: "" };
  const dryRun = el("div", { role: "status" });
  const how = el("p", { class: "hint", role: "status" });
  const start = button("Start", () => run(),
    { class: "main", disabled: true, busy: "Starting …", confirm: () => wholeQueue() });
  const newest = latest(signal);
  const redrives = new Redrives(queue, { fail }, () => list.read(), () => list.ask());
  const list = resource({ what: "The redrives", signal, fail,
    ask: (mine) => redrives.ask(mine), show: (page) => redrives.show(page) });

  function wanted() {
    /** @type {Content<"post", "queues/{queue}/redrives/plan">} */
    const given = {};
    if (sequences) given.sequences = sequences;
    else if (isFiltered()) given.filter = filter.conditions;
    const patch = edit.patch;
    if (patch && !sequences) given.edit = patch;
    if (destination.value.trim()) given.destination = destination.value.trim();
    for (const [option, , input] of pace)
      if (input.value && input !== stop) given[option] = Number(input.value);
    const limit = limitOf(stop.value, messages());
    if (limit) given.stop_after = limit;
    if (reason.value.trim()) given.reason = reason.value.trim();
    return given;
  }

  function isFiltered() {
    return Object.keys(filter.texts).length > 0;
  }

  /** Back and reload find what was chosen. */
  function remember() {
    const numbers = state.preset ? [] : pace.map(([, , input]) => input);
    const given = [...typed, ...numbers].filter(({ value }) => value).map(({ name: of, value }) => [of, value]);
    keep(`/queues/${name}/redrive`, { ...filter.texts, ...(sequences && { sequences: sequences.join(",") }),
      ...(edit.isOpen && { edit: "" }), ...Object.fromEntries(given), preset: state.preset },
    { preset: USUAL, edit: null });
  }

  /** Messages that would move, as far as it is known. */
  function messages() {
    return state.plan?.messages ?? sequences?.length ?? queue.visible ?? 0;
  }

  /** Another choice of messages or queues: a plan under way is not its plan. */
  function begin() {
    Object.assign(state, { plan: null, isWhole: false, warnings: [] });
    failure.hidden = !filter.texts.failure;
    show();
    return newest();
  }

  function choose(preset) {
    const { rate } = wanted();
    const given = PRESETS[preset].pace(messages());
    for (const [option, , input] of pace) input.value = given[option] ?? "";
    state.preset = preset;
    if (state.plan && wanted().rate !== rate) plan(); // at this rate other messages may expire
    else show();
  }

  function show() {
    const isWrong = pace.some(([, , input]) => !input.validity.valid);
    start.disabled = !state.isWhole || state.plan?.messages === 0 || isWrong;
    how.textContent = paceText(wanted(), messages());
    patch(dryRun, state.plan
      ? [planTable(state.plan, !state.isWhole), shownSamples(state.plan.samples), state.warnings.map(warning), same()]
      : el("p", { class: "empty" }, "The dry run says here what would move, and where to. Nothing moves before the start."));
  }

  async function plan() {
    if (!filter.commit()) return;
    const mine = begin();
    try {
      await planned(name, wanted(), mine, (sums, isUnfinished) => {
        Object.assign(state, { plan: sums, isWhole: !isUnfinished });
        if (state.isWhole && state.preset) choose(state.preset);
        show();
      });
      state.warnings = await warnings(mine);
      show();
    } catch (error) {
      fail(error);
    }
  }

  /** What one should know before the start. */
  async function warnings(mine) {
    const { stop_after: stops, rate, canary } = wanted();
    const found = /** @type {(string | false | null | 0 | undefined)[]} */ ([stops && !rate && !canary
      && "Without a rate or a canary all have moved before one can come back."]);
    const active = list.state.value?.redrives.find((each) => each.is_active);
    if (active) found.push(`Another redrive of this queue is ${statusText(active)}: this one is refused until it ends.`);
    for (const arn of Object.keys(state.plan?.targets ?? {}).slice(0, 5)) found.push(await quiet(arn, mine));
    return found.filter((each) => typeof each === "string");
  }

  /** A warning if nobody receives from a target. */
  async function quiet(arn, mine) {
    try {
      const past = await get(ofQueue(nameOf(arn), "/history"), { hours: 1 }, mine);
      const known = past.series.received.filter((each) => each !== null).slice(-QUIET_MINUTES);
      return known.length > 1 && known.every((each) => each === 0)
        && `Nobody has received from ${nameOf(arn)} for ${known.length} minutes: messages would wait there.`;
    } catch (error) {
      if (error.name === "AbortError") throw error;
      return null; // this user may not look at it
    }
  }

  /** A whole queue is named again before it moves. */
  function wholeQueue() {
    if (wanted().sequences || wanted().filter) return null;
    return [`Redrive all of ${name}?`, `${count(messages())} messages move. ${how.textContent}`, "Redrive all", name];
  }

  function same() {
    return command(commands.plan(name, wanted()), commands.start(queue, wanted()));
  }

  async function run() {
    try {
      await post(ofQueue(name, "/redrives"), { ...wanted(), planned: messages() });
      notice("The redrive has begun.");
      await list.read();
    } catch (error) {
      await refused(error);
      if (error.isFinal === false) return undefined; // it is pressed again
    }
    return USED;
  }

  /** Another operator may have been faster: then that one's redrive is shown, and who it was. */
  async function refused(error) {
    await list.read();
    const active = error.status === 400 && list.state.value?.redrives.find((each) => each.is_active);
    if (!active) return fail(error);
    return notice(`Not started: another redrive of this queue is ${statusText(active)}, begun by ${
      callerName(active.started_by)}. It is shown above.`, "error");
  }

  function changed({ target }) {
    const isPace = pace.some(([, , input]) => input === target);
    if (isPace) {
      state.preset = "";
      for (const [, input] of presets) input.checked = false;
    }
    if (target.name === "preset") choose(target.value);
    else if (target === reason || (isPace && target.name !== "rate")) show();
    else begin();
    remember();
  }

  for (const input of typed) input.value = query.get(input.name) ?? "";
  const first = query.get("preset") ?? USUAL;
  /** @type {[string, HTMLInputElement][]} */
  const presets = Object.entries(PRESETS).map(([preset, { label }]) =>
    [label, el("input", { type: "radio", name: "preset", value: preset, checked: preset === first })]);
  fill(
    view,
    el("h1", {}, "Redrive ", name),
    redrives.first,
    el("datalist", { id: "sources" }, queue.sources.map((source) => el("option", { value: source }))),
    el("div", { class: "halves" }, form(
      { onsubmit: plan, oninput: changed },
      sequences
        ? el("p", {}, `${count(sequences.length)} selected message${sequences.length === 1 ? "" : "s"}`)
        : [
          failure,
          el("div", { class: "field" }, el("span", {}, "Only messages that match"), filter.element),
        ],
      !sequences && queue.may.includes("holdfast:ReadMessageBodies") && edit.elements,
      el("div", { class: "search" }, field("To", destination), field("Reason", reason)),
      el("fieldset", {}, el("legend", {}, "How carefully"),
        presets.map(([label, input]) => el("label", { class: "choice" }, input, label))),
      how,
      el("details", { class: "filter" }, el("summary", {}, "Rate, canary and stop in numbers"),
        el("div", { class: "search" }, pace.map(([, label, input]) => field(label, input)))),
      el("p", { class: "actions" }, submit("Dry run", { class: null }), start),
    ), dryRun),
    el("h2", {}, "Latest redrives"),
    list.place,
  );
  if (first in PRESETS) choose(first);
  else for (const [option, , input] of pace) input.value = query.get(option) ?? "";
  if (sequences || (isFiltered() && (!edit.isOpen || edit.patch))) plan(); // what was chosen before is shown at once
  await list.watch(REFRESH_MS);
}

function warning(text) {
  return el("p", { class: "notice warning" }, text);
}
