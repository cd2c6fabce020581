// Texts that were typed and not sent: Back, Forward and other screens do not lose them. They are kept
// in memory, for the caller who is signed in.

import { caller } from "./api.js";

/** @type {WeakMap<object, Map<string, string>>} */
const ofCallers = new WeakMap();

/** The text of a place, such as a queue's name; null is no draft. */
export async function draftOf(/** @type {string} */ place) {
  const who = await caller();
  const drafts = ofCallers.get(who) ?? new Map();
  ofCallers.set(who, drafts);
  return {
    /** @type {string | null} */
    text: drafts.get(place) ?? null,
    keep: (/** @type {string} */ text) => void drafts.set(place, text),
    forget: () => void drafts.delete(place),
  };
}
