// The attributes of a message that is edited: a row each, with name, type and value.

import { button, el, field, fill } from "./dom.js";
import { bytesOf } from "./body_check.js";

const ATTRIBUTES_MAX = 10;

/** @typedef {{type: string, value?: string, binary?: string}} Attribute a binary value is base64 */

export class AttributeFields {
  /** @param {Record<string, Attribute>} attributes @param {() => void} changed */
  constructor(attributes, changed) {
    this.changed = changed;
    this.rows = Object.entries(attributes).map(([name, each]) => this._row(name, each));
    this.place = el("div");
    this._show();
  }

  /** As they are sent; rows without a name are left out. */
  get attributes() {
    /** @type {Record<string, Attribute>} */
    const found = {};
    for (const { name, type, value } of this.rows)
      if (name.value.trim())
        found[name.value.trim()] = { type: type.value.trim(), [type.value.startsWith("Binary") ? "binary" : "value"]: value.value };
    return found;
  }

  /** The bytes that count for the size of the message. */
  get size() {
    return Object.entries(this.attributes).reduce((sum, [name, { type, value, binary }]) =>
      sum + bytesOf(name + type + (value ?? "")) + Math.floor((binary ?? "").replace(/=+$/, "").length * 0.75), 0);
  }

  _row(/** @type {string} */ name, /** @type {Attribute} */ { type, value, binary }) {
    const input = (text, more = {}) => el("input", { value: text, autocomplete: "off", spellcheck: "false", ...more });
    return { name: input(name, { maxlength: "256" }), type: input(type, { list: "attribute-types" }), value: input(value ?? binary ?? "") };
  }

  _show() {
    fill(this.place,
      el("datalist", { id: "attribute-types" }, ["String", "Number", "Binary"].map((type) => el("option", { value: type }))),
      this.rows.map((each, at) => el("fieldset", { class: "search" },
        field("Attribute", each.name), field("Type", each.type), field("Value, of a binary one base64", each.value),
        button("Remove", () => this._remove(at), { "aria-label": `Remove attribute ${each.name.value || at + 1}` }))),
      this.rows.length < ATTRIBUTES_MAX && button("Add an attribute", () => this._add()));
  }

  _add() {
    this.rows.push(this._row("", { type: "String" }));
    this._show();
    this.rows.at(-1)?.name.focus();
    this.changed();
  }

  _remove(at) {
    this.rows.splice(at, 1);
    this._show();
    /** @type {HTMLElement | null} */ (this.place.querySelector("button:last-of-type"))?.focus();
    this.changed();
  }
}
