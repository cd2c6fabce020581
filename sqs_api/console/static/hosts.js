// The hosts of the cluster: shards, leaders, lag, drains, problems.

import { keep } from "./address.js";
import { caller, get, post } from "./api.js";
import * as commands from "./commands.js";
import { button, command, dashboard, el, facts, fill, link, notice, row, table } from "./dom.js";
import { bytes, count } from "./format.js";
import { resource } from "./resource.js";

const REFRESH_MS = 3000;
const HOSTS = [["Host", "name"], ["State", ""], ["Leads", "number"], ["Zone", "wide"],
  ["Address", "wide"], ["Version", "wide"], ["Actions", ""]];
const COPIES = [["Shard", "number"], ["Host", "name"], ["Role", ""], ["Entries behind", "number"],
  ["Term", "number wide"]];
const ETCD = [["etcd", "name"], ["Role", ""], ["Database", "number wide"], ["Alarms", ""]];

export async function showHosts({ view, query, signal, fail }) {
  const { may, grafana_url: grafanaUrl } = await caller();
  const mayDrain = may.includes("holdfast:DrainHost");

  let number = query.get("cluster") ?? "";
  const list = resource({
    what: "The hosts",
    ask: async (mine) => {
      const found = await get("cluster", { cluster: number }, mine);
      if (!("hosts" in found)) return found;
      number = String(found.number); // a balancer may send the next question to another cluster
      keep("/hosts", { cluster: number });
      return found;
    },
    show: (found) => ("hosts" in found ? status(found) : found.is_gateway ? gateway() : alone()),
    signal,
    fail,
  });

  function drainButton(host) {
    const text = `${host} hands over the shards that it leads, and leads none until it may again. `
      + "It keeps its copies.";
    return button("Drain", () => drain(host, true), { busy: "Draining …",
      confirm: () => [`Drain host ${host}?`, text, "Drain"], "aria-label": `Drain ${host}` });
  }

  async function drain(host, drained) {
    try {
      await post("cluster/drain", { host, drained });
      notice(drained ? `${host} is drained.` : `${host} may lead again.`);
      await list.read();
    } catch (error) {
      fail(error);
    }
  }

  function status(found) {
    return [
      facts([["Cluster", `${found.cluster}, number ${found.number}`], ["As seen by", found.host]]),
      may.includes("holdfast:ReadFleet")
        && el("p", {}, link("All clusters of the fleet, and the manager's plan", "#/fleet")),
      found.problems.length
        ? el("ul", { class: "notice warning", "aria-label": "Problems" },
          found.problems.map((each) => el("li", {}, each)))
        : el("p", { class: "notice" }, "There are no problems."),
      table(HOSTS, found.hosts.map((host) => hostRow(host, found)), "Hosts"),
      el("h2", {}, "Shards"),
      drawn(found),
      table(COPIES, found.shards.flatMap(copyRows), "Copies of shards"),
      el("h2", {}, "etcd"),
      table(ETCD, found.etcd.map(etcdRow), "Members of etcd"),
      command(commands.clusterStatus(), ...found.hosts.map((host) =>
        commands.drain(host.name, !host.is_drained))),
    ];
  }

  function hostRow(host, found) {
    const states = [host.is_alive ? "runs" : "away"];
    if (host.is_alive && !host.is_reached) states.push("not reached");
    if (host.is_drained) states.push("drained");
    return row(HOSTS, [
      host.name,
      el("span", { class: host.is_alive && host.is_reached ? "" : "urgent" }, states.join(", ")),
      count(found.shards.filter((shard) => shard.leader === host.name).length),
      host.zone,
      host.peer_address,
      host.version,
      mayDrain && (host.is_drained
        ? button("Undrain", () => drain(host.name, false),
          { busy: "Undraining …", "aria-label": `Undrain ${host.name}` })
        : drainButton(host.name)),
    ]);
  }

  const drawnBy = dashboard(grafanaUrl, "operators");
  fill(view, el("h1", {}, "Hosts"), drawnBy && el("p", { class: "actions" }, drawnBy), list.place);
  await list.watch(REFRESH_MS);
}

/** What a gateway of a fleet is, and where its clusters are seen. */
export function gateway() {
  return el("div", { class: "panel" },
    el("h2", {}, "This is a gateway"),
    el("p", {}, "It passes requests on to the clusters of its fleet, and keeps no messages. Open the console of a "
      + "host: it shows all clusters, messages and charts, and what can be done about them."));
}

/** What one host means, and what to do next. */
function alone() {
  return [
    el("div", { class: "panel" },
      el("h2", {}, "This is a single host"),
      el("p", {}, "It leads all queues itself. There is no cluster, so nothing is replicated to other hosts and "
        + "nothing can be drained."),
      facts([
        ["Messages lie", "on this host only"],
        ["If its disk is lost", "what came since the latest backup is lost with it"],
        ["To lose nothing then", "three hosts or more make a cluster: see Cluster in sqs_api/OPERATING.md"],
      ])),
    command(...commands.backup()),
  ];
}

/** Who leads each shard, who follows, and who lags: a row a shard, a column a host. */
function drawn({ hosts, shards }) {
  const columns = [["Shard", "number"], ...hosts.map(({ name, is_drained: isDrained }) =>
    [isDrained ? `${name}, drained` : name, "place"])];
  return table(columns, shards.map((shard) => {
    const cells = hosts.map(({ name }) => {
      const [state, text] = placeOf(shard, name);
      return text && el("span", { class: `copy ${state}` }, text);
    });
    return row(columns, [shard.shard, ...cells], { "data-key": String(shard.shard) });
  }), "Who leads and who follows");
}

/**
 * What a host is to a shard: the name of its look, and what it says.
 *
 * @returns {[state: string, text: string]}
 */
export function placeOf({ voters, replicas, leader }, host) {
  const copy = replicas.find((each) => each.host === host);
  if (!copy) return voters.includes(host) ? ["away", "not reached"] : ["", ""];
  if (copy.conflict) return ["away", "in conflict"];
  if (copy.damage) return ["away", "damaged"];
  if (host === leader) return ["leads", "leads"];
  if (copy.needs_checkpoint) return ["lags", "is copied anew"];
  if (copy.behind > 0) return ["lags", `${count(copy.behind)} behind`];
  return ["follows", copy.is_voter ? "follows" : "does not count yet"];
}

function copyRows(shard) {
  const reached = shard.replicas.map((copy) => copy.host);
  const away = shard.voters.filter((host) => !reached.includes(host));
  return [
    ...shard.replicas.map((copy) => row(COPIES, [
      shard.shard,
      copy.host,
      [copy.role, !copy.is_voter && ", does not count yet", copy.damage && ", damaged",
        copy.conflict && ", in conflict"],
      copy.needs_checkpoint ? "needs a checkpoint" : count(copy.behind),
      shard.term,
    ])),
    ...away.map((host) => row(COPIES, [shard.shard, host, "not reached", "?", shard.term])),
  ];
}

function etcdRow(member) {
  const role = member.is_leader ? "leader" : "follower";
  const known = member.has_leader ? role : "sees no leader";
  return row(ETCD, [
    member.endpoint,
    member.is_reached ? known : el("span", { class: "urgent" }, "not reached"),
    member.is_reached ? bytes(member.database_bytes) : "",
    member.alarms.join(", "),
  ]);
}
