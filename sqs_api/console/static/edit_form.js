// A part of a queue's editor: it says in place why it was refused, and shows the same as commands.

import { command, el, fill, form, notice, submit } from "./dom.js";
import { Overtaken } from "./settings.js";

/**
 * @param {string} title
 * @param {unknown} fields
 * @param {() => string[]} changes the commands for what was changed
 * @param {() => Promise<void>} save
 * @param {(error: any) => void} fail
 */
export function editForm(title, fields, changes, save, fail) {
  const refusal = el("div", { class: "notice error", role: "alert", hidden: true });
  const differences = el("dl", { hidden: true });
  const same = el("div");
  const refuse = (/** @type {string} */ text, /** @type {unknown[]} */ shown = []) => {
    refusal.textContent = text;
    refusal.hidden = !text;
    fill(differences, ...shown);
    differences.hidden = shown.length === 0;
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
      else refuse(error.message, error instanceof Overtaken ? error.differences : []);
    }
  };
  return form(
    { class: "panel", onsubmit, oninput: show, "aria-label": title },
    el("h2", {}, title),
    fields,
    refusal,
    differences,
    el("p", {}, submit("Save", { busy: "Saving …" })),
    same,
  );
}

