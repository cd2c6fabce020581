// The places above a screen, from its address.

import { fill, el, link } from "./dom.js";

/** @type {Record<string, string>} */
const LISTS = { queues: "Queues", archive: "Archive", users: "Users" };
/** @type {Record<string, string>} */
const PARTS = { messages: "Messages", edit: "Edit", send: "Send", tail: "Live tail", redrive: "Redrive", resend: "Edit and resend",
  replay: "Replay" };

/**
 * Text and address of each place above a screen, and of the screen itself, which has no address.
 * A list is its own heading: it has none.
 *
 * @returns {[text: string, address: string][]}
 */
export function crumbsOf(/** @type {string} */ path) {
  const [list, ...parts] = path.slice(1).split("/");
  if (!LISTS[list] || parts.length === 0) return [];
  /** @type {[string, string][]} */
  const crumbs = [[LISTS[list], `#/${list}`]];
  let address = `#/${list}`;
  parts.forEach((part, at) => {
    address += `/${part}`;
    if (list === "users" && at === 0) return; // an account has no screen
    crumbs.push([PARTS[part] && at > 0 ? PARTS[part] : decodeURIComponent(part), address]);
  });
  crumbs[crumbs.length - 1][1] = "";
  return crumbs;
}

/** Show them in a place, which is hidden on a list. */
export function showCrumbs(/** @type {HTMLElement} */ place, /** @type {string} */ path) {
  const crumbs = crumbsOf(path);
  place.hidden = crumbs.length === 0;
  fill(place, el("ol", {}, crumbs.map(([text, address]) =>
    el("li", {}, address ? link(text, address) : el("span", { "aria-current": "page" }, text)))));
}
