// What tells failures apart: the attribute, or field of JSON bodies, that looks like an error's name.

const DEEPEST = 3;
const NAMED = [/error|exception|fault|failure|cause/i, /reason|code|type|kind|status/i];
const COVERED = 0.5; // of the messages must have it

/**
 * The best grouping of these messages, such as "json:error.type"; "source" if nothing in them looks
 * like an error. What differs in nearly each message, such as an id, tells no failures apart.
 *
 * @param {{body: string | null, attributes: Record<string, {value?: string}>}[]} messages
 */
export function fingerprintOf(messages) {
  /** @type {Map<string, Map<string, number>>} */
  const values = new Map(); // how often each value was seen, by what has it
  const add = (by, value) => {
    const seen = values.get(by) ?? new Map();
    seen.set(String(value), (seen.get(String(value)) ?? 0) + 1);
    values.set(by, seen);
  };
  for (const { body, attributes } of messages) {
    for (const [name, { value }] of Object.entries(attributes))
      if (value !== undefined) add(`attribute:${name}`, value);
    for (const [path, value] of leaves(parsed(body), "", 1)) add(`json:${path}`, value);
  }
  const found = [...values].map(([by, seen]) => ({ by, score: scoreOf(by, seen, messages.length) }))
    .filter(({ score }) => score > 0);
  found.sort((one, other) => other.score - one.score || one.by.length - other.by.length);
  return found[0]?.by ?? "source";
}

function scoreOf(by, seen, total) {
  const having = [...seen.values()].reduce((sum, each) => sum + each, 0);
  if (having < total * COVERED || (seen.size > 3 && seen.size > having / 2)) return 0;
  const [, path] = by.split(/:(.*)/s);
  const [strong, weak] = NAMED.map((pattern) => pattern.test(path));
  return (strong ? 4 : 0) + (weak ? 2 : 0) + (strong || weak ? having / total : 0);
}

function parsed(body) {
  try {
    return JSON.parse(body ?? "");
  } catch {
    return null;
  }
}

/** Paths that the filter of messages knows, with their texts and numbers. */
function* leaves(value, path, depth) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return;
  for (const [name, inner] of Object.entries(value)) {
    if (!/^[\w-]+$/.test(name)) continue;
    const at = path ? `${path}.${name}` : name;
    if (typeof inner === "string" || typeof inner === "number") yield [at, inner];
    else if (depth < DEEPEST) yield* leaves(inner, at, depth + 1);
  }
}
