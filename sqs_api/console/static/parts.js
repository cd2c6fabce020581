// The parts of a queue that several shards keep: where they lie, and what keeps those that drain.

import { get, ofQueue } from "./api.js";
import * as commands from "./commands.js";
import { command, el, patch, row, table } from "./dom.js";
import { count } from "./format.js";
import { repeat } from "./live.js";

const REFRESH_MS = 5000;
const COLUMNS = [["Part", "number"], ["Shard", "number"], ["State", ""], ["Visible", "number"], ["In flight", "number"],
  ["Delayed", "number wide"], ["Waits for", "body"]];

/** A place for the parts. They are read once, and again and again while there are several; one is the queue itself. */
export function partsOf(name, signal) {
  const place = el("div");

  async function look() {
    const found = await get(ofQueue(name, "/parts"), {}, signal).catch(() => null); // it is a help only
    if (found === null || signal.aborted) return false;
    const { parts } = found;
    const areSeveral = parts.length > 1;
    patch(place, areSeveral && [el("h2", {}, "Parts"), table(COLUMNS, parts.map(partRow), "Parts"),
      command(...commands.parts(name, parts.filter(({ state }) => state === "open").length))]);
    return areSeveral;
  }

  look().then((areSeveral) => {
    if (areSeveral) repeat(signal, REFRESH_MS, look);
  });
  return place;
}

function partRow(part) {
  return row(COLUMNS, [
    String(part.number),
    String(part.shard),
    part.home ? `${part.state}, home` : part.state,
    count(part.visible),
    count(part.in_flight),
    count(part.delayed),
    part.waits_for,
  ], { "data-key": String(part.number) });
}
