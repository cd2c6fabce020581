// Characters that one cannot see, such as controls, zero-width and those that turn the direction of
// writing, are named where a message is shown: two values that look alike may differ by one.

import { el } from "./dom.js";

const NAMED_MAX = 1000;
const PICTURE = "\\p{Extended_Pictographic}(?:\\p{Emoji_Modifier}|\\uFE0F)?";
const KEY = "[0-9#*]\\uFE0F?\\u20E3";
const FLAG = "\\u{1F3F4}[\\u{E0020}-\\u{E007E}]+\\u{E007F}";
/** Scripts whose letters are joined, or not, by what stands between them. */
const JOINED = `[${["Arabic", "Syriac", "Mongolian", "Devanagari", "Bengali", "Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu", "Kannada", "Malayalam",
  "Sinhala"].map((name) => `\\p{Script=${name}}`).join("")}]`;
/** Signs that one sees although they stand with those that one does not. */
const SIGNS = "[\\u0600-\\u0605\\u06DD\\u070F\\u08E2\\u{110BD}]";
/** What is as it should be: ends of lines, whole pictures, joined letters; else a character that is not seen. */
const FOUND = new RegExp([FLAG, KEY, `${PICTURE}(?:\\u200D${PICTURE})*`, `${JOINED}[\\u200C\\u200D](?=${JOINED})`, `${SIGNS}+`, "\\t|\\r?\\n",
  "(?<unseen>[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}\\p{Default_Ignorable_Code_Point}])"].join("|"), "gu");
/** @type {Record<string, string>} */
const NAMES = {
  "U+00AD": "soft hyphen", "U+061C": "Arabic letter mark", "U+200B": "zero-width space", "U+200C": "zero-width non-joiner",
  "U+200D": "zero-width joiner", "U+200E": "left-to-right mark", "U+200F": "right-to-left mark", "U+2028": "line separator",
  "U+2029": "paragraph separator", "U+202A": "left-to-right embedding", "U+202B": "right-to-left embedding",
  "U+202C": "end of a direction", "U+202D": "left-to-right override", "U+202E": "right-to-left override",
  "U+2060": "word joiner", "U+2066": "left-to-right isolate", "U+2067": "right-to-left isolate",
  "U+2068": "first strong isolate", "U+2069": "end of an isolate", "U+FEFF": "byte order mark",
};

/** A text in parts: those that are seen, and each character that is not, by its number. @returns {{text: string, name: string}[]} */
export function partsOf(/** @type {string} */ text) {
  /** @type {{text: string, name: string}[]} */
  const parts = [];
  let at = 0;
  for (const { 0: found, index, groups } of text.matchAll(FOUND)) {
    if (!groups?.unseen) continue;
    if (parts.length > NAMED_MAX) {
      parts.push({ text: "…", name: "Characters that are not seen are not named from here on: there are too many." });
      break;
    }
    if (index > at) parts.push({ text: text.slice(at, index), name: "" });
    const number = `U+${(found.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`;
    parts.push({ text: number, name: NAMES[number] ?? (/\p{Cc}/u.test(found) ? "control character" : "character that is not seen") });
    at = index + found.length;
  }
  return at < text.length ? [...parts, { text: text.slice(at), name: "" }] : parts;
}

/** The kinds of them in a text, each named once, and the place of the first; null if there is none. */
export function unseenIn(/** @type {string} */ text) {
  const parts = partsOf(text);
  const first = parts.findIndex(({ name }) => name);
  if (first < 0) return null;
  const names = new Set(parts.flatMap(({ text: part, name }) => (name && part !== "…" ? `${part} (${name})` : [])));
  return { at: first === 0 ? 0 : parts[0].text.length, names: [...names] };
}

/** A text to be shown; null stays null. @returns {any} */
export function shownText(/** @type {string | null | undefined} */ text) {
  if (!text) return text;
  return partsOf(text).map(({ text: part, name }) => (name ? el("span", { class: "unseen-character", title: name }, part) : part));
}
