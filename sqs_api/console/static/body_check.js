// What is wrong with a body before it is sent: what the service would refuse, and JSON that ends
// being JSON. Each with its place.

/** @typedef {{at: number, text: string}} Fault the place in the text, and a sentence */

const BLANKS = /[ \t\n\r]*/y;
const WORD = /(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)(?![\w.+-])/y;
const ESCAPE = /\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})/y;

/** The first place at which a text is no JSON; null if it is. @returns {Fault | null} */
export function jsonFault(/** @type {string} */ text) {
  let at = 0;
  const fault = (what) => Object.assign(new Error(), { fault: { at: Math.min(at, text.length), text: what } });
  const next = (/** @type {RegExp} */ pattern) => {
    pattern.lastIndex = at;
    return pattern.exec(text)?.[0] ?? "";
  };

  function value() {
    blanks();
    if (text[at] === "{") return list("}", pair);
    if (text[at] === "[") return list("]", value);
    if (text[at] === '"') return string();
    const word = next(WORD);
    if (!word) throw fault(at >= text.length ? "A value is expected: the text ends." : "A value is expected: a text stands in double quotes.");
    at += word.length;
  }

  function blanks() {
    at += next(BLANKS).length;
  }

  function list(end, item) {
    at += 1;
    blanks();
    if (text[at] === end) {
      at += 1;
      return;
    }
    if (end === "}" && text[at] !== '"') throw fault("A name in quotes or } is expected.");
    for (;;) {
      item();
      blanks();
      if (text[at] === end) break;
      if (text[at] !== ",") throw fault(`A comma or ${end} is expected.`);
      at += 1;
      blanks();
      if (text[at] === end) throw fault(`A comma before ${end} is one too many.`);
    }
    at += 1;
  }

  function pair() {
    blanks();
    if (text[at] !== '"') throw fault("A name in double quotes is expected.");
    string();
    blanks();
    if (text[at] !== ":") throw fault("A colon is expected.");
    at += 1;
    value();
  }

  function string() {
    const begin = at;
    for (at += 1; text[at] !== '"'; at += 1) {
      if (at >= text.length) {
        at = begin;
        throw fault("The quotes of this text are not closed.");
      }
      if (text[at] < " ") throw fault("A text has no line break or tab: write \\n or \\t.");
      if (text[at] !== "\\") continue;
      if (!next(ESCAPE)) throw fault("This is no escape: write \\\\ for a backslash.");
      at += 1;
    }
    at += 1;
  }

  try {
    value();
    blanks();
    if (at < text.length) throw fault("Nothing more is expected here.");
    return null;
  } catch (error) {
    if (error instanceof RangeError) return { at: 0, text: "It is too deep to be checked." };
    return error.fault;
  }
}

/** What the service refuses in a body of a queue that takes `max` bytes with `others` of attributes. @returns {Fault | null} */
export function refusal(/** @type {string} */ text, /** @type {number} */ max, others = 0) {
  if (text === "") return { at: 0, text: "A message has a body." };
  const strange = /[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/u.exec(text);
  if (strange) {
    const code = strange[0].codePointAt(0)?.toString(16).toUpperCase().padStart(4, "0");
    return { at: strange.index, text: `The character U+${code} may not be in a message.` };
  }
  const size = bytesOf(text) + others;
  if (size <= max) return null;
  return { at: text.length, text: `The message has ${(size - max).toLocaleString("en")} bytes more than the ${max.toLocaleString("en")} that the queue takes.` };
}

export function bytesOf(/** @type {string} */ text) {
  return new TextEncoder().encode(text).length;
}

/** Such as "line 3, column 5". */
export function placeText(/** @type {string} */ text, /** @type {number} */ at) {
  const lines = text.slice(0, at).split("\n");
  return `line ${lines.length}, column ${(lines.at(-1) ?? "").length + 1}`;
}
