// All queues: search, sort, pages, rates.

import { get, latest } from "./api.js";
import { listQueues } from "./commands.js";
import { button, command, el, fill, link, queueLink, refill, row, table } from "./dom.js";
import { count, rate, span } from "./format.js";
import { sparkline } from "./lines.js";
import { History, repeat } from "./live.js";

const REFRESH_MS = 5000;
const DEPTHS_MS = 60000;
const history = new History();
let depths = new Map(); // of the last hour, by the queue's name
const COLUMNS = [
  ["Queue", "name"],
  ["Visible", "number", "visible"],
  ["In flight", "number", "in_flight"],
  ["Delayed", "number wide", "delayed"],
  ["Oldest", "number", "oldest"],
  ["Lost in", "number wide", "expires"],
  ["In/s", "number wide"],
  ["Out/s", "number wide"],
  ["Last hour", "wide"],
  ["Dead letters", "wide"],
];

export async function showQueues({ view, query, signal, fail }) {
  let search = query.get("search") ?? "";
  let sort = query.get("sort") ?? "name";
  const tokens = /** @type {(string | null)[]} */ ([null]);
  const list = el("div");
  const total = el("span", { class: "hint" });
  const same = el("div");
  const input = el("input", {
    type: "search",
    value: search,
    placeholder: "Search by name  ( / )",
    "aria-label": "Search queues by name",
    oninput: () => {
      search = input.value;
      begin();
    },
  });

  const newest = latest(signal);
  let depthsOf = ""; // the page that they are of
  let depthsAtMs = 0;

  async function read() {
    const mine = newest();
    try {
      const wanted = { search, sort, after: tokens.at(-1), limit: 100 };
      const page = await get("queues", wanted, mine);
      page.queues.forEach((queue) => history.add(queue));
      total.textContent = `${count(page.total)} queues`;
      refill(list, queueTable(page.queues), pager(page.next));
      refill(same, command(listQueues(search, sort)));
      if (!(await readDepths(wanted, mine))) return;
      refill(list, queueTable(page.queues), pager(page.next));
    } catch (error) {
      fail(error);
    }
  }

  /** Read the depths of the shown queues, once a minute; true if there are new ones. */
  async function readDepths(wanted, mine) {
    const place = JSON.stringify(wanted);
    if (place === depthsOf && Date.now() < depthsAtMs + DEPTHS_MS) return false;
    depths = new Map(Object.entries((await get("depths", wanted, mine)).queues));
    [depthsOf, depthsAtMs] = [place, Date.now()];
    return true;
  }

  function begin() {
    tokens.length = 1;
    const kept = new URLSearchParams({ ...(search && { search }), sort });
    window.history.replaceState(null, "", `#/queues?${kept}`);
    read();
  }

  function queueTable(queues) {
    const columns = COLUMNS.map(([text, kind, by]) => {
      if (!by && text !== "Queue") return [text, kind];
      const name = by ?? "name";
      const onclick = () => {
        sort = name;
        begin();
      };
      return [button(text, onclick, { class: "sort", "aria-pressed": String(sort === name) }), kind];
    });
    if (queues.length === 0) return el("p", { class: "empty" }, "No queue has such a name.");
    return table(columns, queues.map(queueRow), "Queues");
  }

  function pager(next) {
    const go = (change) => () => {
      change();
      read();
    };
    return el(
      "p",
      { class: "actions" },
      tokens.length > 1 && button("Previous page", go(() => tokens.pop())),
      next && button("Next page", go(() => tokens.push(next))),
    );
  }

  fill(view, el("h1", {}, "Queues"), el("p", { class: "toolbar" }, input, total), list, same);
  await repeat(signal, REFRESH_MS, read);
}

function queueRow(queue) {
  const { name, may, hidden } = queue;
  const holds = queue.visible || queue.in_flight || queue.delayed;
  const dead = queue.dead_letter_queue;
  return row(COLUMNS, [
    queueLink(name, may.includes("holdfast:GetQueue")),
    count(queue.visible),
    count(queue.in_flight),
    count(queue.delayed),
    span(queue.oldest_age_s),
    holds ? span(queue.expires_in_s) : "",
    rate(history.rate(name, "sent")),
    rate(history.rate(name, "received")),
    lastHour(name),
    [
      dead && ["to ", queueLink(dead.name, !hidden.includes(dead.name))],
      queue.sources_total > 0 && redriveLink(queue),
    ],
  ]);
}

function redriveLink({ name, may, sources_total: sources }) {
  const mayRedrive = ["holdfast:GetQueue", "holdfast:RedriveMessages"].every((each) => may.includes(each));
  return mayRedrive ? link(`of ${sources}`, `#/queues/${name}/redrive`) : `of ${sources}`;
}

/** The depth in the last hour; where the service has no history, since the page was opened. */
function lastHour(name) {
  const values = depths.get(name);
  if (!values) return history.chart(name);
  const known = values.filter((each) => each !== null);
  const most = `at most ${count(Math.max(...known))}, lately ${count(known.at(-1))}`;
  return sparkline(values, `messages in the last hour: ${most}`);
}
