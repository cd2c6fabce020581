// The editor of a body: search with the hits marked, format, and what is wrong with it before it is sent.

import { jsonFault, placeText, refusal } from "./body_check.js";
import { button, el, fill, patch } from "./dom.js";
import { pretty } from "./format.js";
import { marked, textHits } from "./hits.js";
import { unseenIn } from "./unseen_characters.js";

const MARKED_MAX = 1000;
const NAMED_MAX = 5;

/** The hit to go to from one, which is -1 before the first step: round and round. */
export function nextHit(/** @type {number} */ at, /** @type {number} */ by, /** @type {number} */ hits) {
  if (hits === 0) return -1;
  return at < 0 && by < 0 ? hits - 1 : (at + by + hits) % hits;
}

export class Editor {
  /**
   * @param {object} given
   * @param {string} given.text
   * @param {string} given.rows
   * @param {() => number} given.largest the bytes that the queue takes
   * @param {() => number} given.others the bytes of the message beside its body
   * @param {(text: string) => string} given.json what to say of a text that is no JSON; empty if it need not be
   * @param {() => void} given.changed after a change by a button
   */
  constructor({ text, rows, largest, others, json, changed }) {
    this.largest = largest;
    this.others = others;
    this.json = json;
    /** @type {[number, number][]} */
    this.hits = [];
    this.at = -1;
    this.input = el("textarea", { id: "body", rows, required: true, spellcheck: "false", "aria-describedby": "body-check",
      onscroll: () => this._follow() });
    this.input.value = text;
    this.input.setSelectionRange(0, 0); // a long text is seen from its beginning
    this.behind = el("pre", { class: "hits", "aria-hidden": "true" }); // the same text, whose marks shine through
    this.wanted = el("input", { type: "search", placeholder: "Find  ( / )", "aria-label": "Find a text", autocomplete: "off",
      spellcheck: "false", oninput: (event) => this._find(event), onkeydown: (event) => this._key(event) });
    this.found = el("span", { class: "hint found", role: "status" });
    this.format = button("Format", () => {
      this.input.value = pretty(this.input.value) ?? this.input.value;
      changed();
    });
    this.said = el("div", { role: "status", id: "body-check" });
    this.steps = [["Previous hit", "↑", -1], ["Next hit", "↓", 1]].map(([name, sign, by]) =>
      button(sign, () => this._step(Number(by)), { "aria-label": name, title: name, disabled: true }));
    this.place = el("div", { class: "editor" },
      el("div", { class: "editor-head" }, el("label", { for: "body" }, "Body"),
        el("div", { class: "actions", role: "search" }, this.found, this.wanted, this.steps, this.format)),
      el("div", { class: "editor-text" }, this.behind, this.input),
      this.said);
  }

  get text() {
    return this.input.value;
  }

  /** Say what is wrong, and mark the hits of the text as it is now. */
  check() {
    const { text } = this;
    const refused = text === "" ? null : refusal(text, this.largest(), this.others());
    const said = refused ? "The service would refuse this: " : this.json(text);
    const fault = refused ?? (said ? jsonFault(text) : null);
    this.input.setAttribute("aria-invalid", String(fault !== null));
    const unseen = refused ? null : unseenIn(text);
    patch(this.said, fault && this._warning(said, fault.at, fault.text), unseen && this._warning(
      "Not all is seen here: ", unseen.at, `${unseen.names.slice(0, NAMED_MAX).join(", ")}${unseen.names.length > NAMED_MAX ? " and more" : ""}.`));
    this.format.disabled = pretty(text) === null;
    this._search();
  }

  /** A sentence about a place in the text, with a way to it. */
  _warning(before, /** @type {number} */ at, what) {
    return el("p", { class: "notice actions warning" },
      el("span", {}, before, `${placeText(this.text, at)}. ${what}`),
      button("Show the place", () => this._reveal([at, Math.min(at + 1, this.text.length)], true)));
  }

  _search() {
    this.hits = textHits(this.text, this.wanted.value);
    this.at = Math.min(this.at, this.hits.length - 1);
    this.steps.forEach((each) => (each.disabled = this.hits.length === 0));
    this._mark(this.hits.slice(0, MARKED_MAX));
  }

  _find(event) {
    event.stopPropagation(); // nothing is edited
    this.at = -1;
    this._search();
    this._step(1);
  }

  _key(event) {
    if (event.key === "Enter") this._step(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape") this._leave();
    else return;
    event.preventDefault();
  }

  /** Back into the text, at the hit. */
  _leave() {
    const hit = this.hits[this.at];
    if (hit) this._reveal(hit, true);
    else this.input.focus();
  }

  _step(/** @type {number} */ by) {
    this.at = nextHit(this.at, by, this.hits.length);
    const hit = this.hits[this.at];
    if (hit) this._reveal(hit, false);
    this._tell();
  }

  _tell() {
    const { length } = this.hits;
    this.found.textContent = this.wanted.value === "" ? "" : length ? `${this.at + 1} of ${length}` : "not there";
  }

  _mark(hits) {
    fill(this.behind, hits.length > 0 && [marked(this.text, hits, (part) => part), "\n"]);
    this.behind.querySelectorAll("mark")[this.at]?.classList.add("here");
    this._tell();
    this._follow();
  }

  _follow() {
    this.behind.scrollTop = this.input.scrollTop;
  }

  /** Scroll to a place in the text, and perhaps select it. */
  _reveal(/** @type {[number, number]} */ place, /** @type {boolean} */ isSelected) {
    if (isSelected) {
      this.input.focus({ preventScroll: true });
      this.input.setSelectionRange(...place);
    }
    this._mark([place]);
    const top = /** @type {HTMLElement | null} */ (this.behind.querySelector("mark"))?.offsetTop ?? 0;
    const isSeen = top >= this.input.scrollTop && top < this.input.scrollTop + this.input.clientHeight * 0.8;
    if (!isSeen) this.input.scrollTop = Math.max(0, top - this.input.clientHeight / 3);
    this._mark(this.hits.slice(0, MARKED_MAX));
  }
}
