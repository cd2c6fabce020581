// How a queue's messages are sealed on disk: under the service's own key, a named one, or not at all.

import * as commands from "./commands.js";
import { el, field } from "./dom.js";
import { editForm } from "./edit_form.js";
import { asSent, asShown, rangedField, textField } from "./ranged_fields.js";

/** The attributes that this form sets. */
export const ENCRYPTION = ["SqsManagedSseEnabled", "KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds"];
const PERIOD = "KmsDataKeyReusePeriodSeconds";
const USUAL_PERIOD = "300";
/** @type {Record<string, [label: string, meaning: string]>} */
const KINDS = {
  sqs: ["The service's own key (SSE-SQS)", "Sealed on disk. Senders and receivers need no permission for the key."],
  kms: ["A named key (KmsMasterKeyId)", "Sealed on disk. Senders need kms:GenerateDataKey and kms:Decrypt of the key, receivers kms:Decrypt. "
    + "If it is disabled, nobody sends or receives."],
  none: ["None", "Written to the disk as they were sent: whoever has the disk, or a backup, can read them."],
};

/** The kind of encryption of a queue's attributes. */
export function kindOf(/** @type {Record<string, string>} */ { KmsMasterKeyId, SqsManagedSseEnabled }) {
  if (KmsMasterKeyId) return "kms";
  return SqsManagedSseEnabled === "false" ? "none" : "sqs";
}

/** The attributes to set for a wanted kind; the others of encryption follow from these. */
export function encryptionChanges(/** @type {Record<string, string>} */ before, /** @type {{kind: string, key: string, period: string}} */ { kind, key, period }) {
  /** @type {Record<string, string>} */
  const changes = {};
  if (kind === "kms") {
    if (key !== (before.KmsMasterKeyId ?? "")) changes.KmsMasterKeyId = key;
    if (period !== (before[PERIOD] ?? USUAL_PERIOD)) changes[PERIOD] = period;
  } else if (kind !== kindOf(before)) {
    if (kind === "none" && before.KmsMasterKeyId) changes.KmsMasterKeyId = "";
    changes.SqsManagedSseEnabled = String(kind === "sqs");
  }
  return changes;
}

export function encryptionForm(queue, settings, fail) {
  const now = settings.attributes;
  const kind = el("select", {}, Object.entries(KINDS).map(([value, [label]]) =>
    el("option", { value, selected: value === kindOf(now) }, label)));
  const names = el("datalist", { id: "encryption-keys" }, queue.encryption_keys.map((value) => el("option", { value })));
  const key = textField(now.KmsMasterKeyId ?? "");
  key.setAttribute("list", names.id);
  const period = textField(asShown(PERIOD, now[PERIOD] ?? USUAL_PERIOD));
  const named = el("div", { class: "search" }, names, field("Key", key, "An alias, an id or an ARN"),
    rangedField(PERIOD, period, "A data key is used for"));
  const meaning = el("p", { class: "hint", role: "status" });

  function changed() {
    return encryptionChanges(now, { kind: kind.value, key: key.value.trim(), period: asSent(PERIOD, period.value) });
  }

  function show() {
    named.hidden = kind.value !== "kms";
    key.required = !named.hidden;
    meaning.textContent = `${KINDS[kind.value][1]} It applies to messages that are sent from now on.`;
  }

  const lines = () => (Object.keys(changed()).length ? [commands.setAttributes(queue, changed())] : []);
  const save = () => settings.saveAttributes(changed(), ENCRYPTION);
  show();
  return editForm("Encryption", el("div", { oninput: show },
    el("div", { class: "search" }, field("Messages are sealed under", kind)), named, meaning), lines, save, fail);
}
