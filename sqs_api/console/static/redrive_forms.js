// Which queue takes a queue's dead letters, and which queues may name it as theirs.

import { get, latest, ofQueue } from "./api.js";
import * as commands from "./commands.js";
import { button, el, field, fill, link } from "./dom.js";
import { editForm } from "./edit_form.js";
import { count, nameOf } from "./format.js";

const SOURCES_MAX = 10;
/** @typedef {{redrivePermission?: string, sourceQueueArns?: string[]}} Allowed */

/** What a queue's RedriveAllowPolicy says. @returns {Allowed} */
export function allowedBy(/** @type {string | undefined} */ text) {
  return text ? JSON.parse(text) : { redrivePermission: "allowAll" };
}

/** True if a queue with this RedriveAllowPolicy lets another name it. */
export function lets(/** @type {Allowed} */ { redrivePermission, sourceQueueArns = [] }, /** @type {string} */ arn) {
  return redrivePermission === "allowAll" || (redrivePermission === "byQueue" && sourceQueueArns.includes(arn));
}

/** The ARN of a queue that is given by its name, beside another one, or by its ARN. */
export function arnOf(/** @type {string} */ given, /** @type {string} */ beside) {
  return given.startsWith("arn:") ? given : beside.replace(/[^:]*$/, given);
}

/** A field for the name of a queue that offers those there are; `fits` chooses among them. */
export function queueInput(fits, /** @type {Record<string, unknown>} */ properties = {}) {
  lists += 1;
  const names = el("datalist", { id: `queues-${lists}` });
  const input = el("input", { list: names.id, autocomplete: "off", spellcheck: "false", ...properties });
  const newest = latest(new AbortController().signal);
  const suggest = async () => {
    const found = await get("queues", { search: input.value, limit: 20 }, newest()).catch(() => null);
    if (found) fill(names, found.queues.filter(fits).map((each) => el("option", { value: each.name })));
  };
  input.addEventListener("input", suggest);
  input.addEventListener("focus", suggest, { once: true });
  return { input, names };
}

let lists = 0;

/** Says under a field why a queue would not be taken as the dead-letter queue, as far as it is known. */
export function refusalNote(/** @type {() => {name: string, arn: string, fifo: boolean}} */ source) {
  const place = el("p", { class: "notice warning", role: "status", hidden: true });
  let asked = "";

  /** @param {string} name @param {boolean} isNew true if one that is not there is made */
  async function check(name, isNew = false) {
    const own = source();
    const wanted = `${name} ${own.arn} ${own.fifo}`;
    if (wanted === asked) return;
    asked = wanted;
    const said = name ? await refusal(name, own, isNew) : null;
    if (wanted !== asked) return; // another name was typed meanwhile
    fill(place, said ?? "");
    place.hidden = !said;
  }

  return { place, check };
}

async function refusal(name, { name: own, arn, fifo }, isNew) {
  if (name === own) return `${name} cannot be its own dead-letter queue.`;
  try {
    const dead = await get(ofQueue(name));
    if (dead.fifo !== fifo) return `${name} is ${dead.fifo ? "a FIFO" : "a standard"} queue, and its source must be one, too.`;
    if (lets(allowedBy(dead.attributes.RedriveAllowPolicy), arn || arnOf(own, dead.arn))) return null;
    return [`${name} does not let this queue name it: saving would be refused. `,
      dead.may.includes("sqs:SetQueueAttributes") && link(`Change what ${name} allows`, `#/queues/${name}/edit`)];
  } catch (error) {
    return error.status === 404 && !isNew ? `There is no queue ${name}.` : null; // or not for this user to see
  }
}

/** The dead-letter queue by its name, with as many receives as a message has until it goes there. */
export function deadLettersForm(queue, settings, fail) {
  const { dead_letter_queue: now } = queue;
  const isLocal = !now || arnOf(now.name, queue.arn) === now.arn;
  const { input: dead, names } = queueInput((each) => each.fifo === queue.fifo && each.name !== queue.name,
    { value: (isLocal ? now?.name : now?.arn) ?? "", placeholder: "none" });
  const receives = el("input", { type: "number", min: "1", max: "1000", required: true,
    value: String(now?.max_receive_count ?? 3) });
  const note = refusalNote(() => queue);
  const look = () => note.check(dead.value.trim().startsWith("arn:") ? "" : dead.value.trim());
  dead.addEventListener("input", look);
  look();

  const policy = () => (dead.value.trim() ? JSON.stringify({
    deadLetterTargetArn: arnOf(dead.value.trim(), queue.arn),
    maxReceiveCount: Number(receives.value) }) : "");
  return oneAttribute(queue, settings, "Dead letters", "RedrivePolicy", policy, [names, el("div", { class: "search" },
    field("Dead-letter queue", dead, "Empty: none"),
    field("Receives until a message goes there", receives, "1 to 1,000")), note.place], fail);
}

/** The queues that may name this one as their dead-letter queue: all, none, or some. */
export function redriveAllowForm(queue, settings, fail) {
  const now = allowedBy(queue.attributes.RedriveAllowPolicy);
  const meaning = el("p", { class: "hint", role: "status" });
  const left = el("p", { class: "notice warning", role: "status", hidden: true });
  const rows = el("div");
  const more = button("Add a queue", () => {
    add("").focus();
    show();
  });
  const picked = el("div", {}, rows, el("p", {}, more));
  /** @type {[string, HTMLInputElement][]} */
  const choices = [["allowAll", "Any queue"], ["denyAll", "No queue"], ["byQueue", `Only these queues, ${SOURCES_MAX} at most`]]
    .map(([value, label]) => [label, el("input", { type: "radio", name: "redrive-permission", value, checked: value === now.redrivePermission })]);
  const inputs = () => /** @type {HTMLInputElement[]} */ ([...rows.querySelectorAll("input")]);

  function add(value) {
    const { input, names } = queueInput((each) => each.fifo === queue.fifo && each.name !== queue.name, { value });
    const line = el("div", { class: "search" }, names, field("Queue", input), button("Remove", () => {
      line.remove();
      changed();
    }, { "aria-label": `Remove queue ${value}`.trim() }));
    rows.append(line);
    return input;
  }

  /** @returns {Allowed} */
  function wanted() {
    const redrivePermission = choices.find(([, input]) => input.checked)?.[1].value;
    const arns = inputs().map(({ value }) => value.trim()).filter(Boolean).map((each) => arnOf(each, queue.arn));
    return redrivePermission === "byQueue" ? { redrivePermission, sourceQueueArns: [...new Set(arns)] } : { redrivePermission };
  }

  /** Without the policy all may: one that says so is kept as it is. */
  function policy() {
    const chosen = wanted();
    if (chosen.redrivePermission === "allowAll" && now.redrivePermission !== "allowAll") return "";
    return JSON.stringify(chosen) === JSON.stringify(now) ? queue.attributes.RedriveAllowPolicy ?? "" : JSON.stringify(chosen);
  }

  function show() {
    const chosen = wanted();
    picked.hidden = chosen.redrivePermission !== "byQueue";
    for (const input of inputs()) input.required = !picked.hidden;
    more.disabled = inputs().length >= SOURCES_MAX;
    meaning.textContent = meaningOf(chosen, queue.name);
    const lost = queue.sources.filter((each) => !lets(chosen, arnOf(each, queue.arn)));
    left.hidden = lost.length === 0;
    left.textContent = `${listed(lost)} ${lost.length === 1 ? "names" : "name"} it now. What fails there would stay there and `
      + "be received again and again, until it expires.";
  }

  function changed() {
    if (wanted().redrivePermission === "byQueue" && inputs().length === 0) suggested().forEach(add);
    show();
    rows.dispatchEvent(new Event("input", { bubbles: true }));
  }

  /** Those that name it now, as far as they fit; else a row to fill in. */
  function suggested() {
    return queue.sources.length ? queue.sources.slice(0, SOURCES_MAX) : [""];
  }

  for (const each of now.sourceQueueArns ?? []) add(arnOf(nameOf(each), queue.arn) === each ? nameOf(each) : each);
  show();
  return oneAttribute(queue, settings, "Allowed sources", "RedriveAllowPolicy", policy, el("div", { oninput: ({ target }) =>
    (target.type === "radio" ? changed() : show()) },
  el("fieldset", {}, el("legend", {}, `Which queues may name ${queue.name} as their dead-letter queue`),
    choices.map(([label, input]) => el("label", { class: "choice" }, input, label))), picked, meaning, left), fail);
}

/** What it means for a queue of this name. */
export function meaningOf(/** @type {Allowed} */ { redrivePermission, sourceQueueArns = [] }, name) {
  if (redrivePermission === "allowAll") return `Each queue of its account and region may name ${name}: so it is without a RedriveAllowPolicy.`;
  if (redrivePermission === "denyAll") return `${name} takes no dead letters of any queue.`;
  return sourceQueueArns.length ? `Only ${listed(sourceQueueArns.map(nameOf))} may name ${name}.` : "Name one queue at least.";
}

/** Such as "a, b and 3 more". */
function listed(names) {
  const shown = names.slice(0, 3).map(String);
  const rest = names.length - shown.length;
  if (rest > 0) shown.push(`${count(rest)} more`);
  return shown.length > 1 ? `${shown.slice(0, -1).join(", ")} and ${shown.at(-1)}` : shown.join("");
}

/** A form of one attribute; an empty value removes it. */
function oneAttribute(queue, settings, title, attribute, value, fields, fail) {
  const kept = settings.kept(attribute, value);
  const lines = () => (Object.keys(kept.changed()).length ? [commands.setAttributes(queue, kept.changed())] : []);
  const save = async () => {
    await settings.saveAttributes(kept.changed());
    kept.keep();
  };
  return editForm(title, fields, lines, save, fail);
}
