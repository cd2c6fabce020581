// The fields that choose archived messages: those of the message browser, a span of time, a reason.

import { el, field } from "./dom.js";
import { FilterFields } from "./filters.js";

const TIMES = [["from_ms", "Sent from (UTC)"], ["until_ms", "Sent before (UTC)"]];

/** The conditions by name as texts, with times for a request; null if there are none. */
export class ArchivedFilter {
  constructor(query) {
    this.plain = new FilterFields(query);
    this.times = TIMES.map(([name, label]) => {
      const given = query.get(name);
      const value = given ? new Date(Number(given)).toISOString().slice(0, 19) : "";
      return [name, label, el("input", { name, type: "datetime-local", step: "1", value })];
    });
    this.reason = el("select", { name: "reason" },
      ["", "expired", "deleted", "over-length", "hops"].map((value) =>
        el("option", { value, selected: query.get("reason") === value }, value || "any")));
  }

  get elements() {
    return [
      this.times.map(([, label, input]) => field(label, input)),
      field("Left the queue", this.reason),
      this.plain.elements,
    ];
  }

  get _more() {
    const times = this.times.map(([name, , input]) => [name, Date.parse(`${input.value}Z`)]);
    const given = times.filter(([, at]) => !Number.isNaN(at));
    return Object.fromEntries([...given, ...(this.reason.value ? [["reason", this.reason.value]] : [])]);
  }

  /** For the query of an address. */
  get texts() {
    return { ...this.plain.texts, ...this._more };
  }

  /** For a request; empty if there are no conditions. */
  get conditions() {
    return { ...this.plain.conditions, ...this._more };
  }
}
