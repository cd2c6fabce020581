// The difference of two bodies: of their fields if both are JSON.

import { diff } from "./diff.js";
import { el } from "./dom.js";
import { pretty } from "./format.js";

const MARKS = { same: "  ", gone: "− ", new: "+ " };

export function shownDiff(before, after) {
  const [one, other] = [pretty(before), pretty(after)];
  const lines = one !== null && other !== null ? diff(one, other) : diff(before, after);
  if (lines.every(([kind]) => kind === "same"))
    return el("p", { class: "hint" }, "The body is unchanged.");
  return el("pre", { class: "diff", tabindex: "0" },
    lines.map(([kind, line]) => el("span", { class: kind }, `${MARKS[kind]}${line}\n`)));
}
