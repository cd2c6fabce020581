// How carefully a redrive goes: three presets, whose numbers may be changed.

import { count } from "./format.js";

/** @typedef {{rate?: number | null, ramp_s?: number, canary?: number, stop_after?: number}} Pace */

/** @type {Record<string, {label: string, pace: (messages: number) => Pace}>} */
export const PRESETS = {
  careful: {
    label: "Carefully: a few first, and wait for me",
    pace: (messages) => ({
      rate: 50, ramp_s: 60, canary: Math.min(10, Math.max(1, messages)), stop_after: share(messages, 0.01),
    }),
  },
  normal: {
    label: "Normally: steadily, and stop by itself when messages come back",
    pace: (messages) => ({ rate: 200, stop_after: share(messages, 0.05) }),
  },
  now: { label: "All at once", pace: () => ({}) },
};

/** A share of the messages; at least one. */
function share(messages, part) {
  return Math.max(1, Math.ceil(messages * part));
}

/** The pattern of a limit of messages that came back: a number, or a share of those that move. */
export const LIMIT = "[1-9][0-9]*|(100|[1-9]?[0-9]([.][0-9]+)?) ?%";

/** Such a limit as a number; 0 without one. */
export function limitOf(text, messages) {
  const [, number, percent] = /^([\d.]+) ?(%?)$/.exec(text.trim()) ?? [];
  if (!number) return 0;
  return percent ? share(messages, Number(number) / 100) : Number(number);
}

/** What a pace means, in a sentence. */
export function paceText(/** @type {Pace} */ { rate, ramp_s: ramp, canary, stop_after: stops }, messages) {
  const parts = [rate ? `At most ${count(rate)} messages a second` : "As fast as the queues can"];
  if (rate && ramp) parts.push(`rising for ${count(ramp)} seconds`);
  if (rate && messages > rate) parts.push(`about ${minutes(messages / rate)}`);
  const sentences = [`${parts.join(", ")}.`];
  if (canary && canary < messages) sentences.push(`Waits for you after the first ${count(canary)}.`);
  if (stops) sentences.push(`Stops by itself when ${count(stops)} came back.`);
  return sentences.join(" ");
}

function minutes(seconds) {
  return seconds < 90 ? `${Math.ceil(seconds)} seconds` : `${Math.ceil(seconds / 60)} minutes`;
}

/** What a redrive did, in a sentence: "4,200 of 4,200 moved, 27 came back, started by ann". */
export function resultText({ moved, to_move: all, came_back: back, stayed, undone, is_active: isActive }) {
  const parts = [`${count(moved)} of ${count(Math.max(moved, all ?? 0))} moved`];
  if (back > 0) parts.push(`${count(back)}${isActive ? "" : " or more"} came back`);
  if (stayed > 0) parts.push(`${count(stayed)} could not be moved`);
  if (undone) parts.push(`${count(undone.moved)} returned by an undo`);
  return parts.join(", ");
}
