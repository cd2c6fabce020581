// Filters as people write them: a condition such as `error.type = "Tax…"` is a parameter of the
// service's filters and of an address, and the other way round. Messages, redrives, the archive and
// the list of queues choose in the same way.

import { local } from "./format.js";

const MESSAGE = ["text", "json", "attribute", "id", "failure", "group", "source", "received_min", "received_max",
  "older_s", "newer_s"];
/** The conditions that each list knows. */
export const REDRIVES = new Set(MESSAGE);
export const MESSAGES = new Set([...MESSAGE, "state"]);
export const ARCHIVED = new Set([...MESSAGE, "from_ms", "until_ms", "reason"]);
export const QUEUES = new Set(["tags"]);
/** Those of which a list has several at once, one a line. */
const SEVERAL = new Set(["json", "attribute", "tags"]);

/** Names before the sign of equality that are no fields of the body, with their parameters. */
const PLAIN = { id: "id", failure: "failure", group: "group", source: "source", state: "state", left: "reason" };
const RESERVED = new Set([...Object.keys(PLAIN), "sent", "receives"]);
/** What may stand in them. */
export const CHOICES = {
  state: ["visible", "in flight", "delayed", "held", "deleting"],
  reason: ["expired", "deleted", "over-length", "hops"],
};
const NUMBERS = new Set(["received_min", "received_max", "older_s", "newer_s", "from_ms", "until_ms"]);
const BARE = new Set(["id", "failure", "state", "reason"]);
const ID = /^[0-9a-f]{8}-[0-9a-f-]*$/i;
const CONDITION = /^([^=<>^"]+?)\s*(\^=|>=|<=|=|<|>)\s*(.*)$/s;
const TIME = /^\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2})?Z?)?$/;
const UNITS = /** @type {[string, number][]} */ ([["d", 86400], ["h", 3600], ["m", 60], ["s", 1]]);

/** @typedef {Record<string, string>} Conditions by the names of parameters, as texts */

/** The conditions in the query of an address. @returns {Conditions} */
export function conditionsOf(/** @type {URLSearchParams} */ query, known = MESSAGES) {
  const found = [...query].filter(([name]) => known.has(name));
  return Object.fromEntries(found.filter(([, value]) => value));
}

/** Each condition by itself. @returns {[name: string, value: string][]} */
export function each(/** @type {Conditions} */ texts) {
  return Object.entries(texts).flatMap(([name, value]) =>
    (SEVERAL.has(name) ? value.split("\n") : [value]).map((one) => /** @type {[string, string]} */ ([name, one])));
}

/** These and more: a condition takes the place of one on the same thing. */
export function withMore(/** @type {Conditions} */ texts, /** @type {Conditions} */ more) {
  const all = { ...texts };
  for (const [name, value] of Object.entries(more)) {
    const others = each(SEVERAL.has(name) && all[name] ? { [name]: all[name] } : {}).map(([, one]) => one);
    const path = compare(value)[0];
    all[name] = [...others.filter((one) => compare(one)[0] !== path), value].join("\n");
  }
  return all;
}

/** These without one, which may have been removed before. */
export function without(/** @type {Conditions} */ texts, /** @type {string} */ name, /** @type {string} */ value) {
  if (!(name in texts)) return texts;
  const { [name]: _, ...others } = texts;
  const left = each({ [name]: texts[name] }).map(([, one]) => one).filter((one) => one !== value);
  return SEVERAL.has(name) && left.length > 0 ? { ...others, [name]: left.join("\n") } : others;
}

/** Conditions for a request: with numbers instead of their texts. */
export function numbered(/** @type {Conditions} */ texts) {
  return Object.fromEntries(Object.entries(texts).map(([name, value]) =>
    [name, NUMBERS.has(name) ? Number(value) : value]));
}

/**
 * The conditions that a text tells. What has no sign of comparison is an id or a part of the body.
 * Raises an Error with a sentence.
 *
 * @returns {Conditions}
 */
export function parsed(/** @type {string} */ text, /** @type {Set<string>} */ known) {
  const given = text.trim();
  if (given === "") return {};
  const quoted = /^"(.*)"$/s.exec(given);
  const [, left, sign, right] = (!quoted && CONDITION.exec(given)) || [];
  /** @type {any} */
  const found = quoted ? { text: quoted[1] }
    : sign ? compared(left, sign, unquoted(right), known)
      : named(given, known) ?? (ID.test(given) && known.has("id") ? { id: given } : { text: given });
  const strange = Object.keys(found).find((name) => !known.has(name));
  if (strange) throw new Error(`This list has no condition on ${left ?? given}.`);
  return found;
}

/** `has error.type`, `has attribute.trace`, `has team` of queues. */
function named(text, known) {
  const [, path] = /^has\s+(\S.*)$/s.exec(text) ?? [];
  return path === undefined ? null : field(path, "", known);
}

/** A condition on a field of the body, a message attribute or a tag. */
function field(path, rest, known) {
  if (!known.has("json")) return { tags: path + rest };
  const [, attribute] = /^attribute\.(.+)$/s.exec(path) ?? [];
  return attribute ? { attribute: attribute + rest } : { json: path + rest };
}

/** True for a text with a sign of comparison, or `has`. */
export function isCondition(/** @type {string} */ text) {
  return CONDITION.test(text.trim()) || /^has\s/.test(text.trim());
}

function compared(left, sign, right, known) {
  const value = right.text;
  if (value === "" && !right.isQuoted) throw new Error(`Write what ${left} is compared with.`);
  if (left === "sent" && known.has("newer_s")) return sent(sign, value, known);
  if (left === "receives" && known.has("received_min")) return received(sign, value);
  if (sign !== "=" && sign !== "^=")
    throw new Error(`Only sent and receives are compared by ${sign}: put a text to find in quotes.`);
  const begins = sign === "^=" || right.begins;
  const name = PLAIN[left];
  if (!name || !known.has(name)) return field(left, (begins ? "^=" : "=") + value, known);
  if (begins && name !== "id") throw new Error(`${left} is compared with the whole value.`);
  if (CHOICES[name] && !CHOICES[name].includes(value)) throw new Error(`${left} is one of: ${CHOICES[name].join(", ")}.`);
  return { [name]: value };
}

/** `sent < 14h`: within the last 14 hours; in the archive also `sent >= 2026-11-29 10:00` on this
 * browser's clock, or with a Z in UTC. */
function sent(sign, value, known) {
  if (TIME.test(value) && known.has("from_ms")) {
    const ms = String(Date.parse(`${value.replace(" ", "T")}${value.length > 10 ? "" : "T00:00"}`));
    if (sign === ">=" || sign === ">") return { from_ms: ms };
    if (sign === "<" || sign === "<=") return { until_ms: ms };
  }
  const seconds = secondsOf(value);
  if (seconds === null)
    throw new Error(`Write sent < 14h for the last 14 hours, or sent > 2d 6h for what is older${
      known.has("from_ms") ? ", or a time such as sent >= 2026-11-29 10:00, of UTC with a Z behind it" : ""}.`);
  if (sign === "<" || sign === "<=") return { newer_s: String(seconds) };
  if (sign === ">" || sign === ">=") return { older_s: String(seconds) };
  throw new Error("Compare sent by < or >.");
}

function received(sign, value) {
  if (!/^\d{1,7}$/.test(value)) throw new Error("Write a number such as receives >= 3.");
  const number = Number(value);
  if (sign === ">=" || sign === ">") return { received_min: String(sign === ">" ? number + 1 : number) };
  if (sign === "<=") return { received_max: String(number) };
  if (sign === "<" && number > 0) return { received_max: String(number - 1) };
  if (sign === "=") return { received_min: String(number), received_max: String(number) };
  throw new Error("Compare receives by =, <, <=, > or >=.");
}

/** Seconds of `14h`, `2d 6h` or `90`; null for another text. */
function secondsOf(text) {
  if (/^\d+$/.test(text)) return Number(text);
  if (!/^(\d+\s*[dhms]\s*)+$/.test(text)) return null;
  const parts = [...text.matchAll(/(\d+)\s*([dhms])/g)];
  const size = Object.fromEntries(UNITS);
  return parts.reduce((sum, [, number, unit]) => sum + Number(number) * size[unit], 0);
}

/** A number of seconds as `secondsOf` reads it. */
function lasting(/** @type {number} */ seconds) {
  let left = seconds;
  const parts = [];
  for (const [unit, size] of UNITS) {
    if (left >= size) parts.push(`${Math.floor(left / size)}${unit}`);
    left %= size;
  }
  return parts.join(" ") || "0s";
}

/** A value without its quotes; one that ends with … is the beginning of what is meant. */
function unquoted(text) {
  const [quoted, inner = text.trim()] = /^"(.*)"$/s.exec(text.trim()) ?? [];
  const [, begins] = /^(.+)(?:…|\.\.\.)$/s.exec(inner) ?? [];
  return { text: begins ?? inner, begins: begins !== undefined, isQuoted: quoted !== undefined };
}

/** A condition as `parsed` reads it. */
export function conditionText(/** @type {string} */ name, /** @type {string} */ value) {
  const found = Object.entries(PLAIN).find(([, parameter]) => parameter === name);
  if (found) return `${found[0]} = ${BARE.has(name) ? value : `"${value}"`}`;
  if (name === "text") return `"${value}"`;
  if (name === "newer_s" || name === "older_s") return `sent ${name === "newer_s" ? "<" : ">"} ${lasting(Number(value))}`;
  if (name === "received_min" || name === "received_max") return `receives ${name === "received_min" ? ">=" : "<="} ${value}`;
  if (name.endsWith("_ms"))
    return `sent ${/until/.test(name) ? "<" : ">="} ${local(Number(value))}`;
  const [path, wanted, begins] = compare(value);
  const told = name === "attribute" ? `attribute.${path}` : name === "json" && RESERVED.has(path) ? `$.${path}` : path;
  if (wanted === null) return `has ${told}`;
  return `${told} = "${wanted}${begins ? "…" : ""}"`;
}

/** Path, value and whether that is a beginning; the value is null if the field is only to be there.
 * @returns {[path: string, value: string | null, begins: boolean]} */
export function compare(/** @type {string} */ condition) {
  const at = condition.indexOf("=");
  if (at < 0) return [condition, null, false];
  const begins = condition[at - 1] === "^";
  return [condition.slice(0, begins ? at - 1 : at), condition.slice(at + 1), begins];
}

const STUBS = [["id = ", "id", "the beginning of a message's id"], ["group = ", "group", "a message group"],
  ["state = ", "state", "where it is"], ["sent < ", "newer_s", "within a time, such as 14h"],
  ["sent > ", "older_s", "longer ago than, such as 2d"], ["receives >= ", "received_min", "how often it was received"],
  ["source = ", "source", "the queue of a dead letter"], ["left = ", "reason", "why it left its queue"],
  ["attribute.", "attribute", "a message attribute"], ["has ", "json", "a field of the body is there"]];
const OFFERED = 9;

/**
 * What may be meant by what is typed: conditions, and beginnings of some, which are to be typed on.
 * `seen` are conditions that fit what is shown, the most frequent first.
 *
 * @returns {{text: string, hint: string, isWhole: boolean}[]}
 */
export function suggestions(/** @type {string} */ typed, /** @type {Set<string>} */ known, /** @type {string[]} */ seen) {
  const given = typed.trim();
  const wanted = plain(given);
  const of = Object.entries(CHOICES).filter(([name]) => known.has(name))
    .flatMap(([name, values]) => values.map((value) => conditionText(name, value)));
  const fitting = (texts) => (given === "" ? [] : texts.filter((text) => plain(text).includes(wanted)));
  const stubs = STUBS.filter(([text, name]) => known.has(name) && plain(text).startsWith(wanted) && text.trim() !== given);
  const found = [
    ...meanings(given, known),
    ...[...fitting(seen), ...fitting(of)].map((text) => ({ text, hint: "", isWhole: true })),
    ...stubs.map(([text, , hint]) => ({ text, hint, isWhole: false })),
    ...(given === "" ? seen.map((text) => ({ text, hint: known.has("json") ? "on this page" : "", isWhole: true })) : []),
  ];
  const first = new Map();
  found.forEach((one) => first.has(one.text) || first.set(one.text, one));
  return [...first.values()].slice(0, given === "" ? STUBS.length + OFFERED : OFFERED);
}

/** The readings of a text: as the condition that it is, and as a text to find. */
function meanings(given, known) {
  const found = [];
  try {
    for (const [name, value] of each(parsed(given, known)))
      found.push({ text: conditionText(name, value), hint: HINTS[name] ?? "", isWhole: true });
  } catch {
    // it is still being typed
  }
  if (given && known.has("text") && !given.includes('"'))
    found.push({ text: conditionText("text", given), hint: HINTS.text, isWhole: true });
  return found;
}

const HINTS = { text: "in the body", json: "a field of the body", attribute: "a message attribute", tags: "a tag" };

function plain(text) {
  return text.toLowerCase().replace(/[\s"]/g, "");
}

const HIDDEN = "(hidden)";

/** A filter in a line, as it is shown with a redrive. */
export function filterText(filter) {
  const texts = Object.entries(filter ?? {}).map(([name, value]) => [name, String(value)]);
  return each(Object.fromEntries(texts)).map(([name, value]) => conditionText(name, value)).join(", ");
}

/** The edit of a redrive in a line. The service hides it from those who may not read bodies. */
export function editText({ edit }) {
  if (edit && HIDDEN in edit) return "edited (hidden)";
  return edit && `edit ${JSON.stringify(edit)}`;
}
