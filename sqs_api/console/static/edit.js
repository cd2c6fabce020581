// The edit of a redrive: one field that is set, or a JSON merge patch; and what it does to messages.

import { el, field } from "./dom.js";
import { shownDiff } from "./shown_diff.js";

/**
 * The JSON merge patch that sets a field, such as "error.retry", to a value: JSON, or else a text.
 * Raises an Error for what is no such path.
 */
export function patchOf(path, value) {
  const names = path.split(".");
  if (path.includes("[") || names.includes(""))
    throw new Error("Write a field such as error.retry. A list is replaced as a whole.");
  return names.reduceRight((inner, name) => ({ [name]: inner }), /** @type {unknown} */ (valueOf(value)));
}

function valueOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** A merge patch as it is written. Raises an Error. */
export function patchIn(text) {
  const patch = valueOf(text);
  if (typeof patch !== "object" || patch === null || Array.isArray(patch))
    throw new Error('Write a JSON object such as {"retry": true, "debug": null}.');
  return patch;
}

export class EditFields {
  /** `isOpen`: the fields are shown at once. */
  constructor(isOpen) {
    this.isOpen = isOpen;
    this.path = el("input", { name: "edit", autocomplete: "off", spellcheck: "false", placeholder: "error.retry" });
    this.value = el("input", { name: "value", autocomplete: "off", spellcheck: "false", placeholder: "JSON, or else a text" });
    this.patchText = el("textarea", { name: "patch", rows: "3", spellcheck: "false" });
  }

  /** The fields, which have names for an address. */
  get inputs() {
    return [this.path, this.value, this.patchText];
  }

  get elements() {
    return el("details", { class: "filter", open: this.isOpen, ontoggle: ({ currentTarget: { open } }) => (this.isOpen = open) },
      el("summary", {}, "Edit the bodies that move"),
      el("div", { class: "search" },
        field("Field", this.path),
        field("New value", this.value)),
      field("Or a JSON merge patch", this.patchText, "null removes a field; what is not named stays"));
  }

  /** The merge patch; null if there is none, or if a field says what is wrong with it. */
  get patch() {
    const [path, text] = [this.path.value.trim(), this.patchText.value.trim()];
    this.path.setCustomValidity("");
    this.patchText.setCustomValidity("");
    if (path && text) {
      this.patchText.setCustomValidity("Set a field or give a merge patch, not both.");
      return null;
    }
    try {
      return path ? patchOf(path, this.value.value) : text ? patchIn(text) : null;
    } catch (error) {
      (path ? this.path : this.patchText).setCustomValidity(error.message);
      return null;
    }
  }
}

/** What an edit does to the first messages. */
export function shownSamples(samples) {
  if (samples.length === 0) return [];
  const first = samples.length === 1 ? "The first message" : `The first ${samples.length} messages`;
  return [
    el("h2", {}, `${first}, before and after`),
    el("div", { class: "samples" }, samples.map(({ message_id: id, before, after }) =>
      el("figure", { "data-key": id }, el("figcaption", { class: "hint" }, id), shownDiff(before, after)))),
  ];
}
