// The access key of this tab: kept in sessionStorage, so it is gone when the tab is closed.

import { button, el, field, fill } from "./dom.js";

const STORED_AS = "holdfast-key";

function setting(name) {
  return document.querySelector(`meta[name="holdfast-${name}"]`)?.getAttribute("content") ?? "";
}

export const isOpen = setting("auth") === "open";

export function key() {
  const stored = sessionStorage.getItem(STORED_AS);
  return stored ? JSON.parse(stored) : null;
}

export function signOut() {
  sessionStorage.removeItem(STORED_AS);
}

/** Ask for an access key; `then` is called once it is there. */
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
  const text = (properties = {}) =>
    el("input", { required: true, autocomplete: "off", spellcheck: "false", ...properties });
  const id = text({ name: "access-key-id", autocomplete: "username" });
  const secret = text({ type: "password", name: "secret", autocomplete: "current-password" });
  const token = text({ name: "session-token", required: false });
  const region = text({ name: "region", value: setting("region") });
  const onsubmit = (event) => {
    event.preventDefault();
    const entered = {
      accessKeyId: id.value.trim(),
      secret: secret.value.trim(),
      sessionToken: token.value.trim() || null,
      region: region.value.trim(),
    };
    sessionStorage.setItem(STORED_AS, JSON.stringify(entered));
    then();
  };
  fill(
    view,
    el(
      "form",
      { class: "sign-in panel", onsubmit },
      el("h1", {}, "Sign in"),
      reason && el("p", { class: "notice error", role: "alert" }, reason),
      field("Access key id", id),
      field("Secret access key", secret),
      field("Session token, for temporary keys", token),
      field("Region", region),
      el("p", {}, button("Sign in", () => {}, { type: "submit", class: "main" })),
      el("p", { class: "hint" }, "The secret stays in this tab: it signs requests, and is not sent."),
    ),
  );
  id.focus();
}
