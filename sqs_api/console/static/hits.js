// What a filter found in a message, marked where it is shown.

import { el } from "./dom.js";
import { compare, each } from "./filters.js";
import { shownText } from "./unseen_characters.js";

/** @typedef {Record<string, string>} Conditions */

const PREVIEW = 300;
const BEFORE = 16;
const AFTER = 64;
const MARKED_MAX = 1000;

/** The places in a body that a filter asks for, as beginning and end. @returns {[number, number][]} */
export function hitsOf(/** @type {string} */ body, /** @type {Conditions} */ filter) {
  /** @type {[number, number][]} */
  const found = [];
  for (const [name, value] of each(filter)) {
    if (name === "text") found.push(...textHits(body, value));
    else if (name === "json") found.push(...fieldHits(body, value));
  }
  return merged(found);
}

/** The places of a text, in any case of its letters. @returns {[number, number][]} */
export function textHits(body, wanted) {
  const found = body.matchAll(new RegExp(literal(wanted), "gi"));
  return wanted === "" ? [] : [...found].map((hit) => [hit.index, hit.index + hit[0].length]);
}

/** The value after the last name of the path; of a place in a list, the value itself. @returns {[number, number][]} */
function fieldHits(body, condition) {
  const [path, value, begins] = compare(condition);
  const [, name] = /([^.[\]]+)$/.exec(path) ?? [];
  const key = name ? literal(JSON.stringify(name)) : "";
  if (value === null) return key ? [...body.matchAll(new RegExp(key, "g"))].map((hit) => [hit.index, hit.index + hit[0].length]) : [];
  const inner = literal(JSON.stringify(value).slice(1, -1));
  const wanted = begins ? `"?${inner}` : `(?:"${inner}"|${literal(value)}(?![\\w.]))`;
  const found = body.matchAll(new RegExp(`(${key && `${key}\\s*:\\s*`})(${wanted})`, "g"));
  return [...found].map((hit) => [hit.index + hit[1].length, hit.index + hit[0].length]);
}

function literal(text) {
  return text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}

/** In their order, those that overlap as one. @returns {[number, number][]} */
function merged(/** @type {[number, number][]} */ places) {
  /** @type {[number, number][]} */
  const found = [];
  for (const [begin, end] of places.sort(([one], [other]) => one - other)) {
    const last = found.at(-1);
    if (last && begin <= last[1]) last[1] = Math.max(last[1], end);
    else found.push([begin, end]);
  }
  return found;
}

/** A text with its hits in `mark` elements; `show` makes what is shown of each part. @returns {any[]} */
export function marked(/** @type {string} */ text, /** @type {[number, number][]} */ hits,
  /** @type {(part: string) => any} */ show = shownText) {
  const shown = [];
  let at = 0;
  for (const [begin, end] of hits.slice(0, MARKED_MAX)) {
    shown.push(show(text.slice(at, begin)), el("mark", {}, show(text.slice(begin, end))));
    at = end;
  }
  return [...shown, show(text.slice(at))].filter((part) => part !== "");
}

/** Parts of a body for a row: those with hits; else its beginning, after what all rows share. */
export function preview(/** @type {string} */ body, /** @type {Conditions} */ filter, shared = 0) {
  const hits = hitsOf(body, filter);
  const around = merged(hits.map(([begin, end]) => [Math.max(0, begin - BEFORE), end + AFTER]));
  const parts = around.length > 0 ? around : /** @type {[number, number][]} */ ([[shared, shared + PREVIEW]]);
  if (around.length === 1) parts[0][1] = Math.max(parts[0][1], parts[0][0] + PREVIEW);
  return parts.slice(0, 4).map(([begin, end]) => [begin > 0 && "… ", marked(body.slice(begin, end), hits
    .filter(([from, to]) => from >= begin && to <= end).map(([from, to]) => [from - begin, to - begin]))]);
}

/** A value of a message, marked if the filter has this condition on it. */
export function markedValue(/** @type {Conditions} */ filter, /** @type {string} */ name, /** @type {string | null} */ value) {
  const wanted = filter[name];
  const length = wanted && value?.startsWith(wanted) ? wanted.length : 0;
  return value && marked(value, length ? [[0, length]] : []);
}
