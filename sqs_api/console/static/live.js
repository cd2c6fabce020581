// Things that change while one looks: repeated reads, rates, small charts.

import { sparkline } from "./lines.js";

const KEPT = 60;

/** Do something now and again and again while the page is seen, until the signal. */
export async function repeat(signal, pauseMs, work) {
  while (!signal.aborted) {
    if (!document.hidden) await work();
    await pause(signal, pauseMs);
  }
}

/** Wait, until the signal at most. Nothing of it stays: a page may be open for days. */
function pause(/** @type {AbortSignal} */ signal, /** @type {number} */ ms) {
  return new Promise((/** @type {(value?: undefined) => void} */ resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    signal.addEventListener("abort", end);
  });
}

/** What was seen of queues since the page was opened. */
export class History {
  constructor() {
    this.seen = new Map();
  }

  add(queue, atMs = Date.now()) {
    if (queue.visible === null) return;
    const kept = this.seen.get(queue.name) ?? [];
    kept.push({
      atMs,
      depth: queue.visible + queue.in_flight + queue.delayed,
      sent: queue.sent + queue.moved_in,
      received: queue.received,
    });
    this.seen.set(queue.name, kept.slice(-KEPT));
  }

  /** Messages a second, between the last two looks; null if there was one only. */
  rate(name, counter) {
    const [before, last] = (this.seen.get(name) ?? []).slice(-2);
    if (!last || last.atMs === before.atMs) return null;
    return Math.max(0, ((last[counter] - before[counter]) * 1000) / (last.atMs - before.atMs));
  }

  /** A line of the depth. */
  chart(name) {
    const depths = (this.seen.get(name) ?? []).map((each) => each.depth);
    const points = depths.length === 1 ? [depths[0], depths[0]] : depths;
    return sparkline(points, `messages over time, now ${depths.at(-1) ?? 0}`);
  }
}
