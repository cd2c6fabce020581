// Charts of a queue's past: lines in SVG, with a table of the same numbers for those who listen.

import { get, ofQueue } from "./api.js";
import { el, field, row, table } from "./dom.js";
import { delay, instant, rate, span } from "./format.js";
import { path, shape } from "./lines.js";
import { resource } from "./resource.js";

const WIDTH = 480;
const HEIGHT = 120;
const REFRESH_MS = 30000;
const RANGES = [[1, "1 hour"], [6, "6 hours"], [48, "2 days"], [360, "15 days"]];
const whole = (value) => Math.round(value).toLocaleString("en");
/** @type {[title: string, text: (value: number) => string, lines: [name: string, label: string][]][]} */
const CHARTS = [
  ["Depth", whole, [["visible", "visible"], ["in_flight", "in flight"], ["delayed", "delayed"]]],
  ["Age of the oldest message", span, [["oldest_age_s", "oldest"]]],
  ["Messages a second", rate,
    [["sent", "sent"], ["received", "received"], ["deleted", "deleted"]]],
  ["Send to first receive, on average", delay, [["send_to_receive_s", "to first receive"]]],
];

/** Charts below a choice of the range of time, read again and again until the signal. */
export function charts(name, signal, fail) {
  const range = el("select", {}, RANGES.map(([hours, text]) => el("option", { value: hours }, text)));
  const ask = (mine) => get(ofQueue(name, "/history"), { hours: range.value }, mine);
  const show = (past) => [
    el("div", { class: "charts" }, CHARTS.map((each) => chart(past, ...each)), numbers(past)),
    !past.is_complete && el("p", { class: "notice" }, "A host did not answer: its part is missing."),
  ];
  const shown = resource({ what: "The charts", ask, show, signal, fail });
  range.addEventListener("change", shown.ask);
  shown.watch(REFRESH_MS);
  return [el("h2", {}, "Over time"), el("div", { class: "search" }, field("Range", range)), shown.place];
}

function chart(past, title, text, lines) {
  const known = lines.flatMap(([name]) => past.series[name].filter((value) => value !== null));
  const top = Math.max(0, ...known) || 1;
  const now = lines.map(([name, label]) => {
    const last = past.series[name].findLast((value) => value !== null);
    return `${label} ${last === undefined ? "unknown" : text(last) || "0"}`;
  });
  const most = known.length ? `at most ${text(Math.max(...known)) || "0"}` : "no data yet";
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "plot", role: "img", preserveAspectRatio: "none",
    "aria-label": `${title}: ${now.join(", ")}; ${most} in this range` });
  svg.append(shape("line", { x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1, class: "axis" }));
  lines.forEach(([name], at) =>
    svg.append(shape("path", { d: path(past.series[name], top, WIDTH, HEIGHT), class: `line-${at}` })));
  const legend = lines.map(([, label], at) =>
    el("span", { class: `key-${at}` }, lines.length > 1 ? now[at] : now[at].replace(`${label} `, "")));
  return el("figure", { class: "panel" },
    el("figcaption", {}, el("strong", {}, title), " ", el("span", { class: "hint" }, most)),
    svg, el("p", { class: "legend" }, legend));
}

function numbers(past) {
  const names = CHARTS.flatMap(([, text, lines]) =>
    lines.map(([name, label]) => ({ name, label, text })));
  const columns = [["From", "name"], ...names.map(({ label }) => [label, "number"])];
  const rows = past.series.visible.flatMap((value, at) => {
    const values = names.map(({ name, text }) => ({ value: past.series[name][at], text }));
    if (values.every(({ value }) => value === null)) return [];
    const cells = values.map(({ value, text }) => (value === null ? "" : text(value) || "0"));
    return [row(columns, [instant((past.begin_s + at * past.period_s) * 1000), ...cells])];
  });
  return el("details", {}, el("summary", {}, "The numbers"),
    table(columns, rows.reverse(), "Numbers of the charts"));
}
