// Sends a message.

import { get, needs, ofQueue, post } from "./api.js";
import { AttributeFields } from "./attribute_fields.js";
import * as commands from "./commands.js";
import { command, el, field, fill, form, notice, submit } from "./dom.js";
import { draftOf } from "./drafts.js";
import { Editor } from "./editor.js";
import { needed } from "./resource.js";

export async function showSend(screen) {
  const { view, parts: [name], fail } = screen;
  const queue = await needed(screen, "The queue", (mine) => get(ofQueue(name), {}, mine));
  needs(queue, "sqs:SendMessage");
  const attributes = new AttributeFields({}, () => show());
  const draft = await draftOf(name);
  const editor = new Editor({ text: draft.text ?? "", rows: "14", changed: () => show(), others: () => attributes.size,
    largest: () => Number(queue.attributes.MaximumMessageSize),
    json: (text) => (/^\s*[[{]/.test(text) ? "This is no JSON: " : "") });
  const group = el("input", { autocomplete: "off" });
  const deduplication = el("input", { autocomplete: "off" });
  const delay = el("input", { type: "number", min: "0", max: "900" });
  const same = el("div");

  function message() {
    const given = { body: editor.text };
    if (Object.keys(attributes.attributes).length) given.attributes = attributes.attributes;
    if (group.value) given.group_id = group.value;
    if (deduplication.value) given.deduplication_id = deduplication.value;
    if (delay.value) given.delay_s = Number(delay.value);
    return given;
  }

  async function send() {
    const given = message();
    try {
      const sent = await post(ofQueue(name, "/messages"), given);
      notice(sent.is_duplicate
        ? "A message with this deduplication id was sent before: nothing was stored."
        : `Sent ${sent.message_id}.`);
      if (sent.is_duplicate) return;
      if (editor.text === given.body) editor.input.value = ""; // else the next one was begun meanwhile
      show();
    } catch (error) {
      fail(error);
    }
  }

  function show() {
    draft.keep(editor.text);
    editor.check();
    fill(same, command(commands.send(queue, message())));
  }

  fill(
    view,
    el("h1", {}, "Send to ", name),
    form(
      { onsubmit: send, oninput: show },
      editor.place,
      el("details", { class: "filter" }, el("summary", {}, "Message attributes"), attributes.place),
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
  editor.check();
  editor.input.focus();
}
