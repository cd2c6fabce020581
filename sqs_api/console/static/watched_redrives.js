// Tells on any screen that a redrive waits for someone, stopped, or ended, and on the desktop if asked.

import { get } from "./api.js";
import { button, el, link } from "./dom.js";
import { nowMs, statusText } from "./format.js";
import { repeat } from "./live.js";
import { resultText } from "./presets.js";

const LOOK_MS = 10000;
const SHOWN_MS = 60000;

/** What is to be told of redrives that were seen before, by their ids: those that changed so that one looks. */
export function changesOf(before, redrives) {
  return redrives.filter((each) => {
    const known = before.get(each.id);
    const isNew = known === undefined && !(each.is_active && each.paused);
    return !isNew && known !== toldOf(each) && (each.paused || !each.is_active);
  });
}

/** A redrive's state as far as it is told. */
export function toldOf({ status, paused, is_active: isActive }) {
  return isActive ? paused ?? "running" : status;
}

/** Look again and again, until the signal. `onEnd` is told when the user leaves an ended session: nobody else may ask. */
export function watchRedrives(signal, onEnd) {
  const seen = new Map();
  return repeat(signal, LOOK_MS, async () => {
    try {
      const { redrives } = await get("redrives", { since_ms: nowMs() - 3600000 }, signal);
      for (const each of changesOf(seen, redrives)) tell(each);
      for (const each of redrives) seen.set(each.id, toldOf(each));
    } catch (error) {
      if (error.needsSignIn) onEnd(error); // else the screen itself says what is wrong
    }
  });
}

/** True for the screens that say by themselves how a redrive is. */
export function isShownAt(/** @type {string} */ hash, { queue }) {
  const [path] = hash.slice(1).split("?");
  return ["/redrives", `/queues/${queue}`, `/queues/${queue}/redrive`].includes(path);
}

function tell(redrive) {
  const text = `${redrive.queue}: redrive ${statusText(redrive)}, ${resultText(redrive)}.`;
  const told = new AbortController();
  const end = () => {
    shown.remove();
    told.abort();
  };
  const shown = el("p", { class: "notice actions" }, el("span", {}, text),
    link("Look", `#/queues/${redrive.queue}/redrive`, { onclick: end }),
    canAsk() && button("Also on the desktop", () => Notification.requestPermission().then(end)),
    button("Close", end, { class: "small" }));
  if (!isShownAt(location.hash, redrive)) {
    document.getElementById("notices")?.append(shown);
    addEventListener("hashchange", () => isShownAt(location.hash, redrive) && end(), { signal: told.signal });
    setTimeout(end, SHOWN_MS);
  }
  if ("Notification" in window && Notification.permission === "granted" && document.hidden)
    new Notification("Holdfast", { body: text, tag: redrive.id });
}

function canAsk() {
  return "Notification" in window && Notification.permission === "default";
}
