// Held messages: holds with an owner and a reference, and deletes that can be undone.

import { ofQueue, post } from "./api.js";
import * as commands from "./commands.js";
import { button, command, el, field, fill, form, notice, submit, undoNotice } from "./dom.js";
import { backText, changedText, count } from "./format.js";

export const UNDO_S = 60;
const HOLD = "holdfast:HoldMessages";
const DELETE = "holdfast:DeleteMessages";

/**
 * Buttons for the chosen messages, as far as their states and the caller's permissions allow; `done`
 * is called after a change.
 */
export function holdButtons(queue, messages, done, fail) {
  const may = new Set(queue.may);
  const inState = (...states) =>
    messages.filter((each) => states.includes(each.state)).map((each) => each.sequence);
  const visible = inState("visible");
  const held = inState("held");
  const deleting = inState("deleting");
  const act = (what) => async () => {
    try {
      if (await what()) await done();
    } catch (error) {
      fail(error);
    }
  };
  return [
    visible.length > 0 && may.has(HOLD)
      && button("Hold", act(() => hold(queue.name, visible))),
    held.length > 0 && may.has(HOLD)
      && button("Release", act(() => release(queue.name, held)), { busy: "Releasing …" }),
    deleting.length > 0 && may.has(DELETE)
      && button("Undo delete", act(() => undelete(queue.name, deleting)), { busy: "Undoing …" }),
    visible.length > 0 && may.has(DELETE)
      && button("Delete", act(() => remove(queue.name, visible, done, fail)),
        { class: "danger", busy: "Deleting …", confirm: () => deletion(queue.name, visible) }),
    holdCommand(queue.name, { visible, held, deleting }, may),
  ];
}

function ofThem(sequences) {
  return sequences.length === 1 ? "1 message" : `${count(sequences.length)} messages`;
}

function holdCommand(name, { visible, held, deleting }, may) {
  const lines = [
    visible.length && may.has(DELETE) && commands.deleteMessages(name, visible, UNDO_S),
    visible.length && may.has(HOLD) && commands.hold(name, visible),
    held.length && may.has(HOLD) && commands.release(name, held),
    deleting.length && may.has(DELETE) && commands.undelete(name, deleting),
  ].filter(Boolean);
  return lines.length > 0 && command(...lines);
}

function deletion(name, sequences) {
  const text = `${ofThem(sequences)} of ${name}: held at once, and gone after ${UNDO_S} seconds. `
    + "Until then the delete can be undone, also after a restart of the service.";
  return ["Delete the messages?", text, "Delete"];
}

async function remove(name, sequences, done, fail) {
  const path = ofQueue(name, "/messages/delete");
  const answer = await post(path, { sequences, undo_s: UNDO_S });
  undoNotice(changedText("deleted", answer.deleted, answer.kept), UNDO_S, async () => {
    try {
      await undelete(name, sequences);
      await done();
      return true;
    } catch (error) {
      fail(error);
      return false;
    }
  });
  return true;
}

async function undelete(name, sequences) {
  const answer = await post(ofQueue(name, "/messages/undelete"), { sequences });
  notice(backText(answer.undeleted, answer.gone));
  return true;
}

async function release(name, sequences) {
  const answer = await post(ofQueue(name, "/messages/release"), { sequences });
  notice(changedText("released", answer.released, answer.kept));
  return true;
}

/** Ask for owner and reference; resolves to true if messages were held. What failed is said beside them. */
function hold(name, sequences) {
  if (document.querySelector("dialog[open]")) return Promise.resolve(false); // a click came twice
  return new Promise((resolve) => {
    const owner = el("input", { name: "owner", autocomplete: "off", maxlength: "100" });
    const reference = el("input", { name: "reference", autocomplete: "off", maxlength: "200" });
    const same = el("div");
    const show = () =>
      fill(same, command(commands.hold(name, sequences, owner.value, reference.value)));
    const refusal = el("p", { class: "notice error", role: "alert", hidden: true });
    const close = (done) => {
      dialog.close(); // the focus goes back
      dialog.remove();
      resolve(done);
    };
    const onsubmit = async () => {
      const content = { sequences, owner: owner.value || null, reference: reference.value };
      try {
        const answer = await post(ofQueue(name, "/messages/hold"), content);
        notice(changedText("held", answer.held, answer.kept));
        close(true);
      } catch (error) {
        refusal.textContent = error.message;
        refusal.hidden = false;
      }
    };
    const dialog = el(
      "dialog",
      { oncancel: () => close(false), "aria-labelledby": "hold" },
      el("h2", { id: "hold" }, "Hold"),
      el("p", {}, `${ofThem(sequences)}: no receive, redrive or delete takes what is held `
        + "until it is released. It still expires, and a purge removes it."),
      form({ onsubmit, oninput: show },
        field("Owner, empty: you", owner),
        field("Reference, such as a ticket", reference),
        refusal,
        el("p", { class: "actions" },
          submit("Hold", { busy: "Holding …" }),
          button("Keep everything as it is", () => close(false))),
        same),
    );
    show();
    document.body.append(dialog);
    dialog.showModal();
  });
}
