// One box for a filter: conditions are typed or picked, and each is a chip that a click or Backspace
// removes. What is in it is a filter of the service, see `filters.js`.

import { button, el, fill } from "./dom.js";
import { conditionsOf, conditionText, each, isCondition, numbered, parsed, suggestions, without, withMore } from "./filters.js";

const ON_BODIES = new Set(["text", "json", "attribute", "failure"]);
const MASKED = " Bodies and attributes are masked for you: ask for an id, a state, times, receives or a source.";
let boxes = 0;

export class FilterBox {
  /**
   * @param {URLSearchParams} query of the address, with conditions
   * @param {Set<string>} known the conditions that the list has
   * @param {object} given
   * @param {string} [given.label]
   * @param {string} [given.placeholder]
   * @param {() => void} [given.changed] called when there are other conditions
   * @param {() => string[]} [given.seen] conditions that fit what is shown
   * @param {(text: string) => void} [given.typed] called at each letter; a text without a sign of
   *   comparison stays where it was typed
   */
  constructor(query, known, { label = "Filter", placeholder = 'error.type = "Tax…", sent < 14h, a text', changed = () => {},
    seen = () => [], typed = undefined } = {}) {
    boxes += 1;
    this.id = `filter-${boxes}`;
    this.known = known;
    this.texts = conditionsOf(query, known);
    this.changed = changed;
    this.seen = seen;
    this.placeholder = placeholder;
    this.typed = typed;
    /** @type {ReturnType<typeof suggestions>} */
    this.offered = [];
    this.at = -1;
    this.chips = el("span", { class: "chips", role: "group", "aria-label": "Conditions" });
    this.input = el("input", { type: "search", role: "combobox", "aria-label": label, "aria-autocomplete": "list",
      "aria-expanded": "false", "aria-controls": this.id, "aria-describedby": `${this.id}-wrong`, autocomplete: "off",
      autocapitalize: "off", spellcheck: "false", enterkeyhint: "search",
      oninput: () => this._typed(), onkeydown: (event) => this._key(event), onclick: () => this.offer(),
      onblur: () => this._close() });
    this.list = el("ul", { id: this.id, role: "listbox", "aria-label": "Suggestions", hidden: true,
      onpointerdown: (event) => event.preventDefault() }); // the focus stays
    this.wrong = el("p", { id: `${this.id}-wrong`, class: "wrong", role: "alert" });
    this.element = el("div", { class: "filter-box" },
      el("div", { class: "filter-line", onclick: (event) => event.target === event.currentTarget && this.input.focus() },
        this.chips, this.input), this.list, this.wrong);
    this._show();
  }

  /** The same with numbers, for a request; empty if there are none. */
  get conditions() {
    return numbered(this.texts);
  }

  /** A form with this box was sent: take what was typed, or begin anew if that is nothing.
   * @param {Event} event
   * @param {() => void} begin
   */
  submitted(event, begin) {
    event.preventDefault();
    if (this.input.value.trim() === "") begin();
    else this.commit();
  }

  /** Bodies are masked: nothing may be asked of them. */
  maskBodies() {
    this.known = new Set([...this.known].filter((name) => !ON_BODIES.has(name)));
    this.placeholder = "id = 8f14e45f, state = visible, sent < 14h";
    this._show();
  }

  /** Take what is typed for a condition; false if it is none, which is said. */
  commit() {
    this._close();
    if (this.input.value.trim() === "" || (this.typed && !isCondition(this.input.value))) return true;
    try {
      this._add(parsed(this.input.value, this.known));
      return true;
    } catch (error) {
      this.wrong.textContent = error.message + (this.known.has("text") || this.typed ? "" : MASKED);
      this.input.focus();
      return false;
    }
  }

  _add(more) {
    this.texts = withMore(this.texts, more);
    this.input.value = "";
    this._show();
    this.changed();
  }

  _remove(name, value) {
    this.texts = without(this.texts, name, value);
    this._show();
    this.input.focus();
    this.changed();
  }

  _show() {
    this.wrong.textContent = "";
    fill(this.chips, each(this.texts).map(([name, value]) => {
      const text = conditionText(name, value);
      return button(text, () => this._remove(name, value), { class: "chip", "aria-label": `Remove ${text}`, title: text });
    }));
    this.chips.hidden = Object.keys(this.texts).length === 0;
    this.input.placeholder = this.chips.hidden ? this.placeholder : "";
  }

  _typed() {
    this.wrong.textContent = "";
    this.typed?.(this.input.value);
    this.offer();
  }

  offer() {
    this.offered = suggestions(this.input.value, this.known, this.seen());
    this.at = -1;
    this._showOffered();
  }

  _showOffered() {
    const { offered, at, id } = this;
    fill(this.list, offered.map(({ text, hint }, index) => el("li", { id: `${id}-${index}`, role: "option",
      "aria-selected": String(index === at), onclick: () => this._take(index) },
    el("span", {}, text), el("span", { class: "hint" }, hint))));
    this.list.hidden = offered.length === 0;
    this.input.setAttribute("aria-expanded", String(offered.length > 0));
    if (at < 0) this.input.removeAttribute("aria-activedescendant");
    else this.input.setAttribute("aria-activedescendant", `${id}-${at}`);
    this.list.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  }

  _close() {
    this.offered = [];
    this.at = -1;
    this._showOffered();
  }

  /** Take a suggestion: a condition, or the beginning of one to type on. */
  _take(index) {
    const { text, isWhole } = this.offered[index];
    this.input.value = text;
    this.input.focus();
    if (isWhole) this.commit();
    else this._typed();
  }

  _key(event) {
    const { key } = event;
    const isOpen = this.offered.length > 0;
    if (key === "Backspace" && this.input.value === "") {
      const last = each(this.texts).at(-1);
      if (last) this._remove(...last);
      return;
    }
    if (key === "Escape" && isOpen) {
      event.preventDefault(); // it would empty the field
      event.stopPropagation();
      this._close();
    } else if (key === "Enter" && (this.at >= 0 || this.input.value.trim() !== "")) {
      event.preventDefault();
      if (this.at >= 0) this._take(this.at);
      else this.commit();
    } else if (key === "ArrowDown" || key === "ArrowUp") {
      event.preventDefault();
      if (!isOpen) return void this.offer();
      const next = this.at + (key === "ArrowDown" ? 1 : -1);
      const length = this.offered.length;
      this.at = next < -1 ? length - 1 : next === length ? -1 : next;
      this._showOffered();
    }
  }
}

const LEAVES = 40; // of a message; bodies may be wide
const SEEN = 60;

/** Conditions that fit these messages, the most frequent first. @returns {string[]} */
export function seenIn(/** @type {any[]} */ messages) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  const add = (name, value) => {
    const text = conditionText(name, value);
    counts.set(text, (counts.get(text) ?? 0) + 1);
  };
  for (const message of messages) {
    if (message.group_id) add("group", message.group_id);
    const source = message.source_arn?.slice(message.source_arn.lastIndexOf(":") + 1);
    if (source) add("source", source);
    for (const [name, { value }] of Object.entries(message.attributes ?? {}))
      if (isPlain(value)) add("attribute", `${name}=${value}`);
    for (const [path, value] of leavesOf(message.body)) add("json", `${path}=${value}`);
  }
  return [...counts].sort(([, one], [, other]) => other - one).map(([text]) => text).slice(0, SEEN);
}

/** Paths and values in a JSON body, as the service compares them. */
export function leavesOf(body) {
  /** @type {[string, string][]} */
  const found = [];
  const walk = (value, path) => {
    if (found.length >= LEAVES) return;
    if (value !== null && typeof value === "object") {
      for (const [name, inner] of Object.entries(value))
        if (!/[.[\]]/.test(name)) walk(inner, Array.isArray(value) ? `${path}[${name}]` : path ? `${path}.${name}` : name);
    } else if (path && isPlain(value) && !/["=<>^\n]/.test(path)) found.push([path, String(value)]);
  };
  try {
    walk(JSON.parse(body ?? ""), "");
  } catch {
    return [];
  }
  return found;
}

/** True for what is short, and compared as it is shown. */
function isPlain(value) {
  if (typeof value === "number") return Number.isSafeInteger(value);
  return value !== undefined && String(value).length <= 60 && !String(value).includes("\n");
}
