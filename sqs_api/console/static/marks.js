// Marks of what happened, such as deploys and redrives: lines in charts, and what they are.

import { el, patch, time } from "./dom.js";
import { ago } from "./format.js";
import { shape } from "./lines.js";

/** @typedef {{at_ms: number, kind: string, text: string, by: string}} Mark */

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

/** What the lines in all charts of a screen are, each once. */
export class MarkList {
  constructor() {
    this.place = el("div");
    /** @type {Map<string, Mark[]>} */
    this.of = new Map();
  }

  /** The marks that one part of the screen draws, in the order of their times. */
  set(/** @type {string} */ part, /** @type {Mark[]} */ marks) {
    this.of.set(part, marks);
    const all = new Map([...this.of.values()].flat().map((each) => [JSON.stringify(each), each]));
    patch(this.place, shownMarks([...all.values()].sort((one, other) => one.at_ms - other.at_ms)));
  }
}

/** What the lines are, the latest first. */
function shownMarks(/** @type {Mark[]} */ marks) {
  if (marks.length === 0) return null;
  const shown = marks.toReversed().slice(0, SHOWN).map(({ at_ms: at, kind, text, by }) =>
    el("li", { "data-key": `${at} ${kind}` }, el("span", { class: `key ${kind}` }, kind === "redrive" ? "Redrive" : "Mark"), " ",
      [text, by && `by ${by}`].filter(Boolean).join(", "), " ",
      el("span", { class: "hint" }, time(at, ago(at)))));
  return [el("h3", {}, "What happened meanwhile"), el("ul", { class: "marks" }, shown)];
}
