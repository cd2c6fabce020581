// A part of a screen that is read from the service: what is known, whether it still holds, and what
// failed. A screen is such objects, with functions that show their states.

import { latest } from "./api.js";
import { button, el, fill, patch } from "./dom.js";
import { local } from "./format.js";
import { repeat } from "./live.js";

/** @typedef {Error & {status?: number, needsSignIn?: boolean, endsScreen?: boolean}} Failure */

/**
 * The state of what is asked for; `changed` is called with it whenever it is another one.
 *
 * @template T
 */
export class Resource {
  /**
   * @param {AbortSignal} signal
   * @param {(signal: AbortSignal, partly: (value: T) => void) => Promise<T>} ask may give what it knows so far
   * @param {(state: Resource<T>) => void} changed
   * @param {() => number} nowMs
   */
  constructor(signal, ask, changed, nowMs = Date.now) {
    /** @type {T | null} */
    this.value = null;
    /** @type {Failure | null} of the latest question; the value is an older one, then */
    this.failure = null;
    /** True while another question than that of the value waits for its answer. */
    this.isOther = false;
    this.readAtMs = 0;
    this.ask = ask;
    this.changed = changed;
    this.nowMs = nowMs;
    this.newest = latest(signal);
  }

  /** Ask again; `isOther` says that the question is another one. An older answer changes nothing. */
  async read(isOther = this.value === null) {
    const mine = this.newest();
    const partly = (/** @type {T} */ value) => {
      if (mine.aborted) return;
      Object.assign(this, { value, failure: null, readAtMs: this.nowMs() });
      this.changed(this);
    };
    if (isOther) {
      this.isOther = true;
      this.changed(this);
    }
    try {
      const value = await this.ask(mine, partly);
      if (mine.aborted) return;
      Object.assign(this, { value, failure: null, isOther: false, readAtMs: this.nowMs() });
    } catch (error) {
      if (mine.aborted || error.name === "AbortError") return;
      this.failure = error;
    }
    this.changed(this);
  }

  /** Forget what is known, and the answer that is waited for: nothing is asked. */
  forget() {
    this.newest();
    Object.assign(this, { value: null, failure: null, isOther: false });
    this.changed(this);
  }
}

/** What failed, in a sentence; `what` is such as "The queues". */
export function failureText(what, { failure, value, readAtMs }) {
  const reason = `${what} cannot be read: ${lower(failure.message)}`.replace(/\w$/, "$&.");
  if (value === null) return reason;
  return `${reason} This is from ${local(readAtMs).split(" ")[1]}.`;
}

/** A sentence's beginning within another sentence; names such as KMS keep their case. */
function lower(text) {
  return /^[A-Z][a-z]*\s/.test(text) ? text[0].toLowerCase() + text.slice(1) : text;
}

/**
 * Read something, show it in a `place`, and say there what fails. A refusal that ends the screen,
 * such as a missing queue or the end of a session, goes to `fail`.
 *
 * @template T
 * @param {object} given
 * @param {string} given.what in a sentence, such as "The queues"
 * @param {(signal: AbortSignal, partly: (value: T) => void) => Promise<T>} given.ask
 * @param {(value: T) => unknown} given.show elements of the value
 * @param {AbortSignal} given.signal
 * @param {(error: Error) => void} given.fail
 */
export function resource({ what, ask, show, signal, fail }) {
  const place = el("div", { class: "resource" });
  const state = new Resource(signal, ask, shown);

  function shown() {
    const { value, failure } = state;
    if (failure && endsScreen(failure, value)) {
      fail(Object.assign(failure, { endsScreen: true }));
      return;
    }
    place.setAttribute("aria-busy", String(state.isOther && !failure));
    place.classList.toggle("stale", failure !== null && value !== null);
    patch(place, failure && retry(), content(value));
  }

  function content(value) {
    if (value !== null) return el("div", { class: "content" }, show(value));
    return state.isOther && !state.failure && skeleton(what);
  }

  function retry() {
    return el("p", { class: "notice error actions", role: "alert" },
      el("span", {}, failureText(what, state)),
      button("Try again", () => state.read(), { busy: "Trying …" }));
  }

  shown();
  return {
    place,
    state,
    /** Ask the same again. */
    read: () => state.read(),
    /** Ask another question: what is shown is greyed until its answer comes. */
    ask: () => state.read(true),
    /** Show nothing until it is asked again. */
    forget: () => state.forget(),
    /** Show the value once more: something beside it has changed. */
    show: shown,
    /** Ask now, and again after each pause, until the signal. */
    watch: (pauseMs) => repeat(signal, pauseMs, () => state.read()),
  };
}

/**
 * What a screen needs before it can be built. Until that is read, the view shows its loading or its failure.
 *
 * @template T
 * @param {{view: HTMLElement, signal: AbortSignal, fail: (error: Error) => void}} screen
 * @param {string} what
 * @param {(signal: AbortSignal) => Promise<T>} ask
 * @returns {Promise<T>}
 */
export function needed({ view, signal, fail }, what, ask) {
  return new Promise((resolve) => {
    const part = resource({ what, ask, show: resolve, signal, fail });
    fill(view, part.place);
    part.read();
  });
}

function endsScreen(/** @type {Failure} */ { status, needsSignIn = false }, value) {
  return needsSignIn || status === 404 || (value === null && status === 403);
}

/** Lines where the content will be; it appears after a moment only. */
function skeleton(what) {
  return el("div", { class: "skeleton", role: "status", "data-key": "skeleton" },
    el("span", { class: "unseen" }, `${what} …`), Array.from("123456", () => el("i")));
}
