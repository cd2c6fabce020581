// Marks of what happened, such as deploys and redrives: lines in charts, and what they are.

import { el, time } from "./dom.js";
import { ago } from "./format.js";
import { shape } from "./lines.js";

const SHOWN = 8;

/** Lines in a chart, at the x that `place` gives for a time in ms. */
export function markLines(marks, place, width, height) {
  return marks.map(({ at_ms: at, kind }) => [place(at), kind])
    .filter(([x]) => x >= 0 && x <= width)
    .map(([x, kind]) => shape("line", { x1: x, x2: x, y1: 0, y2: height, class: `mark ${kind}` }));
}

/** A mark in words. */
export function markText({ kind, text, by }) {
  return [kind === "redrive" ? "Redrive" : "Mark", [text, by && `by ${by}`].filter(Boolean).join(", ")].join(" ");
}

/** What the lines are, the latest first. */
export function shownMarks(marks) {
  if (marks.length === 0) return null;
  const shown = marks.toReversed().slice(0, SHOWN).map(({ at_ms: at, kind, text, by }) =>
    el("li", { "data-key": `${at} ${kind}` }, el("span", { class: `key ${kind}` }, kind === "redrive" ? "Redrive" : "Mark"), " ",
      [text, by && `by ${by}`].filter(Boolean).join(", "), " ",
      el("span", { class: "hint" }, time(at, ago(at)))));
  return [el("h3", {}, "What happened meanwhile"), el("ul", { class: "marks" }, shown)];
}
