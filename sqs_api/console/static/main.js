// The console's start: finds the screen of the address and shows it.

import { get } from "./api.js";
import { button, el, fill, notice } from "./dom.js";
import { isOpen, showSignIn, signOut } from "./session.js";
import { showAudit } from "./audit.js";
import { showDeadLetters } from "./dead_letters.js";
import { showGroups } from "./groups.js";
import { showHosts } from "./hosts.js";
import { showMessage } from "./message.js";
import { showMessages } from "./messages.js";
import { showQueue } from "./queue.js";
import { showEdit } from "./queue_edit.js";
import { showQueues } from "./queues.js";
import { showRedrive } from "./redrive.js";
import { showResend } from "./resend.js";
import { showSend } from "./send.js";
import { showUser } from "./user.js";
import { showUsers } from "./users.js";

const NAME = "([A-Za-z0-9_.-]+)";
const SCREENS = [
  ["/queues", showQueues],
  ["/dead-letters", showDeadLetters],
  ["/audit", showAudit],
  [`/queues/${NAME}`, showQueue],
  ["/hosts", showHosts],
  ["/users", showUsers],
  ["/users/([0-9]{12})/([^/]+)", showUser],
  [`/queues/${NAME}/groups`, showGroups],
  [`/queues/${NAME}/edit`, showEdit],
  [`/queues/${NAME}/send`, showSend],
  [`/queues/${NAME}/messages`, showMessages],
  [`/queues/${NAME}/messages/([0-9]+)`, showMessage],
  [`/queues/${NAME}/messages/([0-9]+)/resend`, showResend],
  [`/queues/${NAME}/redrive`, showRedrive],
].map(([path, show]) => [new RegExp(`^${path}$`), show]);

const view = document.getElementById("view");
let shown = new AbortController();

async function show() {
  shown.abort();
  shown = new AbortController();
  const { signal } = shown;
  const [path, query] = (location.hash.slice(1) || "/queues").split("?");
  const found = SCREENS.map(([pattern, screen]) => [path.match(pattern), screen]);
  const [match, screen] = found.find(([each]) => each) ?? [["", ""], showQueues];
  for (const each of document.querySelectorAll("nav a"))
    if (path.startsWith(each.hash.slice(1))) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  try {
    await showCaller();
    await screen({ view, parts: match.slice(1), query: new URLSearchParams(query), signal, fail });
  } catch (error) {
    fail(error);
  }
}

/** Show why something did not work. */
function fail(error) {
  if (error.name === "AbortError") return;
  if (error.needsSignIn) {
    shown.abort();
    signOut();
    fill(document.getElementById("caller"));
    showSignIn(view, error.message, showAnew);
  } else if (view.childElementCount === 0 || error.status === 404) {
    fill(view, el("h1", {}, "This cannot be shown"), el("p", { role: "alert" }, error.message));
  } else {
    notice(error.message, "error");
  }
}

async function showCaller() {
  const place = document.getElementById("caller");
  if (place.childElementCount) return;
  const caller = await get("caller");
  const leave = () => {
    signOut();
    fill(place);
    show();
  };
  fill(
    place,
    el("span", { title: "account and region" }, `${caller.account} · ${caller.region}`),
    el("span", {}, isOpen ? "open mode" : (caller.user ?? "root")),
    !isOpen && button("Sign out", leave),
  );
}

function showAnew() {
  for (const dialog of document.querySelectorAll("dialog")) dialog.remove();
  fill(view);
  show();
}

addEventListener("hashchange", showAnew);
addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, textarea, select");
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey) {
    const search = view.querySelector("input[type=search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  }
});
show();
