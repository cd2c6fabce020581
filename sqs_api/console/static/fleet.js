// The fleet: clusters with their loads and leaders, the manager's plan, and its steps.

import { caller, get, post } from "./api.js";
import * as commands from "./commands.js";
import { button, command, el, facts, fill, link, notice, row, table, time } from "./dom.js";
import { count } from "./format.js";
import { gateway } from "./hosts.js";
import { resource } from "./resource.js";

const REFRESH_MS = 5000;
const CLUSTERS = [["Cluster", "name"], ["Load", "number"], ["Hosts", "name"], ["Shards", "name"],
  ["Queues", "number wide"]];
const CHANGES = [["Change", "name"], ["Queue", "name"], ["Places", ""], ["Reason", "body"],
  ["Actions", ""]];
const MADE = [["Time", "wide"], ["Change", "name"], ["Queue", "name"], ["Places", ""], ["By", "name wide"],
  ["Actions", ""]];
const NOTES = [["Change", "name"], ["Of", "name"], ["Reason", "body"]];
const LEFT = [["Queue", "name"], ["Part", "number"], ["Shard", "number"], ["State", ""], ["Messages", "number"],
  ["Waits for", "body"]];
const HISTORY = [["Time", "wide"], ["Outcome", ""], ...NOTES];
const MODES = {
  shadow: "shadow: it says what it would do, and changes nothing",
  on: "on: it makes its changes",
  paused: "paused: nobody makes a change of the plan",
};

export async function showFleet({ view, signal, fail }) {
  const { may } = await caller();
  const mayChange = may.includes("holdfast:ChangeFleet");

  const list = resource({
    what: "The fleet",
    ask: async (mine) => {
      const plan = await get("fleet/plan", {}, mine).catch(noPlan);
      if (plan === null) return { alone: true, isGateway: await isGateway(may, mine) };
      return { ...plan, emptied: (await get("fleet/emptied", {}, mine)).clusters };
    },
    show: (found) => (found.isGateway ? gateway() : found.alone ? alone() : shown(found)),
    signal,
    fail,
  });

  async function change(path, content, done) {
    try {
      await post(path, content);
      notice(done);
      await list.read();
    } catch (error) {
      fail(error);
    }
  }

  function shown(found) {
    return [
      facts([["Manager", found.mode === "paused" ? `${MODES.paused}; before, ${MODES[found.unpaused]}` : MODES[found.mode]], ["Planned by", found.holder || "no host"],
        ["Planned at", found.at_ms === null ? "not yet, or that host is away" : time(found.at_ms)]]),
      mayChange && el("p", { class: "actions" }, modeButton(found)),
      table(CLUSTERS, found.clusters.map((each) => clusterRow(each, may)), "Clusters"),
      ...found.emptied.flatMap((each) => emptiedCluster(each, mayChange && removeButton(each))),
      el("h2", {}, "The plan"),
      found.changes.length
        ? table(CHANGES, found.changes.map((each) => changeRow(each, found)), "The plan")
        : el("p", { class: "empty" }, "Nothing would be changed now."),
      ...listOf("Warnings", NOTES, found.warnings.map(noteRow)),
      ...listOf("Refused", NOTES, found.refusals.map(noteRow)),
      ...listOf("Made within the hour", MADE, found.made.toReversed().map(madeRow)),
      ...listOf("Decisions so far", HISTORY, found.history.toReversed().map(historyRow)),
      command(...commands.fleetPlan(), ...found.changes.slice(0, 1).map((each) =>
        commands.applyChange(each.id))),
    ];
  }

  function modeButton(found) {
    if (found.mode === "paused")
      return button("Resume", () => change("fleet/plan/mode", { mode: null },
        `The manager is as before the pause: ${MODES[found.unpaused]}.`), { busy: "Resuming …" });
    return button("Pause", () => change("fleet/plan/mode", { mode: "paused" },
      "Nobody makes a change of the plan now."), { busy: "Pausing …" });
  }

  function removeButton(each) {
    const text = "Its hosts stop and do not start again; its number and those of its shards are not used again. "
      + "Usage and audit log of the requests that they answered lie in their folders only.";
    return button("Remove", () => change("fleet/remove", { cluster: each.number },
      `Cluster ${each.number} is removed.`), {
      busy: "Removing …",
      disabled: each.stays !== "",
      confirm: () => [`Remove cluster ${each.number} for good?`, text, "Remove it", String(each.number)],
      "aria-label": `Remove cluster ${each.number}`,
    });
  }

  function changeRow(each, found) {
    const why = each.unavailable && `Cannot be made: ${each.unavailable}.`;
    return row(CHANGES, [
      each.kind,
      queueOf(each),
      places(each),
      [`${each.reason.text}. `, why && el("em", {}, why)],
      mayChange && button("Preview", () => change("fleet/plan/apply", { id: each.id },
        `Change ${each.id} was made.`), {
        busy: "Making …",
        disabled: Boolean(each.unavailable) || found.mode === "paused",
        confirm: () => [`Make this ${each.kind} of ${named(each)}?`, preview(each), "Make this change"],
        "aria-label": `Preview ${each.kind} of ${named(each)}`,
      }),
    ]);
  }

  function madeRow(each) {
    const text = "This is a new change: parts that were added take no messages any more and are "
      + "emptied by consumers; for parts that drain, new ones are added.";
    return row(MADE, [
      time(each.at_ms),
      each.kind,
      queueOf(each),
      places(each),
      each.by,
      mayChange && button("Undo", () => change("fleet/plan/undo", { id: each.id },
        `Change ${each.id} is undone.`), {
        busy: "Undoing …",
        confirm: () => [`Undo ${each.kind} of ${named(each)}?`, text, "Undo it"],
        "aria-label": `Undo ${each.kind} of ${named(each)}`,
      }),
    ]);
  }

  fill(view, el("h1", {}, "Fleet"), list.place);
  await list.watch(REFRESH_MS);
}

/** Null where there is no plan: on a single host, in a cluster that is alone. */
function noPlan(error) {
  if (error.status === 404 || error.status === 409) return null;
  throw error;
}

/** True if a gateway answers; those who may not look at hosts are told of none. */
async function isGateway(may, signal) {
  if (!may.includes("holdfast:ReadCluster")) return false;
  const found = await get("cluster", {}, signal);
  return !("hosts" in found) && found.is_gateway;
}

/** What there is instead, and what to do next. */
function alone() {
  return [
    el("div", { class: "panel" },
      el("h2", {}, "There is no fleet here"),
      el("p", {}, "Several clusters make a fleet: they share queues, users and keys, and a manager plans which of "
        + "them keeps which part of a queue. A single host, or a cluster that is alone, keeps all itself."),
      el("p", { class: "actions" }, link("Look at the hosts", "#/hosts", { class: "button main" })),
      el("p", { class: "hint" }, "To grow, add a cluster on one of the hosts of a cluster: see Fleet in sqs_api/OPERATING.md.")),
    command(commands.addCluster()),
  ];
}

function listOf(title, columns, rows) {
  return rows.length ? [el("h2", {}, title), table(columns, rows, title)] : [];
}

function clusterRow(cluster, may) {
  const queues = cluster.shards.reduce((sum, shard) => sum + shard.queues, 0);
  return row(CLUSTERS, [
    [may.includes("holdfast:ReadCluster")
      ? link(String(cluster.number), `#/hosts?cluster=${cluster.number}`, { title: "its hosts" })
      : String(cluster.number), " ", el("span", { class: "hint" }, cluster.name)],
    load(cluster),
    lines(cluster.hosts.map((host) => (cluster.away.includes(host)
      ? el("span", { class: "urgent" }, `${host} (away)`) : host))),
    lines(cluster.shards.map((shard) => [`${shard.shard}: `,
      shard.leader ?? el("span", { class: "urgent" }, "no leader"), `, ${share(shard.asked)}`])),
    count(queues),
  ]);
}

/** A cluster that is emptied: how far it is, what each part waits for, and its removal. */
function emptiedCluster(each, remove) {
  const title = `Cluster ${each.number} is being emptied`;
  return [
    el("h2", {}, title),
    facts([["Parts to move", count(each.to_move)], ["Parts under way", count(each.under_way)],
      ["Messages", each.messages === null ? "?" : count(each.messages)],
      ["Deleted queues", count(each.kept)]]),
    each.blocked && el("p", { class: "urgent" }, `Nothing moves: ${each.blocked}.`),
    each.stays && el("p", { class: "hint" }, `It cannot be removed now: ${each.stays}.`),
    remove && el("p", { class: "actions" }, remove),
    each.parts.length > 0 && table(LEFT, each.parts.map(leftRow), title),
  ];
}

function leftRow(each) {
  return row(LEFT, [link(each.queue, `#/queues/${each.queue}`), count(each.part), count(each.shard),
    each.state, each.messages === null ? "?" : count(each.messages), each.waits_for]);
}

/** The load as a bar, with the limits from which nothing is added and from which parts should leave. */
function load(cluster) {
  if (cluster.load === null) return "?";
  return [
    el("meter", { min: 0, max: 1, low: 0.7, high: 0.85, optimum: 0, value: cluster.load,
      "aria-label": `Load of cluster ${cluster.number}` }),
    ` ${share(cluster.load)}`,
  ];
}

function lines(items) {
  return items.map((each) => el("div", {}, each));
}

function share(part) {
  return part === null ? "?" : `${Math.round(part * 100)} %`;
}

function queueOf(each) {
  const { name, id, account } = each.queue;
  return name ? link(name, `#/queues/${name}`) : id || account;
}

function named(each) {
  return each.queue.name || each.queue.id || each.queue.account;
}

function places(each) {
  return lines([...each.opens.map((shard) => `+ shard ${shard}`),
    ...each.drains.map((part) => `− part ${part}`)]);
}

function preview(each) {
  const opens = each.opens.map((shard) =>
    `A new part on shard ${shard} takes messages beside the present ones. `);
  const drains = each.drains.map((part) =>
    `Part ${part} takes no messages any more; consumers empty it. `);
  return `${opens.join("")}${drains.join("")}Reason: ${each.reason.text}.`;
}

function noteRow(each) {
  return row(NOTES, [each.wanted, each.of, each.reason.text]);
}

function historyRow(each) {
  return row(HISTORY, [time(each.at_ms), each.what, each.wanted, each.of, each.reason.text]);
}
