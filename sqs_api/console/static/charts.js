// Charts of a queue's past: lines in SVG with axes, values under the pointer, marks and the week before,
// with a table of the same numbers for those who listen.

import { keep, stateOf } from "./address.js";
import { get, ofQueue } from "./api.js";
import { pointAt, RANGES, ticksOf, topOf } from "./axes.js";
import { button, el, fill, row, table, time } from "./dom.js";
import { delay, local, rate, span } from "./format.js";
import { labels, path, shape } from "./lines.js";
import { markLines, markText } from "./marks.js";
import { resource } from "./resource.js";

const WIDTH = 480;
const HEIGHT = 126;
const REFRESH_MS = 30000;
const WEEK_S = 7 * 86400;
const DEFAULTS = { range: "1h", week: "" };
const whole = (value) => Math.round(value).toLocaleString("en");
/** @type {[title: string, unit: string, text: (value: number) => string, lines: [name: string, label: string][]][]} */
const CHARTS = [
  ["Depth", "messages", whole, [["visible", "visible"], ["in_flight", "in flight"], ["delayed", "delayed"]]],
  ["Age of the oldest message", "time", span, [["oldest_age_s", "oldest"]]],
  ["Messages a second", "messages/s", rate,
    [["sent", "sent"], ["received", "received"], ["deleted", "deleted"]]],
  ["Send to first receive, on average", "time", delay, [["send_to_receive_s", "to first receive"]]],
];

/** Charts below a choice of the range of time, read again and again until the signal. */
export function charts(name, query, /** @type {import("./marks.js").MarkList} */ marks, signal, fail) {
  const state = stateOf(query, DEFAULTS);
  if (!(state.range in RANGES)) state.range = DEFAULTS.range;
  let pointed = -1; // the point below the pointer
  const shown = resource({ what: "The charts", ask, show, signal, fail });
  const ranges = el("p", { class: "tabs", role: "group", "aria-label": "Range" });
  const week = el("input", { type: "checkbox", name: "week", checked: state.week === "1" });

  async function ask(mine) {
    const { hours, period } = RANGES[state.range];
    const asked = { hours, period_s: period };
    const past = await get(ofQueue(name, "/history"), asked, mine);
    if (!state.week) return { past, before: null };
    const end = past.begin_s + past.series.visible.length * past.period_s;
    const before = await get(ofQueue(name, "/history"), { ...asked, until_s: end - WEEK_S - 1 }, mine);
    return { past, before };
  }

  function show(found) {
    queueMicrotask(mark);
    const { past, before } = found;
    marks.set("charts", past.marks);
    const isEmpty = before && before.series.visible.every((value) => value === null);
    return [
      el("div", { class: "charts", onkeydown: step, onpointerleave: () => point(-1) },
        CHARTS.map((each) => chart(found, each, RANGES[state.range].tick)),
        isEmpty && el("p", { class: "hint" }, "Nothing was measured a week before."),
        numbers(past)),
      !(past.is_complete && (before?.is_complete ?? true))
        && el("p", { class: "notice" }, "A host did not answer: its part is missing."),
    ];
  }

  function chart(found, [title, unit, text, lines], tick) {
    const onpointermove = ({ currentTarget, clientX }) => {
      const { left, width } = currentTarget.getBoundingClientRect();
      point(pointAt((clientX - left) / width, found.past.series.visible.length));
    };
    return figure(found, title, unit, text, lines, tick, onpointermove);
  }

  /** The arrow keys go from point to point. */
  function step(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const points = shown.state.value?.past.series.visible.length ?? 0;
    if (event.key === "Escape") point(-1);
    if (!by || !points) return;
    event.preventDefault();
    point(Math.max(0, Math.min(points - 1, (pointed < 0 ? points : pointed) + by)));
  }

  function point(at) {
    if (at === pointed) return;
    pointed = at;
    mark();
  }

  /** Show the values of the point in all charts. */
  function mark() {
    const found = shown.state.value;
    if (!found) return;
    const figures = shown.place.querySelectorAll("figure.past");
    CHARTS.forEach(([, , text, lines], place) => figures[place] && markPoint(figures[place], found, text, lines, pointed));
  }

  function choose(changed) {
    Object.assign(state, changed);
    keep(`/queues/${name}`, state, DEFAULTS);
    pointed = -1;
    fill(ranges, buttons());
    shown.ask();
  }

  function buttons() {
    return Object.entries(RANGES).map(([range, { label }]) =>
      button(label, () => choose({ range }), { "aria-pressed": String(range === state.range) }));
  }

  week.addEventListener("change", () => choose({ week: week.checked ? "1" : "" }));
  fill(ranges, buttons());
  shown.watch(REFRESH_MS);
  return [el("h2", {}, "Over time"),
    el("div", { class: "toolbar" }, ranges, el("label", { class: "choice" }, week, "Compare with the week before")),
    shown.place];
}

function figure({ past, before }, title, unit, text, lines, tick, onpointermove) {
  const all = [past, before].filter(Boolean).flatMap(({ series }) => lines.flatMap(([name]) => series[name]));
  const known = all.filter((value) => value !== null);
  const most = Math.max(0, ...known);
  const top = topOf(most, unit);
  const points = past.series.visible.length;
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "plot", role: "img", preserveAspectRatio: "none",
    "aria-label": `${title}: ${lines.map(([name, label]) => `${label} ${now(past.series[name], text)}`).join(", ")}; `
      + `${known.length ? `at most ${text(most) || "0"}` : "no data yet"} in this range` });
  const ticks = ticksOf(past, points, tick);
  svg.append(
    ...[0, 0.5, 1].map((share) => shape("line", { x1: 0, x2: WIDTH, y1: height(share), y2: height(share), class: "axis" })),
    ...ticks.map(([share]) => shape("line", { x1: share * WIDTH, x2: share * WIDTH, y1: height(1), y2: height(0), class: "axis" })),
    ...markLines(past.marks, (at) => (periodOf(past, at) / (points - 1)) * WIDTH, WIDTH, HEIGHT));
  svg.append(shape("line", { x1: -9, x2: -9, y1: 0, y2: HEIGHT, class: "cursor" }));
  for (const [series, kind] of [[before?.series, "before "], [past.series, ""]])
    if (series) lines.forEach(([name], at) =>
      svg.append(shape("path", { d: path(series[name], top, WIDTH, HEIGHT), class: `${kind}line-${at}` })));
  return el("figure", { class: "panel past", "data-key": title },
    el("figcaption", {}, el("strong", {}, title), " ",
      el("span", { class: "hint" }, known.length ? `${unit === "time" ? "" : `${unit}, `}at most ${text(most) || "0"}` : "no data yet")),
    el("div", { class: "plotted" },
      labels("scale", [1, 0.5, 0].map((share) =>
        [{ x: "100%", y: percent(height(share) / HEIGHT) }, share ? text(top * share) : "0"])),
      el("div", { class: "canvas", tabindex: "0", role: "group", "aria-label": `${title}, with the arrow keys from point to point`,
        onpointermove }, svg)),
    labels("times", ticks.map(([share, label]) => [{ x: percent(share), y: "75%" }, label])),
    el("p", { class: "legend", "aria-live": "polite" }));
}

/** The point in whose time something happened. */
function periodOf({ begin_s: begin, period_s: period }, atMs) {
  return Math.floor((atMs / 1000 - begin) / period);
}

function percent(share) {
  return `${(share * 100).toFixed(2)}%`;
}

/** The height in a plot of a share of its top. */
function height(share) {
  return HEIGHT - 2 - share * (HEIGHT - 6);
}

function now(values, text) {
  const last = values.findLast((value) => value !== null);
  return last === undefined ? "unknown" : text(last) || "0";
}

/** The values of one point in a figure's legend, or the latest. */
function markPoint(shownFigure, { past, before }, text, lines, at) {
  const cursor = shownFigure.querySelector(".cursor");
  const x = at < 0 ? -9 : (at / (past.series.visible.length - 1)) * WIDTH; // -9 is not seen
  const fromMs = (past.begin_s + at * past.period_s) * 1000;
  for (const end of ["x1", "x2"]) cursor.setAttribute(end, x);
  const said = (series, name) => {
    if (at < 0) return now(series[name], text);
    return series[name][at] === null ? "unknown" : text(series[name][at]) || "0";
  };
  const happened = past.marks.filter(({ at_ms: ms }) => periodOf(past, ms) === at);
  fill(shownFigure.querySelector(".legend"),
    at >= 0 && el("strong", {}, time(fromMs, local(fromMs).slice(0, 16))),
    lines.map(([name, label], place) => el("span", { class: `key-${place}` },
      lines.length > 1 ? `${label} ${said(past.series, name)}` : said(past.series, name),
      before && el("span", { class: "hint" }, ` (${said(before.series, name)} a week before)`))),
    happened.map((each) => el("em", {}, markText(each))));
}

function numbers(past) {
  const names = CHARTS.flatMap(([, , text, lines]) =>
    lines.map(([name, label]) => ({ name, label, text })));
  const columns = [["From", "name"], ...names.map(({ label }) => [label, "number"])];
  const rows = past.series.visible.flatMap((value, at) => {
    const values = names.map(({ name, text }) => ({ value: past.series[name][at], text }));
    if (values.every(({ value }) => value === null)) return [];
    const cells = values.map(({ value, text }) => (value === null ? "" : text(value) || "0"));
    return [row(columns, [time((past.begin_s + at * past.period_s) * 1000), ...cells])];
  });
  return el("details", {}, el("summary", {}, "The numbers"),
    table(columns, rows.reverse(), "Numbers of the charts"));
}
