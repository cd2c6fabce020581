// Signature Version 4 with WebCrypto, for requests of this page. The secret does not leave it.

const encoder = new TextEncoder();
const HEX = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, "0"));

function hex(buffer) {
  return Array.from(new Uint8Array(buffer), (byte) => HEX[byte]).join("");
}

async function sha256(text) {
  return hex(await crypto.subtle.digest("SHA-256", encoder.encode(text)));
}

async function hmac(secret, text) {
  const algorithm = { name: "HMAC", hash: "SHA-256" };
  const key = await crypto.subtle.importKey("raw", secret, algorithm, false, ["sign"]);
  return crypto.subtle.sign("HMAC", key, encoder.encode(text));
}

/** Percent-encoding as RFC 3986 has it, which leaves less than encodeURIComponent does. */
export function encoded(text) {
  return encodeURIComponent(text).replace(
    /[!'()*]/g,
    (each) => `%${each.charCodeAt(0).toString(16).toUpperCase()}`,
  );
}

/** Parameters as a query, in the order in which they are signed. */
export function queryOf(parameters) {
  const pairs = Object.entries(parameters).map(([name, value]) => [encoded(name), encoded(value)]);
  pairs.sort(([one], [other]) => (one < other ? -1 : 1));
  return pairs.map((pair) => pair.join("=")).join("&");
}

async function signingKey(secret, date, region, service) {
  /** @type {BufferSource} */
  let key = encoder.encode(`AWS4${secret}`);
  for (const part of [date, region, service, "aws4_request"]) key = await hmac(key, part);
  return key;
}

/**
 * Headers of a signed request: those given, the date, the session token and the authorization.
 *
 * `key` has accessKeyId, secret, region and perhaps sessionToken; `query` comes from `queryOf`.
 */
export async function signedHeaders(key, request, now, service = "sqs") {
  const { method, host, path, query, headers, body } = request;
  const time = now.toISOString().replace(/[:-]|\.\d{3}/g, "");
  const sent = { ...headers, "x-amz-date": time };
  if (key.sessionToken) sent["x-amz-security-token"] = key.sessionToken;
  const signed = { ...sent, host };
  const names = Object.keys(signed).sort();
  const canonical = [
    method,
    path.split("/").map(encoded).join("/"),
    query,
    ...names.map((name) => `${name}:${signed[name].trim().replace(/ +/g, " ")}`),
    "",
    names.join(";"),
    await sha256(body),
  ].join("\n");
  const scope = `${time.slice(0, 8)}/${key.region}/${service}/aws4_request`;
  const text = ["AWS4-HMAC-SHA256", time, scope, await sha256(canonical)].join("\n");
  const secret = await signingKey(key.secret, time.slice(0, 8), key.region, service);
  const signature = hex(await hmac(secret, text));
  const claim = `Credential=${key.accessKeyId}/${scope}, SignedHeaders=${names.join(";")}`;
  return { ...sent, authorization: `AWS4-HMAC-SHA256 ${claim}, Signature=${signature}` };
}
