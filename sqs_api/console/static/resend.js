// Sends an edited copy of a message, beside the original or in its place.

import { get, needs, ofQueue, post } from "./api.js";
import * as commands from "./commands.js";
import { command, el, field, fill, form, notice, submit } from "./dom.js";
import { nameOf } from "./format.js";
import { needed } from "./resource.js";
import { shownDiff } from "./shown_diff.js";
import { Refused } from "./wire.js";

export async function showResend(screen) {
  const { view, parts: [name, sequence], signal, fail } = screen;
  const path = ofQueue(name, "/messages/{sequence}", sequence);
  const queue = await needed(screen, "The queue", (mine) => get(ofQueue(name), {}, mine));
  needs(queue, "holdfast:BrowseMessages");
  needs(queue, "holdfast:ReadMessageBodies");
  const message = await needed(screen, "The message", async (mine) => {
    const found = await get(path, {}, mine);
    if (!found.may_resend) throw new Refused("Your policies allow no copy to be sent from here.", 403);
    if (found.body === null) throw new Refused("The body cannot be read, so there is nothing to edit.", 403);
    return found;
  });
  const body = el("textarea", { rows: "14", spellcheck: "false" });
  body.value = message.body;
  const to = el("input", { value: nameOf(message.source_arn) || name, required: true });
  const group = el("input", { value: message.group_id ?? "", autocomplete: "off" });
  const deduplication = el("input", { autocomplete: "off" });
  const mayReplace = queue.may.includes("holdfast:DeleteMessages");
  const replace = el("input", { type: "checkbox" });
  replace.checked = mayReplace && queue.sources_total > 0; // else a mended dead letter stays dead, too
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
    fill(changes, shownDiff(message.body, body.value));
    fill(same, command(commands.resend(name, sequence, copy())));
  }

  async function send() {
    try {
      const sent = await post(`${path}/resend`, copy());
      if (sent.is_duplicate) {
        notice("A message with this deduplication id was sent before: nothing was stored.", "error");
        return;
      }
      notice(`Sent ${sent.message_id} to ${to.value}.`);
      if (!signal.aborted) location.hash = `#/queues/${name}/messages`;
    } catch (error) {
      fail(error);
    }
  }

  fill(
    view,
    el("h1", {}, "Edit and resend a message of ", name),
    form(
      { onsubmit: send, oninput: show },
      field("Body", body),
      el(
        "div",
        { class: "search" },
        field("To the queue", to),
        field("Group", group),
        queue.fifo && field("Deduplication id", deduplication),
      ),
      mayReplace
        && el("label", { class: "choice" }, replace, "Remove the original in the same step"),
      el("h2", {}, "Changes"),
      changes,
      el("p", {}, submit("Send the copy", { busy: "Sending …" })),
    ),
    same,
  );
  show();
  body.focus();
}
