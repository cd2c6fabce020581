// Access keys: their table, and the secret of a new one, which is shown once.
import { post } from "./api.js";
import * as commands from "./commands.js";
import { button, command, copyButton, el, field, fill, form, notice, row, submit, table, time } from "./dom.js";


const COLUMNS = [["Access key", "name"], ["State", ""], ["Created", "wide"], ["Last used", "wide"],
  ["Actions", ""]];
const ACCOUNT = ["Account", "wide"];

/** The keys with what may be done to them; `read` shows the outcome, `place` the secret of a successor. */
export function keyTable(keys, { place, read, fail, mayManage, withAccount = false }) {
  if (keys.length === 0) return el("p", { class: "empty" }, mayManage ? "There are no keys. New key makes one." : "There are no keys.");
  const columns = withAccount ? [...COLUMNS.slice(0, 1), ACCOUNT, ...COLUMNS.slice(1)] : COLUMNS;
  const actionsOf = (key) => mayManage && actions(key, act, replace);
  return table(columns, keys.map((key) => keyRow(columns, key, withAccount, actionsOf)), "Access keys");

  function replace(key) {
    replaceKey(place, key, read, fail);
  }

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

function keyRow(columns, key, withAccount, actionsOf) {
  return row(columns, [
    el("code", {}, key.access_key_id),
    ...(withAccount ? [key.account] : []),
    el("span", { class: key.is_enabled && !key.has_expired ? "" : "urgent" }, stateOf(key)),
    time(key.created_at_ms),
    key.last_used_on ? el("span", { title: "a day of UTC" }, key.last_used_on) : "no use known",
    actionsOf(key),
  ], { "data-key": key.access_key_id });
}

function actions(key, act, replace) {
  const id = key.access_key_id;
  const enable = (enabled) => act("access-keys/enable", { access_key_id: id, enabled },
    `${id} is ${enabled ? "enabled" : "disabled"}.`);
  const refused = "Requests that it signs are refused from now on.";
  const disabling = () => [`Disable ${id}?`, `${refused} It can be enabled again.`, "Disable"];
  const remove = () => act("access-keys/remove", { access_key_id: id }, `${id} is deleted.`);
  const removal = () => [`Delete ${id}?`, `${refused} It cannot be brought back.`, "Delete", id];
  return el("span", { class: "actions" },
    !key.is_temporary && button("Replace", () => replace(key), { "aria-label": `Replace ${id}` }),
    key.is_enabled
      ? button("Disable", () => enable(false),
        { busy: "Disabling …", confirm: disabling, "aria-label": `Disable ${id}` })
      : button("Enable", () => enable(true), { busy: "Enabling …", "aria-label": `Enable ${id}` }),
    button("Delete", remove,
      { busy: "Deleting …", confirm: removal, class: "danger", "aria-label": `Delete ${id}` }));
}

function stateOf(key) {
  const kind = key.is_temporary ? "temporary, " : "";
  if (!key.is_enabled) return `${kind}disabled`;
  if (key.expires_at_ms === null) return `${kind}enabled`;
  return [`${kind}${key.has_expired ? "expired" : "expires"} `, time(key.expires_at_ms)];
}

/** Ask for how long, make the key, and show its secret in `place` until it is put away. */
export function newKey(place, { account, user }, read, fail) {
  const days = el("input", { name: "days", type: "number", min: "1", max: "36500" });
  askForKey(place, {
    name: "New access key",
    title: `New access key of ${user ?? `account ${account}`}`,
    fields: field("Valid for days, empty: without end", days),
    action: "Make key",
    same: () => commands.addKey(account, user, days.value),
    make: () => post("access-keys",
      { account, user, expires_in_s: days.value ? Number(days.value) * 86400 : null }),
  }, read, fail);
  days.focus();
}

/** Make a successor of a key, which stays valid until programs have the new one. */
function replaceKey(place, key, read, fail) {
  const id = key.access_key_id;
  const hours = el("input", { name: "hours", type: "number", min: "0", max: "8760", value: "1",
    required: true });
  askForKey(place, {
    name: `Replace ${id}`,
    title: `Replace ${id}`,
    text: "The new key has the same owner and lifetime. Give it to all programs before the old one ends; "
      + "0 disables the old one at once.",
    fields: field("The old key stays valid for hours", hours),
    action: "Make successor",
    same: () => commands.rotateKey(id, hours.value || "0"),
    make: () => post("access-keys/rotate", { access_key_id: id, overlap_s: Number(hours.value) * 3600 }),
  }, read, fail);
  hours.focus();
}

function askForKey(place, { name, title, text = "", fields, action, same, make }, read, fail) {
  const shown = el("div");
  const show = () => fill(shown, command(same()));
  const onsubmit = async () => {
    try {
      showSecret(place, await make());
      await read();
    } catch (error) {
      fail(error);
    }
  };
  show();
  fill(place, form(
    { class: "panel", onsubmit, oninput: show, "aria-label": name },
    el("h2", {}, title),
    text && el("p", { class: "hint" }, text),
    el("div", { class: "search" }, fields,
      submit(action, { busy: "Making it …" }),
      button("Cancel", () => fill(place))),
    shown,
  ));
}

/** Show the secret of a new key until it is put away. */
export function showSecret(place, made) {
  if (!place.isConnected) { // another screen was opened meanwhile
    notice(`${made.access_key_id} is made, and its secret was not seen: delete it, or replace it.`, "error");
    return;
  }
  const text = `export AWS_ACCESS_KEY_ID=${made.access_key_id}\n`
    + `export AWS_SECRET_ACCESS_KEY=${made.secret_access_key}`;
  const copying = copyButton(text, { class: "main" });
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
