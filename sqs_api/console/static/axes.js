// The axes of charts: ranges of time, tops, and what stands along them.

import { local } from "./format.js";

/**
 * Hours, seconds of a point, seconds between two times on the axis.
 *
 * @type {Record<string, {label: string, hours: number, period: number, tick: number}>}
 */
export const RANGES = {
  "1h": { label: "1 hour", hours: 1, period: 60, tick: 900 },
  "6h": { label: "6 hours", hours: 6, period: 60, tick: 3600 },
  "1d": { label: "1 day", hours: 24, period: 300, tick: 4 * 3600 },
  "1w": { label: "1 week", hours: 168, period: 1800, tick: 86400 },
  "2w": { label: "2 weeks", hours: 336, period: 3600, tick: 2 * 86400 },
};
const STEPS = [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10];
const TIMES = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200,
  86400, 172800, 345600, 691200, 1382400];

/** The least of the usual numbers that is not below a value: the top of an axis, halved in its middle. */
export function topOf(most, unit) {
  if (unit === "time" && most > 1) return TIMES.find((each) => each >= most) ?? Math.ceil(most / 86400) * 86400;
  if (most <= 0) return unit === "messages" ? 2 : 1;
  const power = 10 ** Math.floor(Math.log10(most));
  if (unit === "messages" && power === 1) return Math.ceil(most / 2) * 2; // no half messages
  return (STEPS.find((each) => each * power >= most * 0.9999) ?? 10) * power;
}

/**
 * The times on an axis, on this browser's clock, as [share of the width, text]; midnight has its date.
 *
 * @returns {[number, string][]}
 */
export function ticksOf({ begin_s: begin, period_s: period }, points, tick) {
  const last = begin + (points - 1) * period;
  /** @type {[number, string][]} */
  const found = [];
  let before = begin - 1;
  for (let told = Math.ceil((begin + aheadS(begin)) / tick) * tick, at = toldAt(told); at <= last; told += tick, at = toldAt(told)) {
    if (at === before) continue; // an hour that the clock leaves out
    before = at;
    const [day, clock] = local(at * 1000).split(" ");
    found.push([(at - begin) / (last - begin), clock.startsWith("00:00") ? day.slice(5) : clock.slice(0, 5)]);
  }
  return found;
}

/** The time at which this browser's clock tells one, which is given as if it were of UTC. */
function toldAt(toldS) {
  return toldS - aheadS(toldS - aheadS(toldS));
}

/** The seconds that this browser's clock is ahead of UTC at a time. */
function aheadS(atS) {
  return -60 * new Date(atS * 1000).getTimezoneOffset();
}

/** The point of a chart below a share of its width. */
export function pointAt(share, points) {
  return Math.max(0, Math.min(points - 1, Math.round(share * (points - 1))));
}
