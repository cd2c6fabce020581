// Sends a message.

import { get, needs, ofQueue, post } from "./api.js";
import * as commands from "./commands.js";
import { command, el, field, fill, form, notice, submit } from "./dom.js";
import { needed } from "./resource.js";

export async function showSend(screen) {
  const { view, parts: [name], fail } = screen;
  const queue = await needed(screen, "The queue", (mine) => get(ofQueue(name), {}, mine));
  needs(queue, "sqs:SendMessage");
  const body = el("textarea", { rows: "12", required: true, spellcheck: "false" });
  const group = el("input", { autocomplete: "off" });
  const deduplication = el("input", { autocomplete: "off" });
  const delay = el("input", { type: "number", min: "0", max: "900" });
  const same = el("div");

  function message() {
    const given = { body: body.value };
    if (group.value) given.group_id = group.value;
    if (deduplication.value) given.deduplication_id = deduplication.value;
    if (delay.value) given.delay_s = Number(delay.value);
    return given;
  }

  async function send() {
    try {
      const sent = await post(ofQueue(name, "/messages"), message());
      notice(sent.is_duplicate
        ? "A message with this deduplication id was sent before: nothing was stored."
        : `Sent ${sent.message_id}.`);
      if (!sent.is_duplicate) body.value = "";
    } catch (error) {
      fail(error);
    }
  }

  fill(
    view,
    el("h1", {}, "Send to ", name),
    form(
      { onsubmit: send, oninput: () => fill(same, command(commands.send(queue, message()))) },
      field("Body", body),
      el(
        "div",
        { class: "search" },
        field(queue.fifo ? "Group" : "Group, for fair queues", group),
        queue.fifo && field("Deduplication id", deduplication),
        !queue.fifo && field("Delay in seconds", delay),
      ),
      el("p", {}, submit("Send", { busy: "Sending …" })),
    ),
    same,
  );
  body.focus();
}
