// How many messages match a filter. Counting looks at messages, so it ends at a bound and says so;
// one click counts on.

import { ofQueue, question } from "./api.js";
import { button, el, patch } from "./dom.js";
import { numbered } from "./filters.js";
import { count } from "./format.js";

const STEPS = 10; // of a second each at most

export class MatchCount {
  /** @param {AbortSignal} signal @param {(error: Error) => void} fail */
  constructor(name, signal, fail) {
    this.name = name;
    this.signal = signal;
    this.fail = fail;
    this.place = el("p", { class: "actions matches", role: "status", hidden: true });
    this.key = "";
    this.ended = new AbortController();
  }

  /** Show the number for a filter: that of the messages on the page if these are all, else it is counted. */
  of({ state = "all", ...conditions }, /** @type {number} */ shown, /** @type {boolean} */ areAll) {
    const key = JSON.stringify([state, conditions]);
    if (state === "all" && Object.keys(conditions).length === 0) return this.forget();
    if (areAll) {
      this.forget();
      this.key = key;
      this._say(el("strong", {}, `${count(shown)} match`));
    } else if (key !== this.key) {
      this.forget();
      this.key = key;
      this._count({ filter: numbered(conditions), state, token: null }, { matching: 0, looked: 0, shown });
    }
  }

  /** Show none, and count it again when it is asked for. */
  forget() {
    this.ended.abort();
    this.ended = new AbortController();
    this.key = "";
    this.place.hidden = true;
  }

  async _count(asked, sums) {
    const signal = AbortSignal.any([this.signal, this.ended.signal]);
    let { token } = asked;
    try {
      for (let step = 0; step < STEPS; step += 1) {
        const found = await question(ofQueue(this.name, "/messages/matching/count"), { ...asked, token }, signal);
        sums.looked += found.scanned;
        for (const each of Object.values(found.states)) sums.matching += each;
        token = found.next;
        if (token === null) return this._say(el("strong", {}, `${count(sums.matching)} match`));
        this._say(el("span", {}, `At least ${count(Math.max(sums.matching, sums.shown))} match …`));
      }
    } catch (error) {
      if (!signal.aborted) this.fail(error);
      return undefined;
    }
    return this._say(el("strong", {}, `At least ${count(Math.max(sums.matching, sums.shown))} match`),
      el("span", { class: "hint" }, `${count(sums.looked)} messages counted so far`),
      button("Count on", () => this._count({ ...asked, token }, sums), { busy: "Counting …" }));
  }

  _say(...content) {
    this.place.hidden = false;
    patch(this.place, ...content);
  }
}
