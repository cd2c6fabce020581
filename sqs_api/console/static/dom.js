// Elements. Text of users becomes text nodes and attribute values only, never markup.

import { bothTimes, instant, local } from "./format.js";
import { listen, nodesOf, patch } from "./patch.js";

export { patch };

/**
 * A new element. Properties named on... are listeners, `true` sets an attribute without a value,
 * null and false leave it out. Children are elements, texts, or lists of them.
 */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) listen(element, name.slice(2), value);
    else if (value !== null && value !== false && value !== undefined)
      element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...nodesOf(children));
  return element;
}

/** Put these in place of an element's children. `patch` keeps those that did not change. */
export function fill(element, ...children) {
  element.replaceChildren(...nodesOf(children));
}

export function link(text, address, properties = {}) {
  return el("a", { href: address, ...properties }, text);
}

/** A link to a dashboard of Grafana, if its address is set. */
export function dashboard(grafanaUrl, uid, variables = {}) {
  if (!grafanaUrl) return null;
  const query = new URLSearchParams(Object.entries(variables).map(([name, value]) => [`var-${name}`, value]));
  const address = `${grafanaUrl.replace(/[/]+$/, "")}/d/holdfast-${uid}${query.size ? `?${query}` : ""}`;
  return link("Grafana", address, { class: "button", target: "_blank", rel: "noopener" });
}

/**
 * A button. One that changes something has a text for `busy`, such as "Sending …": it is disabled
 * and says so until `onclick` has ended, and stays disabled if that gives `USED`. Before, it may
 * ask: `confirm` gives the arguments of `confirmed`, or null.
 *
 * @typedef {{busy?: string | null, confirm?: (() => string[] | null) | null, [name: string]: unknown}} ButtonProperties
 */
export function button(text, onclick, /** @type {ButtonProperties} */ { busy = null, confirm = null, ...properties } = {}) {
  const answer = busy ? (event) => act(event.currentTarget, onclick, confirm) : onclick;
  const given = { type: "button", onclick: answer, "data-key": text, ...properties };
  return el("button", given, busy ? labels(text, busy) : text);
}

/** The button of a `form`, with a text for `busy` if the form changes something. */
export function submit(text, /** @type {ButtonProperties} */ { busy = null, ...properties } = {}) {
  const kind = { type: "submit", class: "main", "data-acts": busy !== null, ...properties };
  return el("button", kind, busy ? labels(text, busy) : text);
}

/** A form whose button is busy until `onsubmit` has ended. */
export function form({ onsubmit, ...properties }, ...children) {
  const answer = (event) => {
    event.preventDefault();
    const main = event.currentTarget.querySelector("[type=submit]");
    if ("acts" in main.dataset) act(main, onsubmit);
    else onsubmit();
  };
  return el("form", { onsubmit: answer, ...properties }, ...children);
}

export const USED = Symbol("used");
const acting = new Set();

/** Both texts take their room from the beginning, so that a busy button keeps its width. */
function labels(text, busy) {
  return [el("span", {}, text), el("span", { class: "busy" }, busy)];
}

async function act(made, work, /** @type {(() => string[] | null) | null} */ confirm = null) {
  if (acting.has(made)) return;
  acting.add(made);
  const name = made.getAttribute("aria-label");
  let hadFocus = false;
  let outcome = null;
  try {
    const asked = confirm?.();
    if (asked && !(await confirmed(...asked))) return;
    hadFocus = made === document.activeElement;
    made.disabled = true;
    made.setAttribute("aria-busy", "true");
    made.removeAttribute("aria-label");
    outcome = await work();
  } finally {
    acting.delete(made);
    made.disabled = outcome === USED;
    made.removeAttribute("aria-busy");
    if (name) made.setAttribute("aria-label", name);
    if (hadFocus && document.activeElement === document.body) made.focus({ preventScroll: true });
  }
}

/** The name of a queue; a link if the caller may see it. */
export function queueLink(name, may) {
  return may ? link(name, `#/queues/${name}`) : el("span", {}, name);
}

/** A time on this browser's clock, with that of UTC on hover; nothing without one. Another `text` may
 * stand for it, such as "3m ago": then both are on hover. */
export function time(ms, text = "") {
  if (!ms) return "";
  const [day, clock] = local(ms).split(" ");
  return el("time", { datetime: new Date(ms).toISOString(), title: text ? bothTimes(ms) : instant(ms) },
    text || [el("span", {}, day), " ", el("span", {}, clock)]);
}

/** A labelled field of a form, perhaps with a hint below it. */
export function field(label, input, hint = "") {
  if (!hint) return el("label", { class: "field" }, el("span", {}, label), input);
  hints += 1;
  input.setAttribute("aria-describedby", `hint-${hints}`);
  return el("div", { class: "field" }, el("label", { class: "field" }, el("span", {}, label), input),
    el("span", { id: `hint-${hints}`, class: "hint" }, hint));
}

let hints = 0;

/** A table that scrolls sideways where it is too wide; `columns` are [text, class, order], the order
 * being "ascending", "descending" or nothing. */
export function table(columns, rows, caption) {
  const head = columns.map(([text, kind, order]) => el("th", { scope: "col", class: kind, "aria-sort": order }, text));
  return el(
    "div",
    { class: "scroll", role: "region", tabindex: "0", "aria-label": caption },
    el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows)),
  );
}

export function row(columns, cells, properties = {}) {
  const shown = cells.map((cell, at) => {
    const [text, kind] = columns[at];
    return el("td", { class: kind, "data-column": typeof text === "string" && kind === "value" ? text : null }, cell);
  });
  return el("tr", properties, shown);
}

/** A box that ticks, or clears, those of all rows of the tables in an element. */
export function pickAll(element) {
  const onchange = ({ currentTarget: all }) => {
    for (const box of element.querySelectorAll("td input[type=checkbox]"))
      if (box.checked !== all.checked && !box.disabled) box.click();
  };
  return el("input", { type: "checkbox", "aria-label": "Select this page", onchange });
}

/** Pairs of names and values. */
export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== "" && value !== undefined && value !== false);
  return el("dl", {}, shown.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

/** A message that goes away by itself. */
export function notice(text, kind = "info") {
  const notices = /** @type {HTMLElement} */ (document.getElementById("notices"));
  if (Array.from(notices.children, (each) => each.textContent).includes(text)) return;
  const shown = el("p", { class: `notice ${kind}` }, text);
  notices.append(shown);
  setTimeout(() => shown.remove(), kind === "error" ? 12000 : 6000);
}

/** A notice with a button that takes a change back, for as long as that is possible. */
export function undoNotice(text, lastsS, undo) {
  const work = async () => {
    if (await undo()) shown.remove();
  };
  const shown = el("p", { class: "notice actions" }, el("span", {}, text),
    button("Undo", work, { busy: "Undoing …" }));
  document.getElementById("notices")?.append(shown);
  setTimeout(() => shown.remove(), lastsS * 1000);
}

/**
 * Ask before something that costs; resolves to true if it is confirmed.
 *
 * @param {string[]} asked title, text, the button's text, and perhaps what must be typed
 */
function confirmed(...[title, text, action, typed = ""]) {
  return new Promise((resolve) => {
    const input = typed === "" ? null : el("input", { autocomplete: "off", "aria-label": `Type ${typed}` });
    const yes = button(action, () => close(true), { class: "danger", disabled: Boolean(typed) });
    input?.addEventListener("input", () => (yes.disabled = input.value !== typed));
    input?.addEventListener("keydown", (event) => event.key === "Enter" && yes.click());
    const dialog = el(
      "dialog",
      { oncancel: () => close(false) },
      el("h2", {}, title),
      el("p", {}, text),
      input && field(`Type ${typed} to go on`, input),
      el("p", { class: "actions" }, yes, button("Keep everything as it is", () => close(false))),
    );
    function close(answer) {
      dialog.close(); // the focus goes back
      dialog.remove();
      resolve(answer);
    }
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** A button that copies a text, and says whether it did. */
export function copyButton(/** @type {string} */ text, properties = {}) {
  const copy = async () => {
    const isDone = await navigator.clipboard?.writeText(text).then(() => true, () => false);
    if (isDone || copiedBySelection(text)) notice("Copied.");
    else notice("The browser does not let this page copy: select the text, and copy it yourself.", "error");
  };
  return button("Copy", copy, properties);
}

/** Pages that came without TLS have no clipboard: there a selection is copied. */
function copiedBySelection(text) {
  const focused = document.activeElement;
  const selected = el("textarea", { class: "unseen" }, text);
  document.body.append(selected);
  selected.select();
  const isDone = document.execCommand("copy");
  selected.remove();
  if (focused instanceof HTMLElement) focused.focus({ preventScroll: true });
  return isDone;
}

/** The command that does the same, to copy. */
export function command(...lines) {
  const text = lines.join("\n");
  return el(
    "details",
    { class: "command" },
    el("summary", {}, "As a command"),
    el("pre", { tabindex: "0" }, text),
    copyButton(text),
  );
}
