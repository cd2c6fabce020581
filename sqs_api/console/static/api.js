// Requests to the operators' API.

import { isOpen, key } from "./session.js";
import { queryOf, signedHeaders } from "./signing.js";

const API = "/_holdfast/api/";
const NOT_SIGNED_IN = new Set([
  "MissingAuthenticationToken",
  "InvalidClientTokenId",
  "ExpiredToken",
  "SignatureDoesNotMatch",
  "IncompleteSignature",
]);

/** The service refused a request, or was not there. */
export class Refused extends Error {
  constructor(message, status, code) {
    super(message);
    this.status = status;
    this.needsSignIn = NOT_SIGNED_IN.has(code);
  }
}

export function get(path, parameters = {}, signal = undefined) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== "");
  return ask("GET", path, Object.fromEntries(given), "", signal);
}

export function post(path, content) {
  return ask("POST", path, {}, JSON.stringify(content));
}

/** The path of something of a queue. */
export function ofQueue(name, rest = "") {
  return `queues/${encodeURIComponent(name)}${rest}`;
}

async function ask(method, path, parameters, body, signal) {
  const query = queryOf(parameters);
  let headers = {};
  if (method === "POST") {
    headers = { "content-type": "application/json", "x-holdfast-nonce": crypto.randomUUID() };
  }
  if (!isOpen) {
    if (key() === null) throw new Refused("", 403, "MissingAuthenticationToken");
    const request = { method, host: location.host, path: API + path, query, headers, body };
    headers = await signedHeaders(key(), request, new Date());
  }
  const address = API + path + (query && `?${query}`);
  let answer;
  try {
    answer = await fetch(address, { method, headers, body: body || undefined, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The service does not answer.", 0);
  }
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(content.error ?? answer.statusText, answer.status, content.code);
  return content;
}
