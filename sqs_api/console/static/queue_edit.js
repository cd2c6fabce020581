// Changes the attributes, the policies and the tags of a queue. The service checks them, as SQS does.

import { caller, get, needs, ofQueue, post } from "./api.js";
import * as commands from "./commands.js";
import { button, command, el, field, fill, form, notice, submit } from "./dom.js";
import { count, pretty, secondsOf, span } from "./format.js";
import { permissionForm } from "./permission.js";
import { templateForm } from "./policy_templates.js";
import { needed } from "./resource.js";

const DOCUMENTS = ["RedriveAllowPolicy", "Policy"];
const OPTIONAL = ["KmsMasterKeyId"];
/** @type {Record<string, [unit: string, low: number, high: number]>} */
const RANGES = {
  DelaySeconds: ["s", 0, 900],
  KmsDataKeyReusePeriodSeconds: ["s", 60, 86400],
  MaximumMessageSize: ["bytes", 1024, 1048576],
  MessageRetentionPeriod: ["s", 60, 1209600],
  ReceiveMessageWaitTimeSeconds: ["s", 0, 20],
  VisibilityTimeout: ["s", 0, 43200],
};
/** @type {Record<string, string[]>} */
const CHOICES = {
  ContentBasedDeduplication: ["true", "false"],
  DeduplicationScope: ["messageGroup", "queue"],
  FifoThroughputLimit: ["perMessageGroupId", "perQueue"],
  SqsManagedSseEnabled: ["true", "false"],
};
const FIXED = new Set(["RedrivePolicy", "FifoQueue", "QueueArn", "CreatedTimestamp", "LastModifiedTimestamp"]);

export async function showEdit(screen) {
  const { view, parts: [name], signal, fail } = screen;
  const asker = await caller();
  const queue = await needed(screen, "The queue", (mine) => get(ofQueue(name), {}, mine));
  needs(queue, "sqs:SetQueueAttributes", "sqs:TagQueue", "sqs:UntagQueue");
  const may = new Set(queue.may);
  const isSettable = (each) =>
    !FIXED.has(each) && !each.startsWith("Approximate") && !DOCUMENTS.includes(each);
  const plain = Object.keys(queue.attributes).filter(isSettable);
  const names = [...new Set([...plain, ...OPTIONAL])];
  fill(
    view,
    el("h1", {}, "Edit ", name),
    may.has("sqs:SetQueueAttributes") && [
      attributesForm(queue, "Attributes", names, textInput, fail),
      deadLettersForm(queue, fail),
      attributesForm(queue, "RedriveAllowPolicy", ["RedriveAllowPolicy"], documentInput, fail),
      policyForms(queue, asker, signal, fail),
    ],
    (may.has("sqs:TagQueue") || may.has("sqs:UntagQueue")) && tagsForm(queue, fail),
  );
}

/** The policy with its templates, and beside it what it and the users' policies let whom do. */
function policyForms(queue, asker, signal, fail) {
  const policy = attributesForm(queue, "Policy", ["Policy"], documentInput, fail);
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
  return el("input", { value, autocomplete: "off", spellcheck: "false" });
}

function documentInput(value) {
  const area = el("textarea", { rows: value ? "12" : "3", spellcheck: "false" });
  area.value = pretty(value) ?? value;
  return area;
}

/** A form that says in place why the service refused it, and shows the same as commands. */
function editForm(title, fields, changes, save, fail) {
  const refusal = el("p", { class: "notice error", role: "alert", hidden: true });
  const same = el("div");
  const refuse = (text) => {
    refusal.textContent = text;
    refusal.hidden = !text;
  };
  const show = () => {
    const lines = changes();
    fill(same, lines.length > 0 && command(...lines));
  };
  const onsubmit = async () => {
    if (changes().length === 0) {
      refuse("Nothing was changed.");
      return;
    }
    try {
      await save();
      refuse("");
      show();
      notice(`${title}: saved.`);
    } catch (error) {
      if (error.needsSignIn) fail(error);
      else refuse(error.message);
    }
  };
  return form(
    { class: "panel", onsubmit, oninput: show, "aria-label": title },
    el("h2", {}, title),
    fields,
    refusal,
    el("p", {}, submit("Save", { busy: "Saving …" })),
    same,
  );
}

function attributesForm(queue, title, names, makeInput, fail) {
  const inputs = names.map((each) => [each, makeInput(queue.attributes[each] ?? "", each)]);
  const before = new Map(inputs.map(([each, input]) => [each, input.value]));
  const changed = () => Object.fromEntries(inputs
    .filter(([each, input]) => input.value !== before.get(each))
    .map(([each, input]) => [each, asSent(each, input.value)]));
  const lines = () =>
    Object.keys(changed()).length ? [commands.setAttributes(queue, changed())] : [];
  const save = async () => {
    await post(ofQueue(queue.name, "/attributes"), { attributes: changed() });
    inputs.forEach(([each, input]) => before.set(each, input.value));
  };
  const hint = makeInput === documentInput && el("p", { class: "hint" }, "Empty removes it.");
  const fields = el("div", { class: makeInput === textInput ? "search" : "" },
    inputs.map(([each, input]) => attributeField(each, input)));
  return editForm(title, [fields, hint], lines, save, fail);
}

/** A field whose hint says what is typed: a time may be written with its unit. */
function attributeField(name, input) {
  const shown = field(name, input, rangeText(name, input.value));
  const hint = shown.querySelector(".hint");
  if (hint) input.addEventListener("input", () => (hint.textContent = rangeText(name, input.value)));
  return shown;
}

/** Such as 90 for "1m 30s"; what is no time is left for the service to refuse. */
function asSent(name, value) {
  const seconds = RANGES[name]?.[0] === "s" ? secondsOf(value) : null;
  return seconds === null ? value : String(seconds);
}

/** What a value means, and which may be given: "30s; 0s to 12h". */
export function rangeText(name, value) {
  const [unit, low, high] = RANGES[name] ?? [];
  if (!unit || low === undefined || high === undefined) return "";
  const text = (number) => (unit === "s" ? span(number) : `${count(number)} ${unit}`);
  const given = unit === "s" ? secondsOf(value) : Number(value);
  const isRight = given !== null && given >= low && given <= high;
  return `${isRight ? `${text(given)}; ` : "must be "}${text(low)} to ${text(high)}`;
}

/** The dead-letter queue by its name, with as many receives as a message has until it goes there. */
function deadLettersForm(queue, fail) {
  const { dead_letter_queue: now } = queue;
  const names = el("datalist", { id: "dead-letter-queues" });
  const dead = el("input", { value: now?.name ?? "", list: "dead-letter-queues", autocomplete: "off",
    spellcheck: "false", placeholder: "none", oninput: () => suggest(dead.value) });
  const receives = el("input", { type: "number", min: "1", max: "1000", value: String(now?.max_receive_count ?? 3) });
  let before = policy();

  async function suggest(search) {
    const found = await get("queues", { search, limit: 20 }).catch(() => ({ queues: [] }));
    const fits = found.queues.filter((each) => each.fifo === queue.fifo && each.name !== queue.name);
    fill(names, fits.map((each) => el("option", { value: each.name })));
  }

  function policy() {
    if (!dead.value.trim()) return "";
    const arn = now?.name === dead.value ? now.arn : queue.arn.replace(/[^:]*$/, dead.value.trim());
    return JSON.stringify({ deadLetterTargetArn: arn, maxReceiveCount: Number(receives.value) });
  }

  const changed = () => ({ RedrivePolicy: policy() });
  const lines = () => (policy() === before ? [] : [commands.setAttributes(queue, changed())]);
  const save = async () => {
    await post(ofQueue(queue.name, "/attributes"), { attributes: changed() });
    before = policy();
  };
  suggest("dead");
  return editForm("Dead letters", [names, el("div", { class: "search" },
    field("Dead-letter queue", dead, "Empty: none"), field("Receives until a message goes there", receives))],
  lines, save, fail);
}

function tagsForm(queue, fail) {
  const list = el("div");
  const before = { ...queue.tags };
  const pairs = [];

  function add(key = "", value = "") {
    const pair = [key, value].map((each) => textInput(each));
    const line = el("div", { class: "search" }, field("Key", pair[0]), field("Value", pair[1]),
      button("Remove", () => {
        pairs.splice(pairs.indexOf(pair), 1);
        line.remove();
        list.dispatchEvent(new Event("input", { bubbles: true }));
      }, { "aria-label": `Remove tag ${key}` }));
    pairs.push(pair);
    list.append(line);
  }

  function changes() {
    const now = Object.fromEntries(pairs.map((pair) => pair.map((input) => input.value)));
    const tags = Object.entries(now).filter(([key, value]) => before[key] !== value);
    const keys = Object.keys(before).filter((key) => !(key in now));
    return { tags: Object.fromEntries(tags), keys };
  }

  function lines() {
    const { tags, keys } = changes();
    return [Object.keys(tags).length && commands.tag(queue, tags),
      keys.length && commands.untag(queue, keys)].filter(Boolean);
  }

  async function save() {
    const { tags, keys } = changes();
    if (Object.keys(tags).length) await post(ofQueue(queue.name, "/tags"), { tags });
    Object.assign(before, tags);
    if (keys.length) await post(ofQueue(queue.name, "/tags/remove"), { keys });
    keys.forEach((key) => delete before[key]);
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
