// The buttons that pause, resume, cancel and undo a redrive: on the screen of its queue, and on that of all.

import { ofQueue, post } from "./api.js";
import { button, notice } from "./dom.js";
import { count } from "./format.js";

const CONTROLS = /** @type {const} */ ({
  pause: "/redrives/pause",
  resume: "/redrives/resume",
  undo: "/redrives/undo",
  cancel: "/redrives/cancel",
});

/** @typedef {keyof typeof CONTROLS} Control */
/** @typedef {{changed: () => unknown, fail: (error: Error) => void}} Heard what is told of a change or a refusal */

/** The buttons of a redrive that is not over. */
export function controlButtons(name, redrive, /** @type {Heard} */ heard) {
  const does = (/** @type {Control} */ what) => () => control(name, redrive, what, heard);
  return [
    redrive.paused
      ? button("Go on", does("resume"), { class: "main", busy: "Going on …" })
      : button("Pause", does("pause"), { busy: "Pausing …" }),
    button("Cancel", does("cancel"), { class: "danger", busy: "Cancelling …" }),
    redrive.moved > 0 && undoButton("Cancel and undo", name, redrive, heard, { class: "danger" }),
  ];
}

/** The button of a redrive that is over; nothing where no message can come back. */
export function undoOf(name, redrive, /** @type {Heard} */ heard, properties = {}) {
  const { moved, undoes, undone, is_active: isActive } = redrive;
  return moved > (undone?.moved ?? 0) && !undoes && !isActive && undoButton("Undo", name, redrive, heard, properties);
}

function undoButton(label, name, redrive, heard, properties) {
  const text = `The moved messages that nobody has received return to ${name}. The others stay where they are.`
    + (redrive.edit ? " They return as they were edited." : "");
  const confirm = () => ["Undo the redrive?", text, "Return them"];
  return button(label, () => control(name, redrive, "undo", heard), { ...properties, busy: "Undoing …", confirm });
}

async function control(name, { handle }, /** @type {Control} */ what, { changed, fail }) {
  try {
    const answer = await post(ofQueue(name, CONTROLS[what]), { handle });
    if ("moved" in answer) notice(`Cancelled: ${count(answer.moved)} moved before.`);
    const refused = "refused" in answer ? answer.refused : {};
    for (const [target, reason] of Object.entries(refused))
      notice(`Not undone in ${target}: ${reason}`, "error");
    await changed();
  } catch (error) {
    fail(error);
  }
}
