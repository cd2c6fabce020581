// A new queue with its dead-letter queue, from a form that knows units and ranges.

import { caller, needs, post } from "./api.js";
import * as commands from "./commands.js";
import { command, el, field, fill, form, link, notice, submit } from "./dom.js";
import { queueInput, refusalNote } from "./redrive_forms.js";

const DAY_S = 86400;
/**
 * Attributes in the units that people use.
 *
 * @type {[name: string, label: string, unitS: number, usual: number, low: number, high: number][]}
 */
export const FIELDS = [
  ["VisibilityTimeout", "Visibility timeout, seconds", 1, 30, 0, 43200],
  ["MessageRetentionPeriod", "Messages are kept, days", DAY_S, 4, 0.01, 14],
  ["DelaySeconds", "Delay of new messages, seconds", 1, 0, 0, 900],
  ["ReceiveMessageWaitTimeSeconds", "Receives wait, seconds", 1, 0, 0, 20],
];

/** What is wrong with a queue's name; empty if nothing is. */
export function nameFault(name, isFifo) {
  const longest = isFifo ? 75 : 80;
  if (!/^[A-Za-z0-9_-]+$/.test(name)) return "Letters, digits, - and _ make a name.";
  return name.length > longest ? `A name has at most ${longest} characters.` : "";
}

/** The request that makes the queue of a form. `given` has numbers by attribute, in units of FIELDS. */
export function requestOf({ name, isFifo, given, withDead, receives, deadName }) {
  const full = (short) => (isFifo ? `${short}.fifo` : short);
  const attributes = Object.fromEntries(FIELDS
    .filter(([key, , , usual]) => given[key] !== usual)
    .map(([key, , unitS]) => [key, String(Math.round(given[key] * unitS))]));
  /** @type {Record<string, string>} */
  const fifo = isFifo ? { FifoQueue: "true" } : {};
  const dead = {
    name: deadName || full(`${name}-dead`),
    max_receive_count: receives,
    attributes: { ...fifo, MessageRetentionPeriod: String(14 * DAY_S) },
  };
  return { name: full(name), attributes: { ...fifo, ...attributes }, dead_letter_queue: withDead ? dead : null };
}

export async function showNewQueue({ view, signal, fail }) {
  needs(await caller(), "sqs:CreateQueue");
  const name = el("input", { name: "name", required: true, maxlength: "80", autocomplete: "off", spellcheck: "false" });
  const fifo = el("input", { type: "checkbox", name: "fifo" });
  const withDead = el("input", { type: "checkbox", name: "dead", checked: true });
  const receives = el("input", { type: "number", name: "receives", value: "3", min: "1", max: "1000", required: true });
  const own = () => ({ name: wanted().name, arn: "", fifo: fifo.checked });
  const { input: deadName, names } = queueInput((each) => each.fifo === fifo.checked, { name: "dead-name", placeholder: "NAME-dead, a new one" });
  const note = refusalNote(own);
  const numbers = FIELDS.map(([key, label, , usual, low, high]) =>
    [key, label, el("input", { type: "number", name: key, value: String(usual), min: String(low), max: String(high),
      step: "any", required: true })]);
  const refusal = el("p", { class: "notice error", role: "alert", hidden: true });
  const same = el("div");

  function wanted() {
    const given = Object.fromEntries(numbers.map(([key, , input]) => [key, Number(input.value)]));
    return requestOf({ name: name.value, isFifo: fifo.checked, given, withDead: withDead.checked,
      receives: Number(receives.value), deadName: deadName.value.trim() });
  }

  function show() {
    name.setCustomValidity(name.value ? nameFault(name.value, fifo.checked) : "");
    receives.disabled = deadName.disabled = !withDead.checked;
    note.check(withDead.checked ? deadName.value.trim() : "", true);
    fill(same, name.value && command(...commands.createQueue(wanted())));
  }

  async function onsubmit() {
    try {
      const { made } = await post("queues", wanted());
      notice(`Made: ${made.join(" and ")}.`);
      if (!signal.aborted) location.hash = `#/queues/${wanted().name}`;
    } catch (error) {
      if (error.needsSignIn) fail(error);
      refusal.textContent = error.message;
      refusal.hidden = false;
    }
  }

  fill(
    view,
    el("h1", {}, "Create a queue"),
    form(
      { class: "panel", onsubmit, oninput: show, "aria-label": "Create a queue" },
      field("Name", name),
      el("label", { class: "choice" }, fifo, "FIFO: in order and once, .fifo is added to the name"),
      el("label", { class: "choice" }, withDead, "With a dead-letter queue for messages that fail"),
      el("div", { class: "search" }, field("Receives until a message is a dead letter", receives),
        names, field("Dead-letter queue", deadName)),
      note.place,
      el("details", { class: "filter" }, el("summary", {}, "Times"),
        el("div", { class: "search" }, numbers.map(([, label, input]) => field(label, input)))),
      refusal,
      el("p", { class: "actions" }, submit("Create", { busy: "Creating …" }),
        link("Cancel", "#/queues", { class: "button" })),
      same,
    ),
  );
  name.focus();
}
