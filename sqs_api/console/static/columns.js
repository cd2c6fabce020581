// Columns of the message list that are read from the bodies, and bodies without what all of them begin with.

import { el, field, patch } from "./dom.js";
import { leavesOf } from "./filter_box.js";
import { shownText } from "./unseen_characters.js";

const SHARED_MIN = 20;
const PATHS_MAX = 6;
const OFFERED_MAX = 14;
const ERROR_LIKE = /error|exception|reason|cause|fault|fail/i;
const KEPT = "holdfast columns ";

/** Paths such as error.type or items[0].sku, as they are written with commas. @returns {string[]} */
export function pathsOf(/** @type {string} */ text) {
  return [...new Set(text.split(",").map((each) => each.trim()).filter(Boolean))].slice(0, PATHS_MAX);
}

/** Paths that these bodies have: what looks like an error first, then what differs from body to body. Of errors, kinds
 * come before texts: what has fewer values. */
export function pathsIn(/** @type {string[]} */ bodies) {
  /** @type {Map<string, Set<string>>} */
  const values = new Map();
  for (const body of bodies)
    for (const [path, value] of leavesOf(body)) values.set(path, (values.get(path) ?? new Set()).add(value));
  const rank = ([path, { size }]) => (ERROR_LIKE.test(path) ? 2 : 0) + (size > 1 ? 1 : 0);
  const kinds = ([path, { size }]) => (ERROR_LIKE.test(path) ? size : 0);
  return [...values].sort((one, other) => rank(other) - rank(one) || kinds(one) - kinds(other))
    .map(([path]) => path).slice(0, OFFERED_MAX);
}

/** What a body has at a path, as a text; empty if it has nothing there, or is no JSON. */
export function valueAt(/** @type {string} */ body, /** @type {string} */ path) {
  try {
    const names = path.replace(/\[(\d+)\]/g, ".$1").split(".");
    const found = names.reduce((value, name) => (Object.hasOwn(Object(value), name) ? value[name] : undefined), JSON.parse(body));
    return found === undefined ? "" : typeof found === "string" ? found : JSON.stringify(found);
  } catch {
    return "";
  }
}

/** How long a beginning all texts share, up to the end of a field; 0 if it is short, or there is one text. */
export function sharedBy(/** @type {string[]} */ texts) {
  if (texts.length < 2) return 0;
  const [first, ...others] = texts;
  let length = 0;
  while (length < first.length && others.every((each) => each[length] === first[length])) length += 1;
  const end = first.slice(0, length).lastIndexOf(",") + 1;
  return end >= SHARED_MIN ? end : 0;
}

/** The paths of a queue, which this browser keeps. */
export class Columns {
  /** With `isDead`, of dead letters, what looks like an error is a column until others, or none, are chosen. */
  constructor(/** @type {string} */ name, /** @type {boolean} */ isDead, /** @type {() => void} */ changed) {
    this.key = KEPT + name;
    this.paths = pathsOf(kept(this.key));
    this.isUsual = isDead && kept(this.key) === "";
    this.changed = changed;
    this.input = el("input", { value: this.paths.join(", "), autocomplete: "off", spellcheck: "false",
      placeholder: "error.type, items[0].sku", oninput: () => this._choose(pathsOf(this.input.value)) });
    this.choices = el("div", { class: "choices" });
    this.fold = el("details", { class: "more", open: this.paths.length > 0 }, el("summary", {}, "Columns"), this.choices,
      field("Columns from the body", this.input));
  }

  _choose(/** @type {string[]} */ paths) {
    this.paths = paths;
    this.isUsual = false;
    keep(this.key, paths.join(", ") || " "); // none is a choice, too
    this.changed();
  }

  /** Offer the paths of these bodies to be ticked; the chosen ones stay. */
  offer(/** @type {string[]} */ bodies) {
    if (this.isUsual) {
      this.paths = pathsIn(bodies).filter((path) => ERROR_LIKE.test(path)).slice(0, 1);
      this.input.value = this.paths.join(", ");
    }
    const found = [...new Set([...this.paths, ...pathsIn(bodies)])].slice(0, OFFERED_MAX);
    patch(this.choices, found.map((path) => {
      const isChosen = this.paths.includes(path);
      const onchange = ({ currentTarget: { checked } }) => {
        this._choose(checked ? [...this.paths, path] : this.paths.filter((each) => each !== path));
        this.input.value = this.paths.join(", ");
      };
      const tick = el("input", { type: "checkbox", onchange, disabled: !isChosen && this.paths.length >= PATHS_MAX });
      tick.checked = isChosen;
      return el("label", { class: "choice", "data-key": path }, tick, el("code", {}, path));
    }));
  }

  /** Columns of a table. */
  get columns() {
    return this.paths.map((path) => [path, "value"]);
  }

  /** The cells of a message. */
  cells(/** @type {string | null} */ body) {
    return this.paths.map((path) => (body === null ? "" : shownText(valueAt(body, path).slice(0, 200))));
  }
}

export function kept(key) {
  try {
    return localStorage.getItem(key) ?? "";
  } catch {
    return ""; // the browser keeps nothing
  }
}

export function keep(key, text) {
  try {
    if (text) localStorage.setItem(key, text);
    else localStorage.removeItem(key);
  } catch {
    // the browser keeps nothing
  }
}
