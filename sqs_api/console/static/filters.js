// The fields of a filter: the message browser and redrives choose messages in the same way.

import { el, field } from "./dom.js";

const FILTERS = [
  ["text", "Part of the body", "search"],
  ["json", "JSON field: items[0].sku=A1"],
  ["attribute", "Attribute: NAME=VALUE"],
  ["id", "Message id"],
  ["failure", "Failure, by its id"],
  ["group", "Group"],
  ["source", "Source queue"],
  ["received_min", "Receives, at least", "number"],
  ["received_max", "Receives, at most", "number"],
  ["older_s", "Sent more than … seconds ago", "number"],
  ["newer_s", "Sent within … seconds", "number"],
];
/** The condition that a line tells: its field need not be seen. */
export const TOLD = "failure";
const USUAL = 4; // so many fields are always shown
const NUMBERS = new Set(FILTERS.filter(([, , type]) => type === "number").map(([name]) => name));

/** The conditions in the query of an address. */
export function conditionsOf(query) {
  const found = FILTERS.map(([name]) => [name, query.get(name)]);
  return Object.fromEntries(found.filter(([, value]) => value));
}

export class FilterFields {
  constructor(query) {
    this.inputs = FILTERS.map(([name, label, type = "text"]) => {
      const value = query.get(name) ?? "";
      const min = type === "number" ? "0" : null;
      return [name, label, el("input", { name, type, value, min, autocomplete: "off" })];
    });
  }

  /** The usual fields, and the others behind a fold that is open if one of them is filled in. */
  get elements() {
    const fields = this.inputs.map(([, label, input]) => field(label, input));
    const open = this.inputs.slice(USUAL).some(([name, , input]) => name !== TOLD && input.value !== "");
    return [fields.slice(0, USUAL), el("details", { class: "more", open },
      el("summary", {}, "More conditions"), el("div", { class: "search" }, fields.slice(USUAL)))];
  }

  /** The conditions by name, as texts. */
  get texts() {
    const given = this.inputs.map(([name, , input]) => [name, input.value.trim()]);
    return Object.fromEntries(given.filter(([, value]) => value));
  }

  /** The same with numbers, for a request; null if there are none. */
  get conditions() {
    const given = numbered(this.texts);
    return Object.keys(given).length ? given : null;
  }
}

/** Conditions for a request: with numbers instead of their texts. */
export function numbered(texts) {
  return Object.fromEntries(Object.entries(texts).map(([name, value]) =>
    [name, NUMBERS.has(name) ? Number(value) : value]));
}

/** A filter in a line. */
export function filterText(filter) {
  return Object.entries(filter ?? {}).map(([name, value]) => {
    const at = name.endsWith("_ms") ? new Date(value).toISOString().slice(0, 19) : value;
    return `${name.replace(/_ms$/, "")} ${at}`;
  }).join(", ");
}

/** The edit of a redrive in a line. */
export function editText({ edit }) {
  return edit && `edit ${JSON.stringify(edit)}`;
}
