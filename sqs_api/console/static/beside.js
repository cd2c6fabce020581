// A message beside its list, where the screen has room for both.

import { addressOf } from "./address.js";
import { button, el, fill, link } from "./dom.js";
import { messageOf } from "./message.js";

const ROOM = matchMedia("(min-width: 85rem)");

export class Beside {
  /** `filter` gives what is marked. `shown` is called when it is another message, or none; `changed` after something was done to it. */
  constructor(name, { signal, fail, shown, changed, filter }) {
    this.name = name;
    this.signal = signal;
    this.fail = fail;
    this.shown = shown;
    this.changed = changed;
    /** @type {() => Record<string, string>} */
    this.filter = filter;
    this.place = el("aside", { class: "beside", "aria-label": "Message", hidden: true });
    /** What is open, as the address has it: the sequence, and the time of a delayed message. */
    this.open = "";
    this.ended = new AbortController();
    addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.open && !document.querySelector("dialog[open]")) this.close();
    }, { signal });
  }

  /** Answer a click on a message's link: true if the message is shown here and not on its page. */
  takes(/** @type {MouseEvent} */ event, /** @type {string} */ place) {
    if (!ROOM.matches || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return false;
    event.preventDefault();
    if (place === this.open) /** @type {HTMLElement | null} */ (this.place.querySelector("a, button"))?.focus();
    else this.show(place);
    return true;
  }

  show(/** @type {string} */ place) {
    if (place === this.open || !ROOM.matches) return;
    this.ended.abort();
    this.ended = new AbortController();
    this.open = place;
    const [sequence, due = ""] = place.split(".");
    const signal = AbortSignal.any([this.signal, this.ended.signal]);
    const { places, read } = messageOf(this.name, { sequence, due, signal, changed: this.changed, filter: this.filter(),
      fail: (error) => this.failed(error) });
    const page = addressOf(`/queues/${this.name}/messages/${sequence}`, { due_ms: due });
    this.place.hidden = false;
    this.place.scrollTop = 0;
    fill(this.place, el("p", { class: "actions" }, el("h2", {}, `Message ${sequence}`),
      link("Open as a page", page), button("Close", () => this.close())), places);
    this.shown();
    read();
  }

  /** A message may be gone meanwhile: the list stays. */
  failed(error) {
    if (error.status !== 404) return this.fail(error);
    fill(this.place, el("p", { role: "alert" }, error.message), button("Close", () => this.close()));
  }

  close() {
    const hadFocus = this.place.contains(document.activeElement);
    const opener = /** @type {HTMLElement | null} */ (document.querySelector("tr.open a[title]"));
    this.ended.abort();
    this.open = "";
    this.place.hidden = true;
    fill(this.place);
    this.shown();
    if (hadFocus) opener?.focus();
  }
}
