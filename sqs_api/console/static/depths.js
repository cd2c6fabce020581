// Small lines of the depths of many queues in the last hour, from the service's own history.

import { get } from "./api.js";
import { count } from "./format.js";
import { sparkline } from "./lines.js";

const PAUSE_MS = 60000;

export class Depths {
  /**
   * @param {"depths" | "dead-letters/depths"} path
   * @param {import("./live.js").History} history what this page saw, for queues of which the service has no past
   * @param {() => void} changed
   */
  constructor(path, history, changed) {
    this.path = path;
    this.history = history;
    this.changed = changed;
    this.of = "";
    this.atMs = 0;
    this.depths = new Map();
  }

  /** Read those of a page of queues, once a minute. */
  async read(wanted, signal) {
    const of = JSON.stringify(wanted);
    if (of === this.of && Date.now() < this.atMs + PAUSE_MS) return;
    const { queues } = await get(this.path, wanted, signal);
    Object.assign(this, { of, atMs: Date.now(), depths: new Map(Object.entries(queues)) });
    this.changed();
  }

  /** The line of a queue, which says the same in words. */
  line(name) {
    const depths = this.depths.get(name);
    if (!depths) return this.history.chart(name);
    const known = depths.filter((each) => each !== null);
    const most = `at most ${count(Math.max(...known))}, lately ${count(known.at(-1))}`;
    return sparkline(depths, `messages in the last hour: ${most}`);
  }
}
