// Keys: the next row, the one before, its box, the command palette, and what keys there are.

import { button, el } from "./dom.js";
import { openPalette } from "./palette.js";

const ROWS = "tbody tr, .failure";
const FIRST = "a, button, summary";
/** @type {[keys: string, what: string][]} */
const KEYS = [
  ["Ctrl K", "go to a queue or a screen, or do something on this screen"],
  ["/", "search"],
  ["j", "next row"],
  ["k", "row before"],
  ["Enter", "open the row; once more: go into what opened beside it"],
  ["x", "select the row, or no longer"],
  ["Esc", "close what is open"],
  ["?", "these keys"],
];

/** What a key does on a screen. */
export async function pressed(/** @type {string} */ key, /** @type {HTMLElement} */ view) {
  if (document.querySelector("dialog[open]")) return;
  if (key === "palette") return openPalette(view);
  if (key === "?") showKeys();
  else if (key === "x") boxOf(document.activeElement)?.click();
  else go(view, key === "j" ? 1 : -1);
}

/** Focus the row below, or above; at first that at the top. */
function go(view, step) {
  const rows = [...view.querySelectorAll(ROWS)].filter((each) => targetOf(each));
  const at = rows.findIndex((each) => each.contains(document.activeElement));
  const next = rows[at < 0 ? 0 : Math.max(0, Math.min(rows.length - 1, at + step))];
  const target = next && targetOf(next);
  target?.focus({ focusVisible: true });
  next?.scrollIntoView({ block: "nearest" });
}

/** What Enter opens in a row. */
function targetOf(row) {
  return row.querySelector(FIRST);
}

function boxOf(focused) {
  return focused?.closest("tr")?.querySelector("input[type=checkbox]");
}

function showKeys() {
  const shown = KEYS.map(([keys, what]) => [el("dt", {}, el("kbd", {}, keys)), el("dd", {}, what)]);
  const dialog = el("dialog", { "aria-labelledby": "keys", onclose: () => dialog.remove() },
    el("h2", { id: "keys" }, "Keys"), el("dl", {}, shown), button("Close", () => dialog.close()));
  document.body.append(dialog);
  dialog.showModal();
}
