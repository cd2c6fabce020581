// The console's start: finds the screen of the address and shows it.

import { addressOf } from "./address.js";
import { caller, forgetCaller } from "./api.js";
import { showCrumbs } from "./crumbs.js";
import { button, el, fill, link, notice } from "./dom.js";
import { forgetSession, isOpen, returnFromProvider, showSignIn, signOut } from "./session.js";
import { isOutdated, Refused } from "./wire.js";

const NAME = "([A-Za-z0-9_.-]+)";
/**
 * Module and function by address. A module is loaded when it is first shown: the first page stays small.
 *
 * @type {[pattern: RegExp, file: string, name: string][]}
 */
const SCREENS = [
  ["/queues", "queues", "showQueues"],
  ["/dead-letters", "dead_letters", "showDeadLetters"],
  ["/redrives", "all_redrives", "showAllRedrives"],
  ["/new-queue", "new_queue", "showNewQueue"],
  ["/audit", "audit", "showAudit"],
  ["/archive", "archive", "chooseArchive"],
  [`/archive/${NAME}`, "archive", "showArchive"],
  [`/archive/${NAME}/replay`, "replay", "showReplay"],
  [`/archive/${NAME}/([0-9]+[.][^/]+)`, "archive", "showArchived"],
  [`/queues/${NAME}`, "queue", "showQueue"],
  ["/hosts", "hosts", "showHosts"],
  ["/fleet", "fleet", "showFleet"],
  ["/api", "api_reference", "showApi"],
  ["/sessions", "sessions", "showSessions"],
  ["/users", "users", "showUsers"],
  ["/users/([0-9]{12})/([^/]+)", "user", "showUser"],
  [`/queues/${NAME}/edit`, "queue_edit", "showEdit"],
  [`/queues/${NAME}/send`, "send", "showSend"],
  [`/queues/${NAME}/tail`, "tail", "showTail"],
  [`/queues/${NAME}/messages`, "messages", "showMessages"],
  [`/queues/${NAME}/messages/([0-9]+)`, "message", "showMessage"],
  [`/queues/${NAME}/messages/([0-9]+)/resend`, "resend", "showResend"],
  [`/queues/${NAME}/redrive`, "redrive", "showRedrive"],
].map(([path, file, name]) => [new RegExp(`^${path}$`), file, name]);

const WATCH_AFTER_MS = 3000;
const view = /** @type {HTMLElement} */ (document.getElementById("view"));
const place = /** @type {HTMLElement} */ (document.getElementById("caller"));
const links = /** @type {NodeListOf<HTMLAnchorElement>} */ (document.querySelectorAll("header nav a"));
const crumbs = /** @type {HTMLElement} */ (document.getElementById("crumbs"));
const finder = /** @type {HTMLElement} */ (document.getElementById("finder"));
let shown = new AbortController();
let shownPath = "";
let isFirst = true;
let watching = new AbortController(); // looks after redrives, on all screens of a session

function pathOf(hash) {
  return hash.slice(1).split("?")[0] || "/queues";
}

// -- places ------------------------------------------------------------------------------------------

history.scrollRestoration = "manual"; // the content comes later than the browser thinks

/** Each place in the browser's history keeps how far it was scrolled. */
function keepScroll() {
  if (pathOf(location.hash) !== shownPath) return; // this was scrolled on the screen before
  history.replaceState({ ...history.state, scroll: scrollY }, "");
}

/** Scroll to where this place was left, as soon as there is enough content. */
function restoreScroll(signal) {
  const wanted = history.state?.scroll ?? 0;
  const reach = () => {
    if (signal.aborted || document.documentElement.scrollHeight >= wanted + innerHeight) watching.disconnect();
    if (!signal.aborted) scrollTo(0, wanted);
  };
  const watching = new ResizeObserver(reach);
  for (const event of ["wheel", "touchmove", "keydown"]) // who scrolls is left alone
    addEventListener(event, () => watching.disconnect(), { once: true, signal, passive: true });
  watching.observe(view);
  reach();
}

/** Title and focus follow the heading of a screen that was navigated to. */
new MutationObserver(() => {
  const heading = view.querySelector("h1");
  if (!heading || heading.dataset.isNamed) return;
  heading.dataset.isNamed = "true";
  document.title = `${heading.textContent} · Holdfast`;
  heading.tabIndex = -1;
  if (!isFirst && document.activeElement === document.body) heading.focus({ preventScroll: true });
  isFirst = false;
}).observe(view, { childList: true, subtree: true });

// -- screens -----------------------------------------------------------------------------------------

async function show() {
  shown.abort();
  shown = new AbortController();
  const { signal } = shown;
  const [path, query] = (location.hash.slice(1) || "/queues").split("?");
  const [pattern, file, name] = SCREENS.find(([each]) => each.test(path)) ?? SCREENS[0];
  for (const each of links)
    if (path.startsWith(each.hash.slice(1))) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  showLink();
  shownPath = pathOf(location.hash);
  showCrumbs(crumbs, shownPath);
  restoreScroll(signal);
  try {
    const [{ [name]: screen }] = await Promise.all([import(`./${file}.js`).catch(notLoaded), showCaller()]);
    if (signal.aborted) return;
    const parts = path.match(pattern)?.slice(1) ?? [];
    await screen({ view, parts, query: new URLSearchParams(query), signal, fail: failed });
  } catch (error) {
    failed(error);
  }

  /** What fails late leaves the screen alone that was opened since. */
  function failed(error) {
    if (!signal.aborted || error.needsSignIn) fail(error);
    else if (error.name !== "AbortError") notice(error.message, "error");
  }
}

/** A module that does not come: the browser's words say less. */
function notLoaded(error) {
  throw error instanceof TypeError ? new Refused("The service does not answer.", 0) : error;
}

/** On a phone the links are a line that scrolls. */
function showLink() {
  const current = /** @type {HTMLElement | null} */ (document.querySelector("header nav a[aria-current]"));
  const line = current?.parentElement;
  if (line) line.scrollLeft = current.offsetLeft - line.offsetLeft - line.clientWidth / 3;
}

/** Show why something did not work. */
function fail(error) {
  if (error.name === "AbortError") return;
  if (error.needsSignIn) {
    shown.abort();
    leave();
    showSignIn(view, error.message, showAnew);
  } else if (view.childElementCount === 0 || error.endsScreen) { // what is refused else leaves what was typed
    const isLost = error.code === "AWS.SimpleQueueService.NonExistentQueue";
    fill(view, el("h1", {}, "This cannot be shown"), el("p", { role: "alert" }, error.message),
      isLost && el("p", {}, "A queue that was deleted lately can be brought back: see ",
        link("Recently deleted", "#/queues"), ", below all queues. ", whoDeleted()),
      el("p", { class: "actions" }, button("Try again", showAnew), link("All queues", "#/queues", { class: "button" })));
  } else {
    notice(error.message, "error");
  }
}

/** The lines of the audit log about the end of the queue of this address, for those who may see them. */
function whoDeleted() {
  const [, queue] = /^[/]queues[/]([^/]+)/.exec(shownPath) ?? [];
  const mayRead = Array.from(links).some((each) => each.hash === "#/audit" && !each.hidden);
  return queue && mayRead && link("Who deleted it?", addressOf("/audit", { queue, action: "DeleteQueue" }));
}

async function showCaller() {
  if (place.childElementCount) return;
  const { account, region, user, may, has_archive: hasArchive } = await caller();
  watchRedrives(may);
  for (const each of links) {
    const { needs = "" } = each.dataset;
    each.hidden = needs === "archive" ? !hasArchive : !may.includes(needs);
  }
  showLink();
  finder.hidden = false;
  setTimeout(() => import("./shortcuts.js").catch(() => null), WATCH_AFTER_MS); // the first key waits for nothing
  fill(
    place,
    el("span", { class: "place", title: "account and region" }, `${account} · ${region}`),
    isOpen ? el("span", {}, "open mode") : link(user ?? "root", "#/sessions", { title: `your sessions in ${account}, ${region}` }),
    link("API", "#/api"),
    !isOpen && button("Sign out", leaveService, { busy: "Signing out …" }),
  );
}

/** Begin to tell about redrives, once the screen is there. */
async function watchRedrives(may) {
  watching.abort();
  watching = new AbortController();
  const { signal } = watching;
  if (!may.includes("holdfast:ListQueues")) return;
  await new Promise((resolve) => setTimeout(resolve, WATCH_AFTER_MS));
  if (signal.aborted) return;
  (await import("./watched_redrives.js").catch(() => null))?.watchRedrives(signal, fail);
}

async function leaveService() {
  try {
    await signOut();
  } catch (error) {
    if (!error.needsSignIn) return fail(error);
  }
  leave();
  show();
}

function leave() {
  watching.abort();
  forgetSession();
  forgetCaller();
  fill(place);
  for (const each of [...links, finder, crumbs]) each.hidden = true;
}

function showAnew() {
  if (isOutdated) location.reload();
  for (const dialog of document.querySelectorAll("dialog")) dialog.remove();
  fill(view);
  show();
}

addEventListener("hashchange", showAnew);
addEventListener("scrollend", keepScroll);
addEventListener("resize", showLink);

// -- keys --------------------------------------------------------------------------------------------

addEventListener("keydown", (event) => {
  const isTyping = event.target instanceof Element && event.target.closest("input:not([type=checkbox]), textarea, select");
  const isCommand = event.ctrlKey || event.metaKey;
  if (isCommand && event.key === "k") press(event, "palette");
  else if (isTyping || isCommand || event.altKey) return;
  else if (["j", "k", "x", "?"].includes(event.key)) press(event, event.key);
  else if (event.key === "/") {
    const search = /** @type {HTMLElement | null} */ (view.querySelector("input[type=search]"));
    if (search) {
      event.preventDefault();
      search.focus();
    }
  }
});
document.querySelector(".skip")?.addEventListener("click", (event) => {
  event.preventDefault(); // its address would be a screen's
  view.focus();
});
finder.addEventListener("click", (event) => press(event, "palette"));

/** Keys are for those who are signed in. Their module is loaded with the first one. */
async function press(/** @type {Event} */ event, /** @type {string} */ key) {
  if (finder.hidden) return;
  event.preventDefault();
  try {
    const { pressed } = await import("./shortcuts.js");
    await pressed(key, view);
  } catch (error) {
    fail(error);
  }
}

returnFromProvider();
show();
