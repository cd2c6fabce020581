// Delayed messages: delivered now, or canceled.

import { ofQueue, post } from "./api.js";
import * as commands from "./commands.js";
import { button, command, notice } from "./dom.js";
import { count } from "./format.js";

/**
 * Buttons for the delayed ones of these messages, as far as the caller's permissions allow; `done` is
 * called after a change.
 */
export function scheduleButtons(queue, messages, done, fail) {
  const may = new Set(queue.may);
  const delayed = messages.filter((each) => each.state === "delayed");
  if (delayed.length === 0 || queue.fifo || !may.has("holdfast:DeleteMessages")) return null;
  const places = delayed.map((each) => ({ sequence: each.sequence, due_ms: each.due_ms }));
  const act = (what) => async () => {
    try {
      notice(await what());
      await done();
    } catch (error) {
      fail(error);
    }
  };
  const them = delayed.length === 1 ? "1 message" : `${count(delayed.length)} messages`;
  return [
    button("Deliver now", act(() => deliver(queue.name, places)), { busy: "Delivering …" }),
    button("Cancel delivery", act(() => cancel(queue.name, places)), {
      class: "danger",
      busy: "Canceling …",
      confirm: () => ["Cancel the delivery?", `${them} of ${queue.name}: deleted for good.`, "Cancel delivery"],
    }),
    command(commands.cancelDelivery(queue.name, places), commands.reschedule(queue.name, places)),
  ];
}

async function deliver(name, places) {
  const answer = await post(ofQueue(name, "/messages/reschedule"), { messages: places, at_ms: 1 });
  return `${answer.rescheduled} delivered, ${answer.kept} were so before.`;
}

async function cancel(name, places) {
  const answer = await post(ofQueue(name, "/messages/cancel"), { messages: places });
  return `${answer.canceled} canceled, ${answer.kept} were delivered before.`;
}
