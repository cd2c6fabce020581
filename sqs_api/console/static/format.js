// Texts of numbers, times and bodies.

/** @type {[number, string][]} */
const UNITS = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];

/** A duration by its two largest units, such as 3d 4h. */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "";
  let left = Math.floor(seconds);
  const parts = [];
  for (const [size, unit] of UNITS) {
    if (left >= size) parts.push(`${Math.floor(left / size)}${unit}`);
    left %= size;
  }
  return parts.slice(0, 2).join(" ") || "0s";
}

/** The seconds of a text such as "90", "1m 30s" or "4d"; null if it is none. @returns {number | null} */
export function secondsOf(/** @type {string} */ text) {
  if (/^\d+$/.test(text.trim())) return Number(text);
  const parts = [...text.matchAll(/(\d+)\s*([dhms])/g)];
  if (parts.length === 0 || text.replace(/\d+\s*[dhms]|\s/g, "") !== "") return null;
  return parts.reduce((sum, [, number, unit]) => sum + Number(number) * (UNITS.find(([, each]) => each === unit)?.[0] ?? 0), 0);
}

/** A duration that may be less than a second. */
export function delay(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  return seconds < 10 ? `${seconds.toFixed(1)} s` : span(seconds);
}

export function count(number) {
  return number === null || number === undefined ? "?" : number.toLocaleString("en");
}

/** The result of a change of messages, in a sentence; `kept` ones are in another state meanwhile. */
export function changedText(/** @type {string} */ what, /** @type {number} */ changed, /** @type {number} */ kept) {
  return `${count(changed)} ${what}${kept ? `, ${count(kept)} not: in another state, or gone` : ""}.`;
}

/** The result of an undone delete. */
export function backText(/** @type {number} */ undeleted, /** @type {number} */ gone) {
  return `${count(undeleted)} ${undeleted === 1 ? "is" : "are"} back.${gone ? ` Gone: ${count(gone)}.` : ""}`;
}

export function rate(perSecond) {
  if (perSecond === null) return "";
  if (perSecond === 0) return "0";
  return perSecond >= 10 ? Math.round(perSecond).toLocaleString("en") : perSecond.toFixed(1);
}

export function bytes(number) {
  if (number < 1024) return `${number} B`;
  if (number < 1 << 20) return `${(number / 1024).toFixed(1)} KiB`;
  return `${(number / (1 << 20)).toFixed(1)} MiB`;
}

/** The bytes of a text such as "1024", "256 KiB" or "1 MiB"; null if it is none. @returns {number | null} */
export function sizeOf(/** @type {string} */ text) {
  const [, number, unit = "B"] = /^\s*(\d+(?:\.\d+)?)\s*(B|KiB|MiB)?\s*$/i.exec(text) ?? [];
  const size = Number(number) * { b: 1, kib: 1 << 10, mib: 1 << 20 }[unit.toLowerCase()];
  return number !== undefined && Number.isInteger(size) ? size : null;
}

/** A time on this browser's clock, such as 2026-11-29 14:49:58. */
export function local(ms) {
  return ms ? new Date(ms).toLocaleString("sv") : "";
}

/** The same in UTC, for a hint on hover and for what leaves the browser. */
export function instant(ms) {
  return ms ? new Date(ms).toISOString().replace("T", " ").slice(0, 19) + " UTC" : "";
}

/** Both, where a text is all there is room for. */
export function bothTimes(ms) {
  return ms ? `${local(ms)}, ${instant(ms)}` : "";
}

/** The date of a day that begins at a time, or an hour beside it: the clock may be changed since. */
export function dayOf(beginMs) {
  return local(beginMs + 12 * 3600000).slice(0, 10);
}

const CLOCKS_APART_MS = 5000; // less is the whole second of a Date, and the way of an answer
let aheadMs = 0;

/** Learn how far the service's clock is ahead, from the Date of an answer. */
export function heardClock(/** @type {string | null} */ date, atMs = Date.now()) {
  const apart = Date.parse(date ?? "") + 500 - atMs;
  if (!Number.isNaN(apart)) aheadMs = Math.abs(apart) > CLOCKS_APART_MS ? apart : 0;
}

/** Now by the service's clock: that of a browser may be wrong. */
export function nowMs() {
  return Date.now() + aheadMs;
}

/** The time since an instant. */
export function ago(ms) {
  return `${span(Math.max(0, nowMs() - ms) / 1000)} ago`;
}

/** @type {Record<string, string>} */
const CAUSES = {
  "max-receives": "received too often",
  expired: "expired",
  "over-length": "the queue was too long",
  "queue-deleted": "its queue was deleted",
  late: "came too late",
  hops: "went in a circle",
};

/** Why a message is a dead letter. */
export function causeText(/** @type {string} */ cause) {
  return CAUSES[cause] ?? cause;
}

export function nameOf(arn) {
  return arn ? arn.slice(arn.lastIndexOf(":") + 1) : "";
}

/** Who called, of the ARN of a user or of the root. */
export function callerName(/** @type {string} */ arn) {
  return nameOf(arn).replace(/^user[/]/, "") || "unsigned";
}

/**
 * Who made the call of a line of the audit log, in a word; empty for a call without a key.
 *
 * @param {{user: string | null, login: string | null, details: Record<string, any>, is_root: boolean,
 *   access_key_id: string | null}} entry
 */
export function whoCalled({ user, login, details: { uid }, is_root: isRoot, access_key_id: key }) {
  if (isRoot) return "root";
  return user ?? localCaller(login, uid) ?? key ?? "";
}

/** A caller on the service's machine; null for others. */
function localCaller(login, uid) {
  if (login) return `${login} (local)`;
  return uid === undefined ? null : `uid ${uid}`;
}

const PAUSES = {
  canary: "waits for you after its canary",
  "came back": "stopped: messages came back",
  operator: "paused",
};

/** The state of a redrive. */
export function statusText({ status, paused }) {
  return paused ? PAUSES[paused] : status.toLowerCase();
}

/** The same with its progress. */
export function taskText(task) {
  return `${statusText(task)}, ${count(task.moved)} of ${count(task.to_move)}`;
}

/** A JSON text with line breaks, its numbers as they were written; null if it is not JSON. */
export function pretty(text) {
  try {
    const value = JSON.parse(text);
    if (value === null || typeof value !== "object") return null;
  } catch {
    return null;
  }
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g);
  let shown = "";
  let depth = 0;
  const line = () => "\n" + "  ".repeat(depth);
  tokens.forEach((token, at) => {
    const isEmpty = tokens[at + 1] === "}" || tokens[at + 1] === "]";
    if (token === "{" || token === "[") {
      depth += 1;
      shown += token + (isEmpty ? "" : line());
    } else if (token === "}" || token === "]") {
      depth -= 1;
      const wasEmpty = tokens[at - 1] === "{" || tokens[at - 1] === "[";
      shown += (wasEmpty ? "" : line()) + token;
    } else if (token === ",") shown += token + line();
    else shown += token === ":" ? ": " : token;
  });
  return shown;
}

/** A word for a shell. */
export function quoted(text) {
  return /^[\w./:@%+=,-]+$/.test(text) ? text : `'${String(text).replaceAll("'", `'\\''`)}'`;
}
