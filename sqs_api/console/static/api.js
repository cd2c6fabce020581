// Requests to the operators' API.

import { notice } from "./dom.js";
import { signedInAgain, signedInAs } from "./session.js";
import { queryOf } from "./signing.js";
import { Refused, sentUntilTaken } from "./wire.js";

/**
 * @template {ApiPath<"get">} P
 * @param {P} path
 * @param {Query<P>} parameters
 * @param {AbortSignal} [signal]
 * @returns {Promise<Answer<"get", P>>}
 */
export function get(path, parameters = /** @type {Query<P>} */ ({}), signal = undefined) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== "");
  return ask("GET", path, Object.fromEntries(given), "", signal);
}

/**
 * Ask what takes a body: a plan, which changes nothing.
 *
 * @template {ApiPath<"post">} P
 * @param {P} path
 * @param {Content<"post", P>} content
 * @param {AbortSignal} [signal]
 * @returns {Promise<Answer<"post", P>>}
 */
export function question(path, content, signal) {
  return ask("POST", path, {}, JSON.stringify(content), signal);
}

const WAITS = "Others search or count, or other tabs of yours: this waits for its turn.";
const unanswered = new Map();

/**
 * Change something. The service does it once: as long as there was no answer, the same request is
 * sent with the id of the first one, and gets that one's answer.
 *
 * @template {ApiPath<"post">} P
 * @param {P} path
 * @param {Content<"post", P>} content
 * @returns {Promise<Answer<"post", P>>}
 */
export async function post(path, content) {
  const body = JSON.stringify(content);
  const wanted = `${path} ${body}`;
  const headers = {};
  const { id, sentMs } = unanswered.get(wanted) ?? { id: crypto.randomUUID() };
  headers["idempotency-key"] = id;
  if (sentMs) headers["idempotency-age"] = String(Math.ceil(performance.now() - sentMs) + 1);
  else unanswered.set(wanted, { id, sentMs: performance.now() });
  try {
    const answer = await ask("POST", path, {}, body, undefined, headers);
    unanswered.delete(wanted);
    return answer;
  } catch (error) {
    if (error.isFinal) unanswered.delete(wanted);
    else if (error.status === 0) error.message += " Press again once it does: even if it was done, it is done once.";
    throw error;
  }
}

/**
 * Signals for the questions of one place of a screen. Each ends the one before (as an AbortError,
 * which `fail` passes over), so that no slow answer replaces a newer one.
 */
export function latest(signal) {
  let asked = new AbortController();
  return () => {
    asked.abort();
    asked = new AbortController();
    return AbortSignal.any([signal, asked.signal]);
  };
}

/** @type {Promise<Schemas["ShownCaller"]> | null} */
let asked = null;

/** The caller, and what it may do to the service. Asked for once. */
export function caller() {
  asked ??= get("caller").then(signedInAs).catch((error) => {
    asked = null;
    throw error;
  });
  return asked;
}

export function forgetCaller() {
  asked = null;
}

/** Refuse a screen of something that the caller may not do. */
export function needs({ may }, ...actions) {
  if (actions.some((each) => may.includes(each))) return;
  const refusal = new Refused(`This needs ${actions.join(" or ")}: your policies do not allow it.`, 403);
  throw Object.assign(refusal, { endsScreen: true });
}

/**
 * The path of something of a queue. Its type is the path as OpenAPI has it, and so tells the answer's.
 *
 * @template {string} [R=""]
 * @param {string} name
 * @param {R} rest a braced part of it is replaced by `part`
 * @param {string | number} part
 * @returns {`queues/{queue}${R}`}
 */
export function ofQueue(name, rest = /** @type {R} */ (""), part = "") {
  return filled(`queues/{queue}${rest}`, name, part);
}

/**
 * @template {string} P
 * @param {P} path
 * @param {...(string | number)} parts
 * @returns {P}
 */
export function filled(path, ...parts) {
  return /** @type {P} */ (path.replace(/\{\w+\}/g, () => encodeURIComponent(parts.shift() ?? "")));
}

/** A request whose session has ended waits until its user has signed in again. */
async function ask(method, path, parameters, body, signal, more = {}) {
  const request = { method, path, query: queryOf(parameters), body, headers: more };
  for (;;) {
    try {
      return await sentUntilTaken(request, signal, () => notice(WAITS));
    } catch (error) {
      if (!error.needsSignIn) throw error;
      await signedInAgain(error);
      signal?.throwIfAborted();
    }
  }
}
