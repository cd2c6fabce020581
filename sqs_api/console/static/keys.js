// Access keys: their table, and the secret of a new one, which is shown once.

import { post } from "./api.js";
import * as commands from "./commands.js";
import { button, command, confirmed, el, field, fill, notice, row, table } from "./dom.js";
import { instant } from "./format.js";

const COLUMNS = [["Access key", "name"], ["State", ""], ["Created", "wide"], ["Last used", "wide"],
  ["Actions", ""]];
const ACCOUNT = ["Account", "wide"];

/** The keys with what may be done to them; `read` shows the outcome. */
export function keyTable(keys, { read, fail, withAccount = false }) {
  if (keys.length === 0) return el("p", { class: "empty" }, "There are no keys.");
  const columns = withAccount ? [...COLUMNS.slice(0, 1), ACCOUNT, ...COLUMNS.slice(1)] : COLUMNS;
  return table(columns, keys.map((key) => keyRow(columns, key, withAccount, act)), "Access keys");

  async function act(path, content, said) {
    try {
      await post(path, content);
      notice(said);
      await read();
    } catch (error) {
      fail(error);
    }
  }
}

function keyRow(columns, key, withAccount, act) {
  const id = key.access_key_id;
  const enable = (enabled) => act("access-keys/enable", { access_key_id: id, enabled },
    `${id} is ${enabled ? "enabled" : "disabled"}.`);
  const disable = async () => {
    const text = "Requests that it signs are refused from now on. It can be enabled again.";
    if (await confirmed(`Disable ${id}?`, text, "Disable")) await enable(false);
  };
  const remove = async () => {
    const text = "Requests that it signs are refused from now on. It cannot be brought back.";
    if (await confirmed(`Delete ${id}?`, text, "Delete", id))
      await act("access-keys/remove", { access_key_id: id }, `${id} is deleted.`);
  };
  return row(columns, [
    el("code", {}, id),
    ...(withAccount ? [key.account] : []),
    el("span", { class: key.is_enabled && !key.has_expired ? "" : "urgent" }, stateOf(key)),
    instant(key.created_at_ms),
    key.last_used_on ?? "no use known",
    el("span", { class: "actions" },
      key.is_enabled
        ? button("Disable", disable, { "aria-label": `Disable ${id}` })
        : button("Enable", () => enable(true), { "aria-label": `Enable ${id}` }),
      button("Delete", remove, { class: "danger", "aria-label": `Delete ${id}` })),
  ]);
}

function stateOf(key) {
  const kind = key.is_temporary ? "temporary, " : "";
  if (!key.is_enabled) return `${kind}disabled`;
  if (key.expires_at_ms === null) return `${kind}enabled`;
  return `${kind}${key.has_expired ? "expired" : "expires"} ${instant(key.expires_at_ms)}`;
}

/** Ask for how long, make the key, and show its secret in `place` until it is put away. */
export function newKey(place, { account, user }, read, fail) {
  const days = el("input", { name: "days", type: "number", min: "1", max: "36500" });
  const same = el("div");
  const show = () => fill(same, command(commands.addKey(account, user, days.value)));
  const onsubmit = async (event) => {
    event.preventDefault();
    try {
      const lifetime = days.value ? Number(days.value) * 86400 : null;
      const made = await post("access-keys", { account, user, expires_in_s: lifetime });
      showSecret(place, made);
      await read();
    } catch (error) {
      fail(error);
    }
  };
  show();
  fill(place, el(
    "form",
    { class: "panel", onsubmit, oninput: show, "aria-label": "New access key" },
    el("h2", {}, `New access key of ${user ?? `account ${account}`}`),
    el("div", { class: "search" }, field("Valid for days, empty: without end", days),
      button("Make key", () => {}, { type: "submit", class: "main" }),
      button("Cancel", () => fill(place))),
    same,
  ));
  days.focus();
}

function showSecret(place, made) {
  const text = `export AWS_ACCESS_KEY_ID=${made.access_key_id}\n`
    + `export AWS_SECRET_ACCESS_KEY=${made.secret_access_key}`;
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    notice("Copied.");
  };
  const copying = button("Copy", copy, { class: "main" });
  fill(place, el(
    "section",
    { class: "panel", "aria-label": "The new access key" },
    el("h2", {}, "The new access key"),
    el("p", { class: "notice warning", role: "alert" },
      "The secret is shown this once: it cannot be read again."),
    el("pre", { tabindex: "0" }, text),
    el("p", { class: "actions" }, copying, button("I have it", () => fill(place))),
  ));
  copying.focus();
}
