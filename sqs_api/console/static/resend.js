// Sends an edited copy of a message, beside the original or in its place.

import { get, latest, needs, ofQueue, post } from "./api.js";
import { AttributeFields } from "./attribute_fields.js";
import { jsonFault, placeText, refusal } from "./body_check.js";
import * as commands from "./commands.js";
import { button, command, el, field, fill, form, notice, patch, submit } from "./dom.js";
import { nameOf, pretty } from "./format.js";
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
  const check = el("div", { role: "status", id: "body-check" });
  body.setAttribute("aria-describedby", check.id);
  const attributes = new AttributeFields(message.attributes, () => show());
  const wasJson = jsonFault(message.body ?? "") === null;
  const newest = latest(signal);
  let largest = largestOf(queue);

  function copy() {
    return {
      body: body.value,
      attributes: attributes.attributes,
      group_id: group.value || null,
      deduplication_id: deduplication.value || null,
      to: to.value.trim(),
      replace: replace.checked,
    };
  }

  /** What is wrong with the body: refused by the service, or no JSON any more. */
  function checked() {
    const refused = refusal(body.value, largest, attributes.size);
    const broken = refused === null && wasJson ? jsonFault(body.value) : null;
    const fault = refused ?? broken;
    body.setAttribute("aria-invalid", String(fault !== null));
    patch(check, fault && el("p", { class: "notice actions warning" },
      el("span", {}, refused ? "The service would refuse this: " : "This is no JSON any more: ",
        `${placeText(body.value, fault.at)}. ${fault.text}`),
      button("Show the place", () => showPlace(fault.at))));
    format.disabled = pretty(body.value) === null;
  }

  function showPlace(at) {
    body.focus();
    body.setSelectionRange(at, Math.min(at + 1, body.value.length));
    const lines = body.value.slice(0, at).split("\n").length;
    body.scrollTop = Math.max(0, (lines - 4) * (body.scrollHeight / body.value.split("\n").length));
  }

  const format = button("Format", () => {
    body.value = pretty(body.value) ?? body.value;
    show();
  });

  /** Another queue may take other sizes. */
  async function asked() {
    const target = to.value.trim();
    const found = target === name ? queue : await get(ofQueue(target), {}, newest()).catch(() => null); // it may not be there yet
    if (found === null || signal.aborted) return;
    largest = largestOf(found);
    show();
  }

  function show() {
    checked();
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
      el("p", { class: "actions" }, format),
      check,
      el("details", { class: "filter" }, el("summary", {}, `Message attributes: ${Object.keys(message.attributes).length}`),
        attributes.place),
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
  to.addEventListener("change", asked);
  show();
  body.focus();
  if (to.value !== name) asked();
}

function largestOf({ attributes }) {
  return Number(attributes.MaximumMessageSize);
}
