// The redrives of all queues: what runs, what waits for someone, and who moved how much, and when.

import { keep, stateOf } from "./address.js";
import { get } from "./api.js";
import { button, el, fill, link, row, table, time } from "./dom.js";
import { callerName, count, nameOf, nowMs, span, statusText } from "./format.js";
import { editText, filterText } from "./filters.js";
import { endText } from "./plan.js";
import { resultText } from "./presets.js";
import { controlButtons, undoOf } from "./redrive_controls.js";
import { resource } from "./resource.js";
import { shownText } from "./unseen_characters.js";

const REFRESH_MS = 3000;
const DAY_MS = 86400000;
const PATH = "/redrives";
const DEFAULTS = { during: "week" };
const LIVE = [["Queue", "name queue"], ["State", ""], ["Result so far", ""], ["By", "wide"], ["For", "number wide"],
  ["Actions", "acts"]];
const ENDED = [["Queue", "name queue"], ["Result", ""], ["To", "wide"], ["Filter and reason", "wide"],
  ["By", "wide"], ["Started", "wide"], ["Took", "number wide"], ["Actions", "acts"]];
const BY = [["By", "name"], ["Redrives", "number"], ["Messages moved", "number"]];

/**
 * Times to choose from, in days of this browser's clock.
 *
 * @type {Record<string, {label: string, from: number, until: number}>}
 */
export const TIMES = {
  today: { label: "Today", from: 0, until: 1 },
  yesterday: { label: "Yesterday", from: -1, until: 0 },
  week: { label: "7 days", from: -6, until: 1 },
  month: { label: "30 days", from: -29, until: 1 },
};

/** A time as the service takes it. Days begin at midnight here, also when the clock was changed. */
export function windowOf(during, now) {
  const { from, until } = TIMES[during] ?? TIMES.week;
  const day = (days) => new Date(now.getFullYear(), now.getMonth(), now.getDate() + days).getTime();
  return { since_ms: day(from), until_ms: day(until) };
}

export async function showAllRedrives({ view, query, signal, fail }) {
  const state = stateOf(query, DEFAULTS);
  const list = resource({
    what: "The redrives",
    ask: (mine) => get("redrives", windowOf(state.during, new Date(nowMs())), mine),
    show: (all) => show(all, { changed: () => list.read(), fail }),
    signal,
    fail,
  });

  function choose(during) {
    state.during = during;
    keep(PATH, state, DEFAULTS);
    fill(times, timeButtons());
    list.ask();
  }

  function timeButtons() {
    return Object.entries(TIMES).map(([during, { label }]) =>
      button(label, () => choose(during), { "aria-pressed": String(during === state.during) }));
  }

  const times = el("p", { class: "tabs", role: "group", "aria-label": "Time" }, timeButtons());
  fill(view, el("h1", {}, "Redrives"), times, list.place);
  await list.watch(REFRESH_MS);
}

function show({ redrives, by, left_out: more, is_complete: isComplete }, heard) {
  const live = (each) => liveRow(each, heard);
  const waiting = redrives.filter((each) => each.is_active && each.paused);
  const running = redrives.filter((each) => each.is_active && !each.paused);
  const ended = redrives.filter((each) => !each.is_active);
  return [
    !isComplete && el("p", { class: "notice warning" }, "Not all queues could be read: choose a shorter time, or try again."),
    waiting.length > 0 && [el("h2", { class: "urgent" }, "Waiting for you"),
      table(LIVE, waiting.map(live), "Waiting for you")],
    running.length > 0 && [el("h2", {}, "Running"), table(LIVE, running.map(live), "Running")],
    el("h2", {}, "Who redrove how much"),
    by.length > 0
      ? table(BY, by.map(byRow), "Who redrove how much")
      : el("p", { class: "empty" }, "No redrive began in this time. ",
        link("Look at the dead letters", "#/dead-letters"), ": each queue has a button that redrives them."),
    ended.length > 0 && [el("h2", {}, "History"), table(ENDED, ended.map((each) => endedRow(each, heard)), "History"),
      el("p", { class: "actions" }, button("Export (NDJSON)", () => save(redrives))),
      more > 0 && el("p", { class: "hint" }, `${count(more)} older ones are not shown.`)],
  ];
}

function queueOf({ queue }) {
  return link(queue, `#/queues/${queue}/redrive`);
}

function liveRow(redrive, heard) {
  const { queue, moved, to_move: all, may_redrive: may, started_at_ms: startedMs } = redrive;
  const done = el("progress", { value: String(moved), max: String(Math.max(1, moved, all ?? 0)), "aria-label": "Moved" });
  return row(LIVE, [
    queueOf(redrive),
    statusText(redrive),
    [resultText(redrive), done],
    callerName(redrive.started_by),
    time(startedMs, span((nowMs() - startedMs) / 1000)),
    may && el("div", { class: "actions" }, controlButtons(queue, redrive, heard)),
  ], { "data-key": redrive.id });
}

function endedRow(redrive, heard) {
  const what = [redrive.undoes && `undo of ${redrive.undoes.slice(0, 8)}`, filterText(redrive.filter),
    editText(redrive), redrive.reason];
  return row(ENDED, [
    queueOf(redrive),
    `${statusText(redrive)}: ${endText(redrive)}`,
    redrive.destination_arn ? nameOf(redrive.destination_arn) : "each to its source",
    shownText(what.filter(Boolean).join("; ")),
    callerName(redrive.started_by),
    time(redrive.started_at_ms),
    redrive.ended_at_ms ? span((redrive.ended_at_ms - redrive.started_at_ms) / 1000) : "",
    redrive.undone_at_ms
      ? el("span", { class: "hint" }, time(redrive.undone_at_ms, "undone"))
      : redrive.may_redrive && undoOf(redrive.queue, redrive, heard),
  ], { "data-key": redrive.id });
}

function byRow({ who, redrives, moved }) {
  return row(BY, [callerName(who), count(redrives), count(moved)], { "data-key": who });
}

/** One line of JSON for each redrive, as a file. */
function save(redrives) {
  const text = redrives.map((each) => `${JSON.stringify(each)}\n`).join("");
  const address = URL.createObjectURL(new Blob([text], { type: "application/x-ndjson" }));
  el("a", { href: address, download: "redrives.ndjson" }).click();
  URL.revokeObjectURL(address);
}
