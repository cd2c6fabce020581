// Fields of numbers with units: a time or a size is written as people do, and its range stands below.

import { el, field } from "./dom.js";
import { bytes, secondsOf, sizeOf, span } from "./format.js";

/** @type {Record<string, [unit: "s" | "bytes", low: number, high: number]>} */
const RANGES = {
  DelaySeconds: ["s", 0, 900],
  KmsDataKeyReusePeriodSeconds: ["s", 60, 86400],
  MaximumMessageSize: ["bytes", 1024, 1048576],
  MessageRetentionPeriod: ["s", 60, 1209600],
  ReceiveMessageWaitTimeSeconds: ["s", 0, 20],
  VisibilityTimeout: ["s", 0, 43200],
};
const UNITS = { s: { read: secondsOf, text: span }, bytes: { read: sizeOf, text: (size) => bytes(size).replace(".0 ", " ") } };

/** Such as "4d" for 345600, where that says the same. */
export function asShown(name, value) {
  const { read, text } = UNITS[RANGES[name]?.[0]] ?? {};
  if (!read || !text || value === "") return value;
  return read(text(Number(value))) === Number(value) ? text(Number(value)) : value;
}

/** Such as 90 for "1m 30s"; what is no number is left for the service to refuse. */
export function asSent(name, value) {
  const number = UNITS[RANGES[name]?.[0]]?.read(value) ?? null;
  return number === null ? value : String(number);
}

/** What a value means, and which may be given: "30s; 0s to 12h". */
export function rangeText(name, value) {
  const [unit, low, high] = RANGES[name] ?? [];
  if (!unit || low === undefined || high === undefined) return "";
  const { read, text } = UNITS[unit];
  const given = read(value);
  const isRight = given !== null && given >= low && given <= high;
  return `${isRight ? `${text(given)}; ` : "must be "}${text(low)} to ${text(high)}`;
}

/** The field of an attribute, whose hint says what is typed. */
export function rangedField(name, input, label = name) {
  const shown = field(label, input, rangeText(name, input.value));
  const hint = shown.querySelector(".hint");
  if (hint) input.addEventListener("input", () => (hint.textContent = rangeText(name, input.value)));
  return shown;
}

export function textField(value) {
  return el("input", { value, autocomplete: "off", spellcheck: "false" });
}
