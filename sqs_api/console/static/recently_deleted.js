// Queues that were deleted or purged lately: each can be brought back while its time lasts.

import { addressOf } from "./address.js";
import { get, post } from "./api.js";
import * as commands from "./commands.js";
import { button, command, el, link, notice, row, table, time } from "./dom.js";
import { count, nowMs, span } from "./format.js";
import { resource } from "./resource.js";

const REFRESH_MS = 5000;
const COLUMNS = [["Queue", "gone"], ["Messages", "number"], ["When", "wide"], ["Time left", ""],
  ["Actions", ""]];

/** The list, read again and again; `restored` is called when a queue is back. */
export function recentlyDeleted({ may, signal, fail, restored }) {
  const list = resource({
    what: "The recently deleted queues",
    ask: (mine) => get("deleted-queues", {}, mine),
    show: (queues) => queues.length > 0 && [
      el("h2", {}, "Recently deleted"),
      table(COLUMNS, queues.map(deletedRow), "Recently deleted"),
      queues.some(({ restoring, obstacle }) => restoring && !obstacle)
        && el("p", { class: "hint" }, "Messages in flight come back when their visibility timeout ends."),
      may.includes("holdfast:RestoreQueue") && queues.some(({ restoring }) => !restoring)
        && command(...new Set(queues.filter(({ restoring }) => !restoring).map(({ name }) => commands.restoreQueue(name)))),
    ],
    signal,
    fail,
  });

  function deletedRow(queue) {
    return row(COLUMNS, [
      [queue.name, " ", whose(queue)],
      [count(queue.messages), queue.dead_letters > 0 && el("span", { class: "hint" },
        ` and ${count(queue.dead_letters)} in its dead-letter queue`)],
      time(queue.deleted_at_ms),
      timeLeft(queue),
      queue.obstacle ? el("span", { class: "hint" }, queue.obstacle)
        : !queue.restoring && may.includes("holdfast:RestoreQueue") && button("Restore", () => restore(queue),
          { busy: "Restoring …", "aria-label": `Restore ${queue.name}` }),
    ], { "data-key": String(queue.queue_id) });
  }

  /** What was done, which leads to who did it. */
  function whose({ name, purged }) {
    const [said, action] = purged ? ["purged", "PurgeQueue"] : ["deleted", "DeleteQueue"];
    if (!may.includes("holdfast:ReadAudit")) return el("span", { class: "hint" }, said);
    return link(said, addressOf("/audit", { queue: name, action }), { class: "hint", title: "by whom" });
  }

  function timeLeft({ restoring, obstacle, restorable_until_ms: until }) {
    if (restoring) return obstacle ? "coming back with its queue" : "coming back";
    return span((until - nowMs()) / 1000);
  }

  async function restore({ queue_id: id, name, dead_letters: left }) {
    try {
      const { complete } = await post("deleted-queues/restore", { queue_id: id });
      const others = left > 0 ? ` ${count(left)} are in its dead-letter queue.` : "";
      notice(complete ? `${name} has its messages back.${others}`
        : `${name} gets its messages back; what is left shows here.${others}`);
    } catch (error) {
      fail(error);
    }
    await Promise.all([list.read(), restored()]);
  }

  list.watch(REFRESH_MS);
  return list.place;
}
