// Sends an edited copy of a message, beside the original or in its place.

import { get, latest, needs, ofQueue, post } from "./api.js";
import { AttributeFields } from "./attribute_fields.js";
import { jsonFault } from "./body_check.js";
import * as commands from "./commands.js";
import { command, el, field, fill, form, notice, submit } from "./dom.js";
import { draftOf } from "./drafts.js";
import { Editor } from "./editor.js";
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
  const to = el("input", { value: nameOf(message.source_arn) || name, required: true });
  const group = el("input", { value: message.group_id ?? "", autocomplete: "off" });
  const deduplication = el("input", { autocomplete: "off" });
  const mayReplace = queue.may.includes("holdfast:DeleteMessages");
  const replace = el("input", { type: "checkbox" });
  replace.checked = mayReplace && queue.sources_total > 0; // else a mended dead letter stays dead, too
  const changes = el("div");
  const same = el("div");
  const attributes = new AttributeFields(message.attributes, () => show());
  const wasJson = jsonFault(message.body ?? "") === null;
  const newest = latest(signal);
  let largest = largestOf(queue);
  const draft = await draftOf(`${name} ${message.message_id}`);
  const editor = new Editor({ text: draft.text ?? message.body ?? "", rows: "16", changed: () => show(),
    largest: () => largest, others: () => attributes.size, json: () => (wasJson ? "This is no JSON any more: " : "") });

  function copy() {
    return {
      body: editor.text,
      attributes: attributes.attributes,
      group_id: group.value || null,
      deduplication_id: deduplication.value || null,
      trace_header: message.trace_header ?? null,
      to: to.value.trim(),
      replace: replace.checked,
    };
  }

  /** Another queue may take other sizes. */
  async function asked() {
    const target = to.value.trim();
    const found = target === name ? queue : await get(ofQueue(target), {}, newest()).catch(() => null); // it may not be there yet
    if (found === null || signal.aborted) return;
    largest = largestOf(found);
    show();
  }

  function show() {
    if (editor.text !== message.body) draft.keep(editor.text);
    else draft.forget();
    editor.check();
    fill(changes, shownDiff(message.body, editor.text));
    fill(same, command(commands.resend(name, sequence, copy(), message)));
  }

  async function send() {
    try {
      const sent = await post(`${path}/resend`, copy());
      if (sent.is_duplicate) {
        notice("A message with this deduplication id was sent before: nothing was stored.", "error");
        return;
      }
      notice(`Sent ${sent.message_id} to ${to.value}.`);
      draft.forget();
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
      el("div", { class: "halves" },
        el("div", {}, editor.place,
          el("details", { class: "filter" }, el("summary", {}, `Message attributes: ${Object.keys(message.attributes).length}`),
            attributes.place)),
        el("div", {}, el("h2", {}, "Changes"), changes)),
      el(
        "div",
        { class: "search" },
        field("To the queue", to),
        field("Group", group),
        queue.fifo && field("Deduplication id", deduplication),
      ),
      mayReplace
        && el("label", { class: "choice" }, replace, "Remove the original in the same step"),
      el("p", {}, submit("Send the copy", { busy: "Sending …" })),
    ),
    same,
  );
  to.addEventListener("change", asked);
  show();
  editor.input.focus();
  if (to.value !== name) asked();
}

function largestOf({ attributes }) {
  return Number(attributes.MaximumMessageSize);
}
