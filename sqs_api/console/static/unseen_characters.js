// Characters that one cannot see, such as controls, zero-width and those that turn the direction of
// writing, are named where a message is shown: two values that look alike may differ by one.

import { el } from "./dom.js";

const NAMED_MAX = 1000;
const LETTER = /^(\t|\n|\r\n)$/;
const PICTURE = "\\p{Extended_Pictographic}(?:\\p{Emoji_Modifier}|\\uFE0F)?";
/** Whole pictures and ends of lines, which are as they should be; else a character that is not seen. */
const FOUND = new RegExp(`${PICTURE}(?:\\u200D${PICTURE})*|\\r\\n|[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}\\p{Default_Ignorable_Code_Point}]`, "gu");
const UNSEEN = /^[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]$/u;
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
  for (const { 0: found, index } of text.matchAll(FOUND)) {
    if (LETTER.test(found) || !UNSEEN.test(found)) continue;
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

/** A text to be shown; null stays null. @returns {any} */
export function shownText(/** @type {string | null | undefined} */ text) {
  if (!text) return text;
  return partsOf(text).map(({ text: part, name }) => (name ? el("span", { class: "unseen-character", title: name }, part) : part));
}
