// The failures of a dead-letter queue: all its messages by what they failed for, each with what can
// be done about it.

import { get, ofQueue } from "./api.js";
import * as commands from "./commands.js";
import { button, command, el, link, time } from "./dom.js";
import { ago, count, local, nowMs, span } from "./format.js";
import { labels, shape } from "./lines.js";
import { markLines } from "./marks.js";
import { Matching } from "./matching.js";
import { resource } from "./resource.js";
import { shownText } from "./unseen_characters.js";

const WIDTH = 480;
const HEIGHT = 48;
const COUNTING_MS = 1500;
const ORDERS = [["messages", "Most messages"], ["last", "Latest"], ["first", "Oldest"], ["lost", "Lost soonest"]];
const NAMES = { fields: "fields", text: "text" };

/**
 * The failures, read again when the number of messages has changed, or could not be read: `changed`
 * tells it, null while nobody knows. Not more often, since each look at what bodies say is in the
 * audit log.
 *
 * @param {any} queue
 * @param {import("./marks.js").MarkList} marks
 * @param {AbortSignal} signal
 * @param {(error: Error) => void} fail
 */
export function failures(queue, marks, signal, fail) {
  const { name } = queue;
  const order = el("select", { "aria-label": "Order of the failures" },
    ORDERS.map(([value, text]) => el("option", { value }, text)));
  /** @type {Map<string, Matching>} */
  const panels = new Map();
  let stored = -1;

  const list = resource({ what: "The failures", signal, fail,
    ask: (mine) => get(ofQueue(name, "/failures"), { sort: order.value }, mine), show });

  function panelOf(failure) {
    const key = keyOf(failure);
    const known = panels.get(key) ?? new Matching(queue, { failure: failure.id }, signal, fail, () => list.read());
    panels.set(key, known);
    return known;
  }

  function show(found) {
    stored = found.stored;
    marks.set("failures", found.marks);
    if (!found.is_exact) setTimeout(() => !signal.aborted && list.read(), COUNTING_MS);
    return [
      el("p", { class: "actions" }, el("span", { role: "status" }, summary(found)), order,
        button("Read again", () => list.read())),
      found.failures.map((failure) => shownFailure(queue, failure, found, panelOf)),
      found.others > 0 && el("p", { class: "hint" },
        `${count(found.others)} messages are of other, smaller failures.`),
      command(commands.failures(name)),
    ];
  }

  order.addEventListener("change", () => list.ask());
  list.read();
  return {
    place: el("section", { class: "failures" }, el("h2", {}, "Failures"), list.place),
    changed: (/** @type {number | null} */ now) => {
      const { value, failure } = list.state;
      const isOther = stored >= 0 && now !== stored && value?.is_exact;
      if (now === null ? !failure : isOther || failure) list.read();
      stored = now ?? stored;
    },
  };
}

function summary({ is_exact: isExact, messages, stored, failures_total: total }) {
  if (!isExact) return `Counted ${count(messages)} of ${count(stored)} messages so far.`;
  if (messages === 0) return "There are no messages.";
  const all = messages === 1 ? "The only message" : `All ${count(messages)} messages`;
  return `${all}, ${count(total)} ${total === 1 ? "failure" : "failures"}.`;
}

/** What a failure is called: the values of its signs. */
function titleOf({ signs }) {
  return signs === null ? "masked" : signs.map(({ value }) => value || "(empty)").join(", ");
}

/** What the failure in a filter is called, in a line; empty while that is not known. */
export function failureLine(queue, id, signal) {
  const line = el("p", { class: "hint" }, id && `The failure ${id}.`);
  if (!id || !queue.sources_total || !queue.may.includes("holdfast:ReadMessageBodies")) return line;
  get(ofQueue(queue.name, "/failures"), { limit: 200 }, signal).then((found) => {
    const failure = found.failures.find((each) => each.id === id);
    if (failure) line.textContent = `The failure ${titleOf(failure)}.`;
  }, () => null); // it is a help only
  return line;
}

function keyOf(failure) {
  return failure.id ?? Object.keys(failure.sources).join(" ");
}

function shownFailure(queue, failure, found, panelOf) {
  const title = titleOf(failure);
  const panel = failure.id && panelOf(failure);
  const query = failure.id && new URLSearchParams({ failure: failure.id });
  return el("article", { class: "failure", "data-key": keyOf(failure), "aria-label": title },
    el("div", { class: "failure-head" },
      el("h3", {}, failure.signs?.length ? failure.signs.map(sign)
        : el("span", { class: "masked" }, "masked")),
      el("strong", { class: "number" }, count(failure.messages))),
    el("div", { class: "failure-body" }, histogram(failure, found), facts(queue.name, title, failure)),
    query && el("div", { class: "actions" },
      panel.redriveLinks(title),
      link("Messages", `#/queues/${queue.name}/messages?${query}`, { class: "button", "aria-label": `Messages of ${title}` }),
      panel.buttons(title)),
    panel && panel.place);
}

function sign({ name, value }) {
  const [, path] = name.split(/:(.*)/s);
  return el("span", { class: "sign" }, shownText(value) || "(empty)", " ",
    el("span", { class: "hint" }, path ?? NAMES[name]));
}

function facts(queue, title, { first_ms: first, last_ms: last, last_hour: hour, lost_ms: lost, sources, sample }) {
  const from = Object.entries(sources).sort(([, one], [, other]) => other - one)
    .map(([name, messages]) => `${name || "elsewhere"} ${count(messages)}`);
  const left = (lost - nowMs()) / 1000;
  return el("dl", { class: "tight" },
    pair("Last", time(last, ago(last))), pair("First", time(first, ago(first))),
    pair("In the last hour", count(hour)),
    pair("First lost", time(lost, left > 0 ? `in ${span(left)}` : "now"), left < 86400 ? "urgent" : ""),
    pair("From", from.slice(0, 3).join(", ") + (from.length > 3 ? `, ${from.length - 3} more` : "")),
    sample !== null && pair("Sample", link("show", `#/queues/${queue}/messages/${sample}`,
      { "aria-label": `show a sample of ${title}` })));
}

function pair(name, value, kind = "") {
  return el("div", {}, el("dt", {}, name), el("dd", { class: kind || null }, value));
}

/** Messages by the time at which they came, with marks of what happened. */
function histogram({ bars, messages, first_ms: first, last_ms: last }, { begin_ms: begin, bar_ms: bar, marks }) {
  const top = Math.max(1, ...bars);
  const step = WIDTH / bars.length;
  const most = local(begin + bars.indexOf(top) * bar);
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "histogram", role: "img", preserveAspectRatio: "none",
    "aria-label": `${count(messages)} came from ${local(first)} to ${local(last)}, most at ${most}` });
  svg.append(shape("line", { x1: 0, x2: WIDTH, y1: HEIGHT, y2: HEIGHT, class: "axis" }));
  bars.forEach((each, at) => {
    if (!each) return;
    const height = Math.max(2, (each / top) * (HEIGHT - 2));
    svg.append(shape("rect", { x: at * step, y: HEIGHT - height, width: step - 1, height }));
  });
  svg.append(...markLines(marks, (at) => ((at - begin) / bar) * step, WIDTH, HEIGHT));
  return el("figure", {},
    el("div", { class: "plotted" }, labels("scale", [[{ x: "100%", y: "12%" }, count(top)], [{ x: "100%", y: "92%" }, "0"]]), svg),
    el("figcaption", { class: "hint span" }, time(begin, ago(begin)),
      el("span", {}, `messages in ${span(bar / 1000)} each`), el("span", {}, "now")));
}
