// Users and access keys of all accounts.

import { caller, get, latest, post } from "./api.js";
import * as commands from "./commands.js";
import { button, command, el, field, fill, form, link, notice, row, submit, table } from "./dom.js";
import { instant } from "./format.js";
import { keyTable, newKey } from "./keys.js";
import { permissionForm } from "./permission.js";

const COLUMNS = [["User", "name"], ["Account", "wide"], ["Policies", ""], ["Keys", ""], ["Created", "wide"]];

export async function showUsers({ view, signal, fail }) {
  const list = el("div");
  const secret = el("div");
  const { account, may } = await caller();
  const mayManage = may.includes("holdfast:ManageUsers");
  const newest = latest(signal);

  async function read() {
    try {
      show(await get("users", {}, newest()));
    } catch (error) {
      fail(error);
    }
  }

  function show(found) {
    fill(
      list,
      found.users.length
        ? table(COLUMNS, found.users.map(userRow), "Users")
        : el("p", { class: "empty" }, "There are no users beside the accounts themselves."),
      el("h2", {}, "Keys of accounts"),
      el("p", { class: "hint" }, "They may do everything in their account. Give programs a user."),
      keyTable(found.account_keys, { place: secret, read, fail, mayManage, withAccount: true }),
      command(...commands.listUsers()),
    );
  }

  function addForm() {
    const name = el("input", { name: "name", required: true, autocomplete: "off", maxlength: "64" });
    const owner = accountInput(account);
    const same = el("div");
    const showCommand = () => fill(same, name.value && command(commands.addUser(owner.value, name.value)));
    const onsubmit = async () => {
      try {
        await post("users", { name: name.value, account: owner.value });
        notice(`${name.value} is added, and may do nothing until a policy says so.`);
        if (!signal.aborted) location.hash = addressOf({ account: owner.value, name: name.value });
      } catch (error) {
        fail(error);
      }
    };
    return form(
      { class: "panel", onsubmit, oninput: showCommand, "aria-label": "Add a user" },
      el("h2", {}, "Add a user"),
      el("div", { class: "search" }, field("Name", name), field("Account", owner),
        submit("Add user", { busy: "Adding …" })),
      same,
    );
  }

  show(await get("users", {}, signal));
  fill(
    view,
    el("h1", {}, "Users and keys"),
    list,
    secret,
    mayManage && [
      el("p", { class: "actions" },
        button("New key of the account", () => newKey(secret, { account, user: null }, read, fail))),
      addForm(),
    ],
    permissionForm({ account, user: "" }, signal, fail),
  );
}

function accountInput(account) {
  return el("input", { name: "account", value: account, required: true, pattern: "[0-9]{12}",
    inputmode: "numeric", autocomplete: "off" });
}

function addressOf({ account, name }) {
  return `#/users/${account}/${encodeURIComponent(name)}`;
}

function userRow(user) {
  const enabled = user.keys.filter((key) => key.is_enabled && !key.has_expired).length;
  return row(COLUMNS, [
    link(user.name, addressOf(user)),
    user.account,
    user.policies.join(", ") || "none",
    `${enabled} of ${user.keys.length} enabled`,
    instant(user.created_at_ms),
  ]);
}
