// Changes the attributes, the policies and the tags of a queue. The service checks them, as SQS does.

import { caller, get, needs, ofQueue } from "./api.js";
import * as commands from "./commands.js";
import { button, el, field, fill } from "./dom.js";
import { editForm } from "./edit_form.js";
import { ENCRYPTION, encryptionForm } from "./encryption_form.js";
import { pretty } from "./format.js";
import { permissionForm } from "./permission.js";
import { templateForm } from "./policy_templates.js";
import { asSent, asShown, rangedField, textField } from "./ranged_fields.js";
import { deadLettersForm, redriveAllowForm } from "./redrive_forms.js";
import { needed } from "./resource.js";
import { Settings } from "./settings.js";

/** @type {Record<string, string[]>} */
const CHOICES = {
  ContentBasedDeduplication: ["true", "false"],
  DeduplicationScope: ["messageGroup", "queue"],
  FifoThroughputLimit: ["perMessageGroupId", "perQueue"],
};
const APART = new Set(["RedrivePolicy", "RedriveAllowPolicy", "Policy", ...ENCRYPTION,
  "FifoQueue", "QueueArn", "CreatedTimestamp", "LastModifiedTimestamp"]);

export async function showEdit(screen) {
  const { view, parts: [name], signal, fail } = screen;
  const asker = await caller();
  const queue = await needed(screen, "The queue", (mine) => get(ofQueue(name), {}, mine));
  needs(queue, "sqs:SetQueueAttributes", "sqs:TagQueue", "sqs:UntagQueue");
  const settings = new Settings(queue);
  const may = new Set(queue.may);
  const names = Object.keys(queue.attributes).filter((each) => !APART.has(each) && !each.startsWith("Approximate"));
  fill(
    view,
    el("h1", {}, "Edit ", name),
    may.has("sqs:SetQueueAttributes") && [
      attributesForm(queue, settings, "Attributes", names, textInput, fail),
      el("div", { class: "halves" }, el("div", {}, deadLettersForm(queue, settings, fail), encryptionForm(queue, settings, fail)),
        redriveAllowForm(queue, settings, fail)),
      policyForms(queue, settings, asker, signal, fail),
    ],
    (may.has("sqs:TagQueue") || may.has("sqs:UntagQueue")) && tagsForm(queue, settings, fail),
  );
}

/** The policy with its templates, and beside it what it and the users' policies let whom do. */
function policyForms(queue, settings, asker, signal, fail) {
  const policy = attributesForm(queue, settings, "Policy", ["Policy"], documentInput, fail);
  return el("div", { class: "halves" },
    el("div", {}, templateForm(queue.arn, policy.querySelector("textarea")), policy),
    asker.may.includes("holdfast:ReadUsers")
      && permissionForm({ account: queue.account, user: "", queue: queue.name }, signal, fail));
}

/** A choice where there is one; else a text. */
function textInput(value, name = "") {
  const options = CHOICES[name];
  if (options?.includes(value))
    return el("select", {}, options.map((each) => el("option", { value: each, selected: each === value }, each)));
  return textField(asShown(name, value));
}

function documentInput(value) {
  const area = el("textarea", { rows: value ? "12" : "3", spellcheck: "false" });
  area.value = pretty(value) ?? value;
  return area;
}

function attributesForm(queue, settings, title, names, makeInput, fail) {
  const inputs = names.map((each) => [each, makeInput(queue.attributes[each] ?? "", each)]);
  const kept = inputs.map(([each, input]) => settings.kept(each, () => asSent(each, input.value)));
  const changed = () => Object.assign({}, ...kept.map((each) => each.changed()));
  const lines = () =>
    Object.keys(changed()).length ? [commands.setAttributes(queue, changed())] : [];
  const save = async () => {
    await settings.saveAttributes(changed());
    for (const each of kept) each.keep();
  };
  const hint = makeInput === documentInput && el("p", { class: "hint" }, "Empty removes it.");
  const fields = el("div", { class: makeInput === textInput ? "search" : "" },
    inputs.map(([each, input]) => rangedField(each, input)));
  return editForm(title, [fields, hint], lines, save, fail);
}

/** The values of a tag such as "on, off"; none where it takes a number or a name. */
export function choicesOf(/** @type {string} */ values) {
  return /^[a-z-]+(, [a-z-]+)*$/.test(values) ? values.split(", ") : [];
}

function tagsForm(queue, settings, fail) {
  const list = el("div");
  const pairs = [];

  function add(key = "", value = "") {
    const pair = [key, value].map((each) => textInput(each));
    const choices = el("datalist", { id: `tag-values-${pairs.length}-${key}` });
    const meant = el("span", { class: "hint" });
    pair[1].setAttribute("list", choices.id);
    const tell = () => {
      const { values = "", meaning = "" } = queue.own_tags.find((each) => each.key === pair[0].value) ?? {};
      fill(choices, choicesOf(values).map((each) => el("option", { value: each })));
      meant.textContent = meaning && `${meaning} Value: ${values}.`;
    };
    pair[0].addEventListener("input", tell);
    tell();
    const line = el("div", { class: "search" }, choices, field("Key", pair[0]), field("Value", pair[1]),
      button("Remove", () => {
        pairs.splice(pairs.indexOf(pair), 1);
        line.remove();
        list.dispatchEvent(new Event("input", { bubbles: true }));
      }, { "aria-label": `Remove tag ${key}` }), meant);
    pairs.push(pair);
    list.append(line);
  }

  function changes() {
    const now = Object.fromEntries(pairs.map((pair) => pair.map((input) => input.value)));
    const tags = Object.entries(now).filter(([key, value]) => settings.tags[key] !== value);
    const keys = Object.keys(settings.tags).filter((key) => !(key in now));
    return { tags: Object.fromEntries(tags), keys };
  }

  function lines() {
    const { tags, keys } = changes();
    return [...(Object.keys(tags).length ? [commands.tag(queue, tags)] : []),
      ...(keys.length ? [commands.untag(queue, keys)] : [])];
  }

  async function save() {
    const { tags, keys } = changes();
    if (Object.keys(tags).length) await settings.saveTags(tags);
    if (keys.length) await settings.removeTags(keys);
  }

  Object.entries(queue.tags).forEach(([key, value]) => add(key, value));
  const start = ({ key }) => {
    if (!pairs.some(([{ value }]) => value === key)) add(key);
    pairs.find(([{ value }]) => value === key)?.[1].focus();
  };
  const own = el("details", { class: "filter" }, el("summary", {}, "Tags that change how the queue works"),
    el("dl", { class: "own" }, queue.own_tags.map((each) => [
      el("dt", {}, button(each.key, () => start(each), { class: "small", "aria-label": `Add tag ${each.key}` })),
      el("dd", {}, each.meaning, el("div", { class: "hint" }, `Value: ${each.values}`))])));
  return editForm("Tags", [list, button("Add a tag", () => add()), own], lines, save, fail);
}
