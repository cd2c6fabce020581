// The redrives of a queue: the one that runs, with its controls, and the history.

import { get, ofQueue, post } from "./api.js";
import * as commands from "./commands.js";
import { button, command, el, field, form, link, notice, patch, row, submit, table, time } from "./dom.js";
import { editText, filterText } from "./filters.js";
import { callerName, count, nameOf, statusText } from "./format.js";
import { endText, reasonText } from "./plan.js";
import { LIMIT, limitOf } from "./presets.js";
import { controlButtons, undoOf } from "./redrive_controls.js";
import { shownText } from "./unseen_characters.js";

const COLUMNS = [
  ["Started", ""],
  ["Status", ""],
  ["Moved", "number"],
  ["Stayed", "number wide"],
  ["Came back", "number wide"],
  ["To", "wide"],
  ["Filter and reason", "wide"],
  ["By", "wide"],
  ["Actions", ""],
];

export class Redrives {
  /** `changed` is called when a redrive is another one, `turned` when the page is. */
  constructor(queue, { fail }, changed, turned) {
    this.queue = queue;
    this.fail = fail;
    this.changed = changed;
    this.turned = turned;
    /** @type {{rate?: string, stop_after?: string}} what was typed for the redrive that runs */
    this.pace = {};
    this.before = /** @type {(number | null)[]} */ ([null]);
    /** The redrive that runs, and how it ended if it was seen to run: above all else of the screen. */
    this.first = el("div");
    this.isFollowed = false;
  }

  ask(mine) {
    return get(ofQueue(this.queue.name, "/redrives"), { before: this.before.at(-1) }, mine);
  }

  /** The elements of all redrives of a page. */
  show({ redrives, next }) {
    if (redrives.length === 0) return el("p", { class: "empty" }, "There was none so far. The dry run shows what one would do.");
    const active = redrives.find((each) => each.is_active);
    const [latest] = redrives;
    if (this.before.length === 1) {
      this.isFollowed ||= active !== undefined;
      patch(this.first, active ? this.live(active) : this.isFollowed && outcome(latest));
    }
    return [
      !active && !this.isFollowed && outcome(latest),
      table(COLUMNS, redrives.map((each) => this.line(each)), "Latest redrives"),
      el(
        "p",
        { class: "actions" },
        this.before.length > 1 && button("Newer", () => this.turn(() => this.before.pop())),
        next && button("Older", () => this.turn(() => this.before.push(next))),
      ),
      command(...commands.history(this.queue)),
    ];
  }

  turn(change) {
    change();
    this.turned();
  }

  live(redrive) {
    const { moved, looked_at: looked, filter, paused, is_planned: isPlanned } = redrive;
    const looks = filter && !isPlanned; // without a plan nobody knows how many match
    const done = looks ? looked : moved;
    const all = Math.max(done, redrive.to_move); // more may have come since
    return el(
      "section",
      { class: "panel", "aria-label": "Running redrive" },
      el("h2", { class: paused ? "urgent" : "" }, statusText(redrive)),
      el("p", {}, looks
        ? `${count(moved)} moved, ${count(looked)} of ${count(all)} looked at`
        : `${count(moved)} of ${count(all)} messages moved`),
      el("progress", { value: String(done), max: String(Math.max(1, all)), "aria-label": "Moved" }),
      el(
        "div",
        { class: "cards" },
        card("Moved", moved),
        card("Stayed so far", stayed(redrive)),
        card("Came back", redrive.came_back),
        redrive.stop_after > 0 && card("Stops after", redrive.stop_after),
        redrive.canary > 0 && card("Canary", redrive.canary),
        redrive.rate && card("A second, at most", redrive.rate),
      ),
      el(
        "p",
        { class: "actions" },
        controlButtons(this.queue.name, redrive, this),
        moved > 0 && link("Those that came back", this.cameBack(redrive), { class: "button" }),
      ),
      redrive.status === "RUNNING" && this.paceForm(redrive),
      command(...commands.control(this.queue.name, redrive)),
    );
  }

  /** Fields of the rate and the stop, which are the newest ones until something is typed. */
  paceForm(redrive) {
    const input = (name, now, kind) => el("input", { ...kind, value: now || null, name: `new_${name}`,
      oninput: (event) => (this.pace[name] = event.currentTarget.value) });
    return el("details", { class: "filter" }, el("summary", {}, "Change the rate or the stop"),
      form({ class: "search", onsubmit: () => this.change(redrive) },
        field("New rate, messages a second", input("rate", redrive.rate, { type: "number", min: "1", max: "500" })),
        field("New stop, when … came back",
          input("stop_after", redrive.stop_after, { pattern: LIMIT, placeholder: "20, or 5%" })),
        submit("Change", { class: null, busy: "Changing …" })));
  }

  /** An empty field is no limit. */
  async change(redrive) {
    const { rate = redrive.rate ?? 0, stop_after: stop = redrive.stop_after } = this.pace;
    const limit = limitOf(String(stop), redrive.to_move ?? 0);
    const wanted = { handle: redrive.handle, rate: Number(rate), stop_after: limit };
    try {
      await post(ofQueue(this.queue.name, "/redrives/pace"), wanted);
      this.pace = {};
      notice("Changed.");
      await this.changed();
    } catch (error) {
      this.fail(error);
    }
  }

  cameBack(redrive) {
    return `#/queues/${this.queue.name}/messages?id=${redrive.id.slice(0, 13)}`;
  }

  /** A redrive counts until it ends; then the message browser tells. */
  cameBackLink(redrive) {
    const { came_back: back, is_active: isActive } = redrive;
    const text = isActive ? count(back) : back > 0 ? `${count(back)}+` : "look";
    return link(text, this.cameBack(redrive), { title: "Moved messages that are here again" });
  }

  line(redrive) {
    const { filter, moved, undoes, undone } = redrive;
    const what = [filterText(filter), editText(redrive), redrive.reason, redrive.failure && reasonText(redrive.failure)];
    if (undoes) what.unshift(`undo of ${undoes.slice(0, 8)}`);
    return row(COLUMNS, [
      time(redrive.started_at_ms),
      [statusText(redrive), undone && `, undone: ${count(undone.moved)} returned`],
      `${count(moved)} of ${count(redrive.to_move)}`,
      stayedText(redrive),
      moved > 0 ? this.cameBackLink(redrive) : "",
      redrive.destination_arn ? nameOf(redrive.destination_arn) : "each to its source",
      shownText(what.filter(Boolean).join("; ")),
      callerName(redrive.started_by),
      undoOf(this.queue.name, redrive, this, { title: commands.undo(this.queue.name, redrive) }),
    ], { "data-key": redrive.id });
  }
}

/** What the latest redrive did, in a sentence. */
function outcome(redrive) {
  const status = statusText(redrive);
  return el("p", { class: redrive.failure ? "notice warning" : "notice" },
    el("strong", {}, `${status[0].toUpperCase()}${status.slice(1)}`), `: ${endText(redrive)}.`);
}

/** Messages that were looked at and did not move: those that do not match stay, too. */
function stayed({ looked_at: looked, moved, stayed: unmovable }) {
  return Math.max(unmovable, looked - moved);
}

/** Empty if none was looked at, or a version that did not count them did. */
function stayedText(redrive) {
  const { looked_at: looked } = redrive;
  if (looked === 0) return redrive.stayed > 0 ? count(redrive.stayed) : "";
  return `${count(stayed(redrive))} of ${count(looked)} looked at`;
}

function card(label, value) {
  return el("div", { class: "card" }, el("span", {}, label), el("strong", {}, count(value)));
}
