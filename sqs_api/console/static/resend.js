// Sends an edited copy of a message, beside the original or in its place.

import { get, ofQueue, post } from "./api.js";
import * as commands from "./commands.js";
import { diff } from "./diff.js";
import { button, command, el, field, fill, link, notice } from "./dom.js";
import { nameOf, pretty } from "./format.js";

const MARKS = { same: "  ", gone: "− ", new: "+ " };

export async function showResend({ view, parts: [name, sequence], signal, fail }) {
  const path = ofQueue(name, `/messages/${sequence}`);
  const [queue, message] = await Promise.all([get(ofQueue(name), {}, signal), get(path, {}, signal)]);
  const body = el("textarea", { rows: "14", spellcheck: "false" });
  body.value = message.body;
  const to = el("input", { value: nameOf(message.source_arn) || name, required: true });
  const group = el("input", { value: message.group_id ?? "", autocomplete: "off" });
  const deduplication = el("input", { autocomplete: "off" });
  const replace = el("input", { type: "checkbox" });
  const changes = el("div");
  const same = el("div");

  function copy() {
    return {
      body: body.value,
      attributes: message.attributes,
      group_id: group.value || null,
      deduplication_id: deduplication.value || null,
      to: to.value.trim(),
      replace: replace.checked,
    };
  }

  function show() {
    const before = pretty(message.body);
    const after = pretty(body.value);
    const isJson = before !== null && after !== null;
    const lines = isJson ? diff(before, after) : diff(message.body, body.value);
    const shown = lines.map(([kind, line]) => el("span", { class: kind }, `${MARKS[kind]}${line}\n`));
    const isSame = lines.every(([kind]) => kind === "same");
    fill(changes, isSame
      ? el("p", { class: "hint" }, "The body is unchanged.")
      : el("pre", { class: "diff", tabindex: "0" }, shown));
    fill(same, command(commands.resend(name, sequence, copy())));
  }

  async function send(event) {
    event.preventDefault();
    try {
      const sent = await post(`${path}/resend`, copy());
      if (sent.is_duplicate) {
        notice("A message with this deduplication id was sent before: nothing was stored.", "error");
        return;
      }
      notice(`Sent ${sent.message_id} to ${to.value}.`);
      location.hash = `#/queues/${name}/messages`;
    } catch (error) {
      fail(error);
    }
  }

  fill(
    view,
    el("h1", {}, "Edit and resend a message of ", link(name, `#/queues/${name}`)),
    el(
      "form",
      { onsubmit: send, oninput: show },
      field("Body", body),
      el(
        "div",
        { class: "search" },
        field("To the queue", to),
        field("Group", group),
        queue.fifo && field("Deduplication id", deduplication),
      ),
      queue.may.includes("holdfast:DeleteMessages")
        && el("label", { class: "choice" }, replace, "Remove the original in the same step"),
      el("h2", {}, "Changes"),
      changes,
      el("p", {}, button("Send the copy", () => {}, { type: "submit", class: "main" })),
    ),
    same,
  );
  show();
  body.focus();
}
