// Messages put aside: quarantine with an owner and a reference, and deletes that can be undone.

import { ofQueue, post } from "./api.js";
import * as commands from "./commands.js";
import { button, command, el, field, fill, form, notice, submit, undoNotice } from "./dom.js";
import { count } from "./format.js";

export const UNDO_S = 60;
const QUARANTINE = "holdfast:QuarantineMessages";
const DELETE = "holdfast:DeleteMessages";

/**
 * Buttons for the chosen messages, as far as their states and the caller's permissions allow; `done`
 * is called after a change.
 */
export function asideButtons(queue, messages, done, fail) {
  const may = new Set(queue.may);
  const inState = (...states) =>
    messages.filter((each) => states.includes(each.state)).map((each) => each.sequence);
  const visible = inState("visible");
  const quarantined = inState("quarantined");
  const deleting = inState("deleting");
  const act = (what) => async () => {
    try {
      if (await what()) await done();
    } catch (error) {
      fail(error);
    }
  };
  return [
    visible.length > 0 && may.has(QUARANTINE)
      && button("Quarantine", act(() => quarantine(queue.name, visible))),
    quarantined.length > 0 && may.has(QUARANTINE)
      && button("Release", act(() => release(queue.name, quarantined)), { busy: "Releasing …" }),
    deleting.length > 0 && may.has(DELETE)
      && button("Undo delete", act(() => undelete(queue.name, deleting)), { busy: "Undoing …" }),
    visible.length > 0 && may.has(DELETE)
      && button("Delete", act(() => remove(queue.name, visible, done, fail)),
        { class: "danger", busy: "Deleting …", confirm: () => deletion(queue.name, visible) }),
    asideCommand(queue.name, { visible, quarantined, deleting }, may),
  ];
}

function ofThem(sequences) {
  return sequences.length === 1 ? "1 message" : `${count(sequences.length)} messages`;
}

function asideCommand(name, { visible, quarantined, deleting }, may) {
  const lines = [
    visible.length && may.has(DELETE) && commands.deleteMessages(name, visible, UNDO_S),
    visible.length && may.has(QUARANTINE) && commands.quarantine(name, visible),
    quarantined.length && may.has(QUARANTINE) && commands.release(name, quarantined),
    deleting.length && may.has(DELETE) && commands.undelete(name, deleting),
  ].filter(Boolean);
  return lines.length > 0 && command(...lines);
}

function deletion(name, sequences) {
  const text = `${ofThem(sequences)} of ${name}: put aside at once, and gone after ${UNDO_S} seconds. `
    + "Until then the delete can be undone, also after a restart of the service.";
  return ["Delete the messages?", text, "Delete"];
}

async function remove(name, sequences, done, fail) {
  const path = ofQueue(name, "/messages/delete");
  const answer = await post(path, { sequences, undo_s: UNDO_S });
  undoNotice(`${answer.deleted} deleted, ${answer.kept} kept.`, UNDO_S, async () => {
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
  notice(`${answer.undeleted} are back.${answer.gone ? ` ${answer.gone} are gone.` : ""}`);
  return true;
}

async function release(name, sequences) {
  const answer = await post(ofQueue(name, "/messages/release"), { sequences });
  notice(`${answer.released} released, ${answer.kept} kept.`);
  return true;
}

/** Ask for owner and reference; resolves to true if messages were put aside. */
function quarantine(name, sequences) {
  return new Promise((resolve, reject) => {
    const owner = el("input", { name: "owner", autocomplete: "off", maxlength: "100" });
    const reference = el("input", { name: "reference", autocomplete: "off", maxlength: "200" });
    const same = el("div");
    const show = () =>
      fill(same, command(commands.quarantine(name, sequences, owner.value, reference.value)));
    const close = (done) => {
      dialog.remove();
      resolve(done);
    };
    const onsubmit = async () => {
      const content = { sequences, owner: owner.value || null, reference: reference.value };
      try {
        const answer = await post(ofQueue(name, "/messages/quarantine"), content);
        notice(`${answer.quarantined} quarantined, ${answer.kept} kept.`);
        close(true);
      } catch (error) {
        dialog.remove();
        reject(error);
      }
    };
    const dialog = el(
      "dialog",
      { oncancel: () => close(false), "aria-labelledby": "quarantine" },
      el("h2", { id: "quarantine" }, "Quarantine"),
      el("p", {}, `${ofThem(sequences)}: no receive, redrive or delete takes what is in quarantine `
        + "until it is released. It still expires, and a purge removes it."),
      form({ onsubmit, oninput: show },
        field("Owner, empty: you", owner),
        field("Reference, such as a ticket", reference),
        el("p", { class: "actions" },
          submit("Put aside", { busy: "Putting aside …" }),
          button("Keep everything as it is", () => close(false))),
        same),
    );
    show();
    document.body.append(dialog);
    dialog.showModal();
  });
}
