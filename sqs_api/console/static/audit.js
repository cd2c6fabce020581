// The audit log of all hosts: who changed what, read bodies, or was refused. A line a call.

import { addressOf, enter, isNextPage, keep } from "./address.js";
import { caller, get } from "./api.js";
import { readAudit } from "./commands.js";
import { button, command, el, facts, field, fill, link, row, table, time } from "./dom.js";
import { callerName, count, dayOf, local, nameOf, nowMs, whoCalled } from "./format.js";
import { resource } from "./resource.js";
import { shownText } from "./unseen_characters.js";

const TIME = "datetime-local";
const COLUMNS = [
  ["Time", "time"],
  ["Who", "who"],
  ["Call", "call"],
  ["Queue", "queue"],
  ["What", "brief"],
  ["Ids", "ids"],
];
const REDRIVERS = [["Day", "name"], ["Who", ""], ["Redrives", "number"], ["Messages moved", "number"]];
const FIELDS = [
  ["since", "Since", TIME],
  ["until", "Until", TIME],
  ["user", "User, key or account", "text"],
  ["action", "Part of the action", "search"],
  ["queue", "Queue", "text"],
];
const DAY_MS = 86400000;
/** Redrives are counted by day for this time before now, or before the end that is asked for. */
const DAYS = 7;
/** Details that only tell calls apart: they are behind a fold. */
const IDS = ["request_id", "session", "sequences", "messages_read", "sequence", "sent", "handle", "access_key_id", "source_ip", "host"];
/** More is cut by the width of the column. */
const SHOWN_MAX = 200;

export async function showAudit({ view, query, signal, fail }) {
  const inputs = FIELDS.map(([name, label, type]) => [name, label,
    el("input", { name, type, value: type === TIME ? shownTime(query.get(name)) : query.get(name) ?? "", autocomplete: "off" })]);
  const denied = el("input", { type: "checkbox", name: "denied" });
  denied.checked = query.get("denied") === "true";
  let before = query.get("before") ?? ""; // a page's token
  const opened = new Set(); // keys of the calls that are shown with their ids
  let shown = conditions();
  const list = resource({ what: "The audit log", ask, show, signal, fail });
  const redrives = resource({ what: "The redrives", ask: askRedrives, show: showRedrivers, signal, fail });
  const { may } = await caller();
  const seesRedrives = may.includes("holdfast:ListQueues");

  function conditions() {
    const given = inputs.map(([name, , input]) => [name, input.type === TIME ? keptTime(input.value) : input.value.trim()]);
    const kept = Object.fromEntries(given.filter(([, value]) => value));
    return denied.checked ? { ...kept, denied: "true" } : kept;
  }

  async function ask(mine) {
    const { since, until, ...others } = shown;
    const times = { ...(since && { since_ms: at(since) }), ...(until && { until_ms: at(until) }) };
    return get("audit", { ...others, ...times, before }, mine);
  }

  function askRedrives(mine) {
    return get("redrives", { ...daysOf(shown, new Date(nowMs())), utc_offset_min: -new Date().getTimezoneOffset() }, mine);
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
        ? table(COLUMNS, entries.map((each) => entryRows(each, opened, list.show)), "Audit log")
        : el("p", { class: "empty" }, "No line matches."),
      el("p", { class: "actions" },
        before && (isNextPage() ? button("Newer", () => history.back()) : button("Newest", begin)),
        next && button("Older", older)),
      command(readAudit(shown)),
    ];
  }

  function showRedrivers({ by_day: days }) {
    const found = days.filter(({ who }) => !shown.user || callerName(who) === shown.user);
    return el("details", { class: "filter", "data-key": "redrives" },
      el("summary", {}, summaryOf(found)),
      found.length > 0 && table(REDRIVERS, found.map(redriverRow), "Redrives by user and day"),
      link("All redrives", "#/redrives"));
  }

  function begin() {
    before = "";
    shown = conditions();
    keep("/audit", shown, {});
    return Promise.all([list.ask(), seesRedrives && redrives.ask()]);
  }

  function search(event) {
    event.preventDefault();
    begin();
  }

  const form = el(
    "form",
    { class: "search", onsubmit: search },
    inputs.map(([, label, input]) => field(label, input)),
    el("label", { class: "choice" }, denied, "Refused calls only"),
    el("button", { type: "submit", class: "main" }, "Search"),
  );
  fill(view, el("h1", {}, "Audit log"), form, seesRedrives && redrives.place, list.place);
  await Promise.all([list.read(), seesRedrives && redrives.read()]);
}

/** A time of an address, where times are of UTC: links mean the same for everybody. */
function at(text) {
  return Date.parse(`${text}Z`);
}

/** A time of an address as a field shows it, on this browser's clock. */
function shownTime(kept) {
  return kept ? local(at(kept)).slice(0, 16).replace(" ", "T") : "";
}

/** The other way round. */
function keptTime(shown) {
  return shown && new Date(shown).toISOString().slice(0, 16);
}

/** The days of which redrives are counted, whole ones of this browser's clock unless times are asked for. */
function daysOf({ since = "", until = "" }, now) {
  const untilMs = until ? at(until) : new Date(now.getFullYear(), now.getMonth(), now.getDate() + 1).getTime();
  return { since_ms: since ? at(since) : Math.max(0, untilMs - DAYS * DAY_MS), until_ms: untilMs };
}

function summaryOf(days) {
  const sum = (/** @type {"redrives" | "moved"} */ name) => days.reduce((total, each) => total + each[name], 0);
  const users = new Set(days.map(({ who }) => who)).size;
  if (days.length === 0) return "No redrives in this time";
  return `${numberOf(sum("redrives"), "redrive")} of ${numberOf(sum("moved"), "message")} by ${numberOf(users, "user")}, by day`;
}

function numberOf(number, what) {
  return `${count(number)} ${what}${number === 1 ? "" : "s"}`;
}

function redriverRow({ day_ms: dayMs, who, redrives, moved }) {
  const minute = (ms) => new Date(ms).toISOString().slice(0, 16);
  const user = callerName(who);
  const lines = { since: minute(dayMs), until: minute(dayMs + DAY_MS), ...(user !== "unsigned" && { user }), action: "redrive" };
  return row(REDRIVERS, [link(dayOf(dayMs), addressOf("/audit", lines)), user, count(redrives), count(moved)],
    { "data-key": `${dayMs} ${who}` });
}

function callerOf(entry) {
  const { is_root: isRoot, account, access_key_id: key, source_ip: ip } = entry;
  const who = whoCalled(entry);
  if (isRoot) return el("span", { title: `account ${account}, key ${key}` }, who);
  return who || (ip ? el("span", { class: "hint" }, "unsigned") : "");
}

function textOf(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** A detail in a few words: names and values of an object without its signs. */
function briefOf(value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return textOf(value);
  return Object.entries(value).map(([name, each]) => `${name} ${textOf(each)}`).join(", ");
}

/** What a call asked for in a few words, and all that is known of it. */
function detailsOf({ details, access_key_id, source_ip, host }) {
  const { uid: _, ...told } = details;
  const all = Object.entries({ ...told, access_key_id, source_ip, host }).filter(([, value]) => value !== null && value !== undefined);
  const brief = all.filter(([name, value]) => !IDS.includes(name) && value !== "").map(([name, value]) => `${name.replaceAll("_", " ")} ${briefOf(value)}`);
  const many = ["sequences", "messages_read"].filter((name) => Array.isArray(details[name]))
    .map((name) => `${numberOf(details[name].length, "message")}${name === "sequences" ? "" : " read"}`);
  const text = [...many, ...brief].join(", ");
  return { brief: text.length > SHOWN_MAX ? `${text.slice(0, SHOWN_MAX)} …` : text, all };
}

/** The line of a call, and below it all that is known if it is `opened`. */
function entryRows(entry, opened, again) {
  const { brief, all } = detailsOf(entry);
  const key = `${entry.time} ${entry.host} ${entry.details.request_id ?? ""} ${entry.action}`;
  const isOpen = opened.has(key);
  const queue = nameOf((entry.queue ?? "").replaceAll("/", ":"));
  const turn = () => {
    if (!opened.delete(key)) opened.add(key);
    again();
  };
  const line = row(COLUMNS, [
    time(Date.parse(entry.time)),
    callerOf(entry),
    [
      entry.action.replace(/^holdfast:/, ""),
      el("div", { class: "hint narrow" }, queue),
      entry.denied && [" ", el("strong", { class: "urgent" }, `denied: ${entry.outcome}`)],
      !entry.denied && entry.outcome && entry.outcome !== "ok" && [" ", el("span", { class: "urgent" }, entry.outcome)],
    ],
    queue,
    shownText(brief),
    all.length > 0 && button(isOpen ? "Hide" : "Show", turn,
      { class: "small", "aria-expanded": String(isOpen), "aria-label": `${isOpen ? "Hide" : "Show"} all of ${entry.action}` }),
  ], { "data-key": key });
  const told = () => el("td", { colspan: String(COLUMNS.length) }, facts(all.map(([name, value]) => [name, shownText(textOf(value))])));
  return [line, isOpen && el("tr", { "data-key": `all of ${key}` }, told())];
}
