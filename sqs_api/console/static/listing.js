// A list of queues in pages: search, order and page are in the address.

import { addressOf, enter, isNextPage, keep, stateOf } from "./address.js";
import { button, el, link } from "./dom.js";

const ASCENDING = new Set(["name", "expires"]); // the others begin with the greatest

/**
 * The state of a list, and the fields and buttons that change it; `ask` then asks for what it says.
 *
 * @template {{search: string, sort: string, reverse: string, after: string, [name: string]: string}} S
 */
export class Listing {
  /** @param {string} path @param {URLSearchParams} query @param {S} defaults @param {() => void} ask */
  constructor(path, query, defaults, ask) {
    this.path = path;
    this.defaults = defaults;
    this.state = stateOf(query, defaults);
    this.ask = ask;
  }

  /** Change the state, and begin at the first page. */
  begin(change) {
    Object.assign(this.state, { after: "" }, change);
    keep(this.path, this.state, this.defaults);
    this.ask();
  }

  /** A field that searches at each letter. */
  search(label) {
    const oninput = ({ currentTarget: { value: search } }) => this.begin({ search });
    return el("input", { type: "search", value: this.state.search, placeholder: "Search by name  ( / )",
      "aria-label": label, oninput });
  }

  /** Columns for a table; `columns` are [text, class, order]. One with an order sorts by it, and once
   * more the other way round. */
  columns(columns) {
    return columns.map(([text, kind, sort]) => {
      if (!sort) return [text, kind];
      const isPressed = this.state.sort === sort;
      const reverse = isPressed && !this.state.reverse ? "yes" : "";
      const order = ASCENDING.has(sort) === (this.state.reverse === "") ? "ascending" : "descending";
      return [
        button(text, () => this.begin({ sort, reverse }), { class: "sort", "aria-pressed": String(isPressed) }),
        kind,
        isPressed ? order : null,
      ];
    });
  }

  /** The order, as the service takes it. */
  get order() {
    return { sort: this.state.sort, reverse: this.state.reverse !== "" };
  }

  /**
   * Links to the pages beside this one. While another question waits for its answer, `next` is of an older one.
   *
   * @param {string | null} next
   * @param {{isOther: boolean}} answer
   */
  pager(next, answer) {
    const { path, defaults, state } = this;
    const goOn = () => {
      if (answer.isOther) return;
      Object.assign(state, { after: next });
      enter(path, state, defaults);
      this.ask();
    };
    const first = () => link("First page", addressOf(path, { ...state, after: "" }, defaults), { class: "button" });
    const before = () => (isNextPage() ? button("Previous page", () => history.back()) : first());
    return el("p", { class: "actions" },
      state.after && before(),
      next && button("Next page", goOn));
  }
}
