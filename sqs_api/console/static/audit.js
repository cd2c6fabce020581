// The audit log of all hosts: who changed what, read bodies, or was refused.

import { enter, isNextPage, keep } from "./address.js";
import { get } from "./api.js";
import { readAudit } from "./commands.js";
import { button, command, el, field, fill, row, table } from "./dom.js";
import { nameOf } from "./format.js";
import { resource } from "./resource.js";

const COLUMNS = [
  ["Time (UTC)", "name"],
  ["Who", ""],
  ["Action", ""],
  ["Queue", ""],
  ["Outcome", ""],
  ["From", "wide"],
  ["Details", "wide"],
];
const FIELDS = [
  ["since", "Since (UTC)", "datetime-local"],
  ["until", "Until (UTC)", "datetime-local"],
  ["user", "User, key or account", "text"],
  ["action", "Part of the action", "search"],
  ["queue", "Queue", "text"],
];

export async function showAudit({ view, query, signal, fail }) {
  const inputs = FIELDS.map(([name, label, type]) => [name, label,
    el("input", { name, type, value: query.get(name) ?? "", autocomplete: "off" })]);
  const denied = el("input", { type: "checkbox", name: "denied" });
  denied.checked = query.get("denied") === "true";
  let before = query.get("before") ?? ""; // a page's token
  let shown = conditions();
  const list = resource({ what: "The audit log", ask, show, signal, fail });

  function conditions() {
    const given = inputs.map(([name, , input]) => [name, input.value.trim()]);
    const kept = Object.fromEntries(given.filter(([, value]) => value));
    return denied.checked ? { ...kept, denied: "true" } : kept;
  }

  async function ask(mine) {
    const { since, until, ...others } = shown;
    const at = (text) => text && Date.parse(`${text}Z`);
    const times = { ...(since && { since_ms: at(since) }), ...(until && { until_ms: at(until) }) };
    return get("audit", { ...others, ...times, before }, mine);
  }

  function show({ entries, missing, next }) {
    const older = () => {
      before = next;
      enter("/audit", { ...shown, before });
      list.ask();
    };
    return [
      missing.length > 0
        && el("p", { class: "notice warning" }, `Without the lines of ${missing.join(", ")}: no answer.`),
      entries.length > 0
        ? table(COLUMNS, entries.map(entryRow), "Audit log")
        : el("p", { class: "empty" }, "No line matches."),
      el("p", { class: "actions" },
        before && (isNextPage() ? button("Newer", () => history.back()) : button("Newest", begin)),
        next && button("Older", older)),
      command(readAudit(shown)),
    ];
  }

  function begin() {
    before = "";
    shown = conditions();
    keep("/audit", shown, {});
    return list.ask();
  }

  function search(event) {
    event.preventDefault();
    begin();
  }

  const form = el(
    "form",
    { class: "toolbar", onsubmit: search },
    inputs.map(([, label, input]) => field(label, input)),
    field("Refused calls only", denied),
    el("button", { type: "submit", class: "main" }, "Search"),
  );
  fill(view, el("h1", {}, "Audit log"), form, list.place);
  await list.read();
}

/** A caller on the service's machine; null for others. */
function localCaller(login, uid) {
  if (login) return `${login} (local)`;
  return uid === undefined ? null : `uid ${uid}`;
}

function entryRow(entry) {
  const { request_id: _, uid, ...details } = entry.details;
  const told = Object.entries(details).map(([name, value]) =>
    `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`);
  return row(COLUMNS, [
    entry.time.slice(0, 19).replace("T", " "),
    entry.user ?? localCaller(entry.login, uid) ?? entry.access_key_id ?? "",
    entry.action,
    nameOf((entry.queue ?? "").replaceAll("/", ":")),
    entry.denied ? el("strong", { class: "urgent" }, `denied: ${entry.outcome}`) : entry.outcome ?? "",
    [entry.source_ip, entry.host].filter(Boolean).join(", "),
    told.join(", "),
  ]);
}
