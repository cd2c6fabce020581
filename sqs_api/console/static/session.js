// Signing in: the page signs a challenge with the access key, and the browser keeps a cookie that no
// script can read. The key is forgotten at once.

import { button, el, field, fill, form, submit } from "./dom.js";
import { signedHeaders } from "./signing.js";
import { sent } from "./wire.js";

function setting(name) {
  return document.querySelector(`meta[name="holdfast-${name}"]`)?.getAttribute("content") ?? "";
}

export const isOpen = setting("auth") === "open";
const issuer = setting("issuer");
/** What came of a way to the provider; the service sends back one of these. */
const OUTCOMES = {
  away: "The provider does not answer: try again, or use an access key.",
  busy: "Too many browsers sign in: try again in a moment.",
  records: "The service cannot read its records: try again in a moment.",
  refused: "The sign-in was refused. The log of the service has the reason.",
  role: "You have no role here: ask whoever runs this service.",
};
const PLACE = "holdfast-place";
/** @type {BroadcastChannel | null} */
let channel = null;
/** Tells the other tabs of a new session. */
const tabs = () => (channel ??= new BroadcastChannel("holdfast-session"));
/** @type {Schemas["ShownCaller"] | null} the one that this tab's screens were made for */
let who = null;
/** @type {Promise<void> | null} while the user is asked to sign in again */
let asking = null;

export function signedInAs(/** @type {Schemas["ShownCaller"]} */ caller) {
  who = caller;
  return caller;
}

/** End the session of this browser. */
export async function signOut() {
  if (who?.session) {
    const body = JSON.stringify({ session: who.session });
    await sent({ method: "POST", path: "sessions/end", body });
  }
  who = null;
}

/** Forget who was signed in: the session has ended. */
export function forgetSession() {
  who = null;
}

async function signIn(key) {
  const { challenge, now_ms: nowMs } = await sent({ method: "GET", path: "sessions/challenge" });
  const request = { method: "POST", path: "sessions", body: JSON.stringify({ challenge }) };
  await sent(request, undefined, (whole) => signedHeaders(key, whole, new Date(nowMs)));
  tabs().postMessage("signed in");
}

// -- forms -----------------------------------------------------------------------------------------

/** Ask for an access key; `then` is called once it has signed in. */
export function showSignIn(view, reason, then) {
  if (!globalThis.crypto?.subtle) {
    fill(
      view,
      el("h1", {}, "Open the console by https"),
      el("p", {}, "Browsers sign on pages of https or of this machine only. Without TLS, forward "
        + "a port: ssh -L 9324:localhost:9324 HOST, and open http://localhost:9324."),
    );
    return;
  }
  const toProvider = () => {
    sessionStorage.setItem(PLACE, location.hash);
    location.assign("/_holdfast/sign-in");
  };
  const made = keyForm(el("h1", {}, "Sign in"), reason || outcome, setting("region"), done);
  outcome = "";
  fill(view, providerButton(toProvider, "main"), made.place);
  if (!issuer) made.focus();
  tabs().onmessage = done;

  function done() {
    tabs().onmessage = null;
    then();
  }
}

/** A way to the provider, if there is one. */
function providerButton(onclick, kind = "") {
  if (!issuer) return "";
  const name = `Sign in with ${new URL(issuer).host}`;
  return el("div", { class: "provider" }, button(name, onclick, { class: kind }));
}

let outcome = "";

/** Read what came of a way to the provider, and go on at the place where it began. */
export function returnFromProvider() {
  const said = new URLSearchParams(location.search).get("sign_in");
  if (said === null) return;
  outcome = OUTCOMES[said] ?? "";
  const place = sessionStorage.getItem(PLACE) ?? location.hash;
  sessionStorage.removeItem(PLACE);
  history.replaceState(null, "", location.pathname + place);
  if (said === "done") tabs().postMessage("signed in");
}

/** What AWS's sentence about a key says to someone who has just typed it. */
function refusalText(/** @type {string} */ reason, /** @type {string} */ id) {
  if (/^The security token .* invalid/.test(reason)) return `No access key ${id} is in use here, or not with this session token.`;
  if (reason.startsWith("The request signature we calculated")) return `This is not the secret of ${id}.`;
  return reason;
}

/** A form for an access key. `then` is called once it has signed in. */
function keyForm(title, reason, usedRegion, then, ...more) {
  const text = (properties = {}) =>
    el("input", { required: true, autocomplete: "off", spellcheck: "false", ...properties });
  const id = text({ name: "access-key-id", autocomplete: "username" });
  const secret = text({ type: "password", name: "secret", autocomplete: "current-password" });
  const token = text({ name: "session-token", required: false });
  const region = text({ name: "region", value: usedRegion });
  const refusal = el("p", { class: "notice error", role: "alert", hidden: !reason }, reason);

  async function onsubmit() {
    try {
      await signIn({
        accessKeyId: id.value.trim(),
        secret: secret.value.trim(),
        sessionToken: token.value.trim() || null,
        region: region.value.trim(),
      });
    } catch (error) {
      refusal.textContent = refusalText(error.message, id.value.trim());
      refusal.hidden = false;
      return;
    }
    secret.value = "";
    then();
  }

  const place = form(
    { class: "sign-in panel", onsubmit },
    title,
    refusal,
    field("Access key id", id),
    field("Secret access key", secret),
    field("Session token, for temporary keys", token),
    field("Region", region),
    el("p", { class: "actions" }, submit("Sign in", { busy: "Signing in …" }), more),
    el("p", { class: "hint" }, "The secret stays in this page: it signs a challenge, and is not sent. "
      + "You stay signed in for eight hours, in all tabs."),
  );
  return { place, focus: () => id.focus() };
}

// -- a session that ends ---------------------------------------------------------------------------

/**
 * Wait until the user of these screens has signed in again, over the screen, which keeps what was
 * typed. Throws the `refusal` if nobody was signed in, or does not want to. For another user, or
 * other rights, the page begins anew.
 */
export function signedInAgain(refusal) {
  if (who === null) throw refusal;
  asking ??= askAgain(who, refusal).finally(() => (asking = null));
  return asking;
}

function askAgain(before, refusal) {
  return new Promise((resolve, reject) => {
    const leave = button("Leave this screen", () => close(() => reject(refusal)));
    const reason = `${refusal.message || "Your session has ended: sign in again."} What you typed is kept.`;
    const made = keyForm(el("h2", {}, "Sign in again"), reason, before.region, look, leave);
    const toProvider = () => open("/_holdfast/sign-in", "_blank", "noopener"); // this tab keeps what was typed
    const dialog = el("dialog", { class: "again", oncancel: (event) => event.preventDefault() },
      providerButton(toProvider, "main"), made.place);

    function close(then) {
      tabs().onmessage = null;
      dialog.close();
      dialog.remove();
      then();
    }

    async function look() {
      const now = await sent({ method: "GET", path: "caller" }).catch(() => null);
      if (now === null) return;
      const isSame = ["account", "region", "user", "may"].every((each) => `${now[each]}` === `${before[each]}`);
      if (isSame) close(() => resolve(void signedInAs(now)));
      else location.reload();
    }

    tabs().onmessage = look;
    document.body.append(dialog);
    dialog.showModal();
    made.focus();
  });
}
