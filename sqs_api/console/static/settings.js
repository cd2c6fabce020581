// A queue's attributes and tags as a page shows them. Saving them overwrites nothing that somebody
// else has changed since: then it says who, and shows both values; the next save puts ours in place.

import { caller, get, ofQueue, post } from "./api.js";
import { el } from "./dom.js";
import { local, pretty, whoCalled } from "./format.js";
import { asShown } from "./ranged_fields.js";
import { shownDiff } from "./shown_diff.js";

const CHANGES = /^(holdfast:SetAttributes|holdfast:TagQueue|holdfast:UntagQueue|SetQueueAttributes|TagQueue|UntagQueue|AddPermission|RemovePermission)$/;
/** @typedef {Record<string, string>} Values */

/** A refusal to overwrite the change of another operator, with the differences to show. */
export class Overtaken extends Error {
  /** @param {string} message @param {unknown[]} differences elements */
  constructor(message, differences) {
    super(message);
    this.differences = differences;
  }
}

export class Settings {
  constructor(/** @type {{name: string, attributes: Values, tags: Values}} */ { name, attributes, tags }) {
    this.name = name;
    this.attributes = { ...attributes };
    this.tags = { ...tags };
  }

  /** A field of an attribute, whose value is `changed` if it is another one than before, or than is stored by now. */
  kept(/** @type {string} */ name, /** @type {() => string} */ value) {
    let before = [value(), this.attributes[name]];
    const now = () => [value(), this.attributes[name]];
    return {
      /** @returns {Values} */
      changed: () => (now().every((each, at) => each === before[at]) ? {} : { [name]: value() }),
      keep: () => (before = now()),
    };
  }

  /** Set attributes; those that change `with` them are known afterwards, too. */
  saveAttributes(/** @type {Values} */ attributes, /** @type {string[]} */ others = []) {
    return this._save("attributes", attributes, [...Object.keys(attributes), ...others],
      (seen) => post(ofQueue(this.name, "/attributes"), { attributes, seen }));
  }

  saveTags(/** @type {Values} */ tags) {
    return this._save("tags", tags, Object.keys(tags), (seen) => post(ofQueue(this.name, "/tags"), { tags, seen }));
  }

  removeTags(/** @type {string[]} */ keys) {
    return this._save("tags", {}, keys, (seen) => post(ofQueue(this.name, "/tags/remove"), { keys, seen }));
  }

  /**
   * @param {"attributes" | "tags"} kind
   * @param {Values} wanted
   * @param {string[]} names
   * @param {(seen: Record<string, string | null>) => Promise<{attributes: Values, tags: Values}>} save
   */
  async _save(kind, wanted, names, save) {
    const known = this[kind];
    const seen = Object.fromEntries(names.map((name) => [name, known[name] ?? null]));
    try {
      learn(known, names, (await save(seen))[kind]);
    } catch (error) {
      if (error.code !== "ChangedMeanwhile") throw error;
      const now = (await get(ofQueue(this.name)))[kind];
      const changed = names.filter((name) => now[name] !== known[name]);
      learn(known, names, now);
      throw new Overtaken(`Nothing was saved: this was changed meanwhile${await changer(this.name, changed)}. Save again to put yours in place of it.`,
        changed.map((name) => difference(name, now[name] ?? "", wanted[name] ?? "")));
    }
  }
}

function learn(/** @type {Values} */ known, /** @type {string[]} */ names, /** @type {Values} */ now) {
  for (const name of names)
    if (name in now) known[name] = now[name];
    else delete known[name];
}

/** Who changed one of these last, and when, for those who may know. */
async function changer(/** @type {string} */ queue, /** @type {string[]} */ names) {
  if (!(await caller()).may.includes("holdfast:ReadAudit")) return "";
  const found = await get("audit", { queue, limit: 20 }).catch(() => null);
  const last = found?.entries.find(({ action, denied, outcome, details }) => CHANGES.test(action) && !denied
    && (outcome ?? "ok") === "ok" && names.some((name) => JSON.stringify(details).includes(JSON.stringify(name))));
  if (!last) return "";
  return ` by ${whoCalled(last) || "somebody"} at ${local(Date.parse(last.time)).split(" ")[1]}`;
}

function difference(name, theirs, ours) {
  const isLong = pretty(theirs) !== null || pretty(ours) !== null;
  return [el("dt", {}, name), isLong
    ? el("dd", {}, el("span", { class: "hint" }, "− now, + yours"), shownDiff(theirs, ours))
    : el("dd", {}, "now ", el("code", {}, asShown(name, theirs) || "none"), ", yours ", el("code", {}, asShown(name, ours) || "none"))];
}
