// One request to the operators' API, and its answer. The browser adds the cookie of the session.

import { heardClock, nameOf } from "./format.js";

const API = "/_holdfast/api/";
const DENIED = /^User: \S+ is not authorized to perform: (\S+) on resource: (\S+) (with an explicit deny)?/;
const NOT_SIGNED_IN = "MissingAuthenticationToken";

const OWN_FILES = /console[/]([0-9a-f]{16})[/]/.exec(import.meta.url)?.[1];
/** True once the service, which was upgraded meanwhile, has other files than this page: they do not fit together. */
export let isOutdated = false;

/** The service refused a request, or was not there. */
export class Refused extends Error {
  /** @param {string} message @param {number} status @param {string} [code] @param {number} [retryAfterS] */
  constructor(message, status, code = "", retryAfterS = 0) {
    super(code === NOT_SIGNED_IN ? "" : message);
    this.status = status;
    this.code = code;
    this.retryAfterS = retryAfterS; // 0 if the same need not be tried again
    this.isFinal = status > 0 && status < 500; // nothing was done, and the same would be refused again
    this.needsSignIn = code === NOT_SIGNED_IN || code === "SessionEnded";
  }
}

/**
 * The answer's content.
 *
 * @typedef {{method: string, path: string, query?: string, body?: string, headers?: Record<string, string>}} Sent
 * @param {Sent} request
 * @param {AbortSignal} [signal]
 * @param {(request: {method: string, host: string, path: string, query: string, headers: object, body: string}) =>
 *   Promise<Record<string, string>>} [sign] gives all headers
 */
export async function sent({ method, path, query = "", body = "", headers = {} }, signal, sign) {
  /** @type {Record<string, string>} */
  let all = { ...headers, "x-holdfast-console": "1" };
  if (method === "POST") all["content-type"] = "application/json";
  if (sign) all = await sign({ method, host: location.host, path: API + path, query, headers: all, body });
  const address = API + path + (query && `?${query}`);
  let answer;
  let text;
  try {
    answer = await fetch(address, { method, headers: all, body: body || undefined, signal });
    text = await answer.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The service does not answer.", 0);
  }
  heardClock(answer.headers.get("date"));
  const files = answer.headers.get("x-holdfast-console-files");
  isOutdated = Boolean(files && OWN_FILES && files !== OWN_FILES);
  const content = parsed(text);
  if (!answer.ok) {
    const waitS = content.error ? Number(answer.headers.get("retry-after")) || 0 : 0; // not of a proxy
    const reason = content.error ? plain(content.error) : unknown(answer);
    throw new Refused(reason, answer.status, content.code, waitS);
  }
  return content;
}

/** What AWS's sentence about a policy says, in fewer words. */
function plain(/** @type {string} */ reason) {
  const [, action, resource, denies] = DENIED.exec(reason) ?? [];
  if (action === undefined) return reason;
  const on = resource === "*" ? "" : ` on ${nameOf(resource)}`;
  return `This needs ${action}${on}: ${denies ? "a policy denies it" : "your policies do not allow it"}.`;
}

/** What to do about an answer without a reason, which need not be the service's. */
function unknown({ status, statusText }) {
  const next = status < 500 && status !== 429 ? "Reload this page: a proxy may ask you to sign in." : "Try again in a moment.";
  return `The service, or a proxy before it, answered ${`${status} ${statusText}`.trim()}. ${next}`;
}

/**
 * The same, which is tried again for as long as the service says that it has no room for it yet.
 *
 * @param {Sent} request
 * @param {AbortSignal | undefined} signal ends it
 * @param {() => void} waits is called before each further try
 */
export async function sentUntilTaken(request, signal, waits) {
  for (;;)
    try {
      return await sent(request, signal);
    } catch (error) {
      if (!error.retryAfterS) throw error;
      waits();
      await new Promise((resolve) => setTimeout(resolve, error.retryAfterS * 1000));
      signal?.throwIfAborted();
    }
}

/** An answer of the service; empty if it is that of something else, such as a proxy. */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}
