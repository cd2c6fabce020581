// All messages that match a filter: redrive, edit, hold, delete or export them. What would happen is
// counted first, in the same place.

import { ofQueue, post, question } from "./api.js";
import { button, el, field, form, link, notice, patch, submit, undoNotice } from "./dom.js";
import { numbered } from "./filters.js";
import { backText, changedText, count } from "./format.js";
import { UNDO_S } from "./holds.js";

const HELD_MAX = 1000;
const MAY = { Hold: "holdfast:HoldMessages", Delete: "holdfast:DeleteMessages", Export: "holdfast:ReadMessageBodies" };

export class Matching {
  /** @param {Record<string, string>} filter conditions by name; `done` is called after a change
   * @param {string} state the only one in which messages match, or "all" */
  constructor(queue, filter, signal, fail, done, state = "all") {
    this.queue = queue;
    this.filter = filter;
    this.state = state;
    this.areWaiting = state === "all" || state === "visible";
    this.signal = signal;
    this.fail = fail;
    this.done = done;
    this.place = el("div", { class: "matching", hidden: true, "data-key": JSON.stringify([state, filter]) }); // patched only by itself
    this.isStopped = false;
  }

  /** Links to the screen of redrives, with its dry run. */
  redriveLinks(title) {
    const { name, may, sources_total: sources } = this.queue;
    if (!this.areWaiting || !sources || !may.includes("holdfast:RedriveMessages")) return null;
    const to = `#/queues/${name}/redrive?${new URLSearchParams(this.filter)}`;
    return [
      link("Redrive", to, { class: "button main", "aria-label": `Redrive ${title}` }),
      may.includes("holdfast:ReadMessageBodies")
        && link("Edit", `${to}&edit=`, { class: "button", "aria-label": `Edit ${title}` }),
    ];
  }

  /** Buttons that open the dry run of what they do. */
  buttons(title) {
    return Object.keys(MAY).filter((what) => this.queue.may.includes(MAY[what]) && (this.areWaiting || what === "Export")).map((what) =>
      button(what, () => this.open(what), { "aria-label": `${what} ${title}`, class: what === "Delete" ? "danger" : null }));
  }

  async open(what) {
    this.isStopped = false;
    this.say(said("Counting …"), this.stop());
    const states = {};
    try {
      await this.steps("/count", { state: this.state }, (step, looked) => {
        for (const [state, messages] of Object.entries(step.states)) states[state] = (states[state] ?? 0) + messages;
        this.say(said(`${count(sum(states))} match among ${count(looked)} …`), this.stop());
      }, question);
    } catch (error) {
      this.failed(error);
      return;
    }
    if (!this.isStopped) this.plan(what, states);
  }

  /** What would happen, and the button that does it. */
  plan(what, states) {
    const waiting = states.visible ?? 0;
    const all = sum(states);
    const others = Object.entries(states).filter(([state]) => state !== "visible")
      .map(([state, messages]) => `${count(messages)} ${state}`);
    const affected = what === "Export" ? all : waiting;
    const stay = what === "Export" || others.length === 0 ? "" : ` ${others.join(", ")}: they stay.`;
    const owner = el("input", { name: "owner", autocomplete: "off", maxlength: "100" });
    const reference = el("input", { name: "reference", autocomplete: "off", maxlength: "200" });
    const work = {
      Hold: () => this.hold(owner.value || null, reference.value),
      Delete: () => this.remove(waiting),
      Export: () => this.save(),
    }[what];
    const label = `${what} ${count(affected)}`;
    const tooMany = what === "Hold" && waiting > HELD_MAX;
    const cancel = button("Cancel", () => this.close());
    const more = {
      Hold: tooMany ? `A queue holds up to ${count(HELD_MAX)} messages.`
        : "No receive, redrive or delete takes what is held until it is released.",
      Delete: waiting > HELD_MAX ? "This cannot be undone: export them first if you may need them."
        : `It can be undone for ${UNDO_S} seconds.`,
      Export: "A file with a line of JSON for each message.",
    }[what];
    this.say(
      said(el("strong", {}, `${count(all)} match.`), ` ${count(affected)} would be ${PAST[what]}.${stay} ${more}`),
      what === "Hold" && !tooMany
        ? form({ onsubmit: work }, el("div", { class: "search" },
            field("Owner, empty: you", owner), field("Reference, such as a ticket", reference)),
          el("p", { class: "actions" }, submit(label, { busy: "Holding …", disabled: affected === 0 }), cancel))
        : el("p", { class: "actions" },
          !tooMany && button(label, work, { busy: "Working …", disabled: affected === 0,
            class: what === "Delete" ? "danger" : "main",
            confirm: () => (what === "Delete" && waiting > HELD_MAX ? this.forGood(waiting) : null) }),
          cancel));
  }

  forGood(messages) {
    return ["Delete the messages?", `${count(messages)} messages of ${this.queue.name} are deleted for good.`,
      "Delete", this.queue.name];
  }

  async hold(owner, reference) {
    const sums = { held: 0, kept: 0 };
    await this.change("/hold", { owner, reference }, (step) => add(sums, step),
      () => changedText("held", sums.held, sums.kept));
  }

  async remove(waiting) {
    const undoS = waiting > HELD_MAX ? 0 : UNDO_S;
    const sums = { deleted: 0, kept: 0 };
    /** @type {number[]} */
    const sequences = [];
    const text = () => changedText("deleted", sums.deleted, sums.kept);
    const isDone = await this.change("/delete", { undo_s: undoS }, (step) => {
      add(sums, step);
      sequences.push(...step.sequences);
    }, undoS ? null : text);
    if (undoS && isDone) undoNotice(text(), undoS, () => this.undelete(sequences));
  }

  async undelete(sequences) {
    try {
      const answer = await post(ofQueue(this.queue.name, "/messages/undelete"), { sequences });
      notice(backText(answer.undeleted, answer.gone));
      await this.done();
      return true;
    } catch (error) {
      this.fail(error);
      return false;
    }
  }

  /** Write all messages into a file, a line each. */
  async save() {
    /** @type {Blob[]} */
    const lines = [];
    let messages = 0;
    try {
      await this.steps("/export", { state: this.state }, (step, looked) => {
        messages += step.messages.length;
        lines.push(new Blob(step.messages.map((each) => `${JSON.stringify(each)}\n`)));
        this.say(said(`${count(messages)} exported, ${count(looked)} looked at …`), this.stop());
      }, question);
    } catch (error) {
      this.failed(error);
      return;
    }
    const file = URL.createObjectURL(new Blob(lines, { type: "application/x-ndjson" }));
    const save = link("", file, { download: `${this.queue.name}.ndjson` });
    save.click();
    setTimeout(() => URL.revokeObjectURL(file), 60000);
    notice(`${count(messages)} messages exported.`);
    this.close();
  }

  /** Do something step by step; true if all steps were done. */
  async change(path, content, onStep, text) {
    try {
      await this.steps(path, content, onStep, post);
      if (text) notice(text());
      this.close();
      return true;
    } catch (error) {
      if (error.isFinal) this.close(); // else it may be tried again as it was typed
      this.fail(error);
      return false;
    } finally {
      await this.done();
    }
  }

  /** Ask step by step, until there are no more; `onStep` gets the messages looked at, too. */
  async steps(path, content, onStep, ask) {
    let token = null;
    let looked = 0;
    do {
      const given = { ...content, filter: numbered(this.filter), token };
      const step = await ask(ofQueue(this.queue.name, `/messages/matching${path}`), given, this.signal);
      looked += step.scanned;
      onStep(step, looked);
      token = step.next;
    } while (token !== null && !this.isStopped);
  }

  stop() {
    return button("Stop", () => {
      this.isStopped = true;
      this.close();
    });
  }

  say(...content) {
    this.place.hidden = false;
    patch(this.place, ...content);
  }

  failed(error) {
    this.close();
    this.fail(error);
  }

  close() {
    this.place.hidden = true;
    patch(this.place);
  }
}

const PAST = { Hold: "held", Delete: "deleted", Export: "exported" };

function said(...content) {
  return el("p", { role: "status" }, content);
}

function sum(states) {
  return Object.values(states).reduce((all, each) => all + each, 0);
}

function add(sums, step) {
  for (const name of Object.keys(sums)) sums[name] += step[name];
}
