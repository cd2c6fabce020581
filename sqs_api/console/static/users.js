// Users and access keys of all accounts.
import { caller, get, post } from "./api.js";
import * as commands from "./commands.js";
import { button, command, el, field, fill, form, link, notice, row, submit, table, time } from "./dom.js";
import { keyTable, newKey, showSecret } from "./keys.js";
import { permissionForm } from "./permission.js";
import { needed, resource } from "./resource.js";

const COLUMNS = [["User", "name"], ["Account", "wide"], ["Policies", ""], ["Keys", ""], ["Created", "wide"]];

export async function showUsers(screen) {
  const { view, signal, fail } = screen;
  const secret = el("div");
  const { account, may } = await caller();
  const mayManage = may.includes("holdfast:ManageUsers");
  const list = resource({ what: "The users", ask: (mine) => get("users", {}, mine), show, signal, fail });
  const read = list.read;
  const roles = mayManage ? await needed(screen, "The roles", (mine) => get("roles", {}, mine)) : [];

  function show(found) {
    return [
      found.users.length > 0
        ? table(COLUMNS, found.users.map(userRow), "Users")
        : el("p", { class: "empty" }, "There are no users beside the accounts themselves."),
      el("h2", {}, "Keys of accounts"),
      el("p", { class: "hint" }, "They may do everything in their account. Give programs a user."),
      keyTable(found.account_keys, { place: secret, read, fail, mayManage, withAccount: true }),
      command(...commands.listUsers()),
    ];
  }

  fill(
    view,
    el("h1", {}, "Users and keys"),
    secret,
    mayManage && addForm(roles, { account, secret, read, signal, fail }),
    list.place,
    mayManage && el("p", { class: "actions" },
      button("New key of the account", () => newKey(secret, { account, user: null }, read, fail))),
    permissionForm({ account, user: "" }, signal, fail),
  );
  await list.read();
}

/** A new user: with the policy of a role and a key at once, or without. */
function addForm(roles, { account, secret, read, signal, fail }) {
  const name = el("input", { name: "name", required: true, autocomplete: "off", maxlength: "64" });
  const owner = accountInput(account);
  const role = el("select", { name: "role" }, el("option", { value: "" }, "none: I write its policy"),
    roles.map((each) => el("option", { value: each.name }, each.name)));
  role.addEventListener("change", () => (withKey.checked = role.value !== ""));
  const withKey = el("input", { type: "checkbox", name: "key" });
  const meaning = el("p", { class: "hint", role: "status" });
  const same = el("div");

  function showMeaning() {
    const chosen = roles.find((each) => each.name === role.value);
    meaning.textContent = chosen ? `A user of this role ${chosen.meaning}.` : "";
    fill(same, name.value && command(...commands.addUser(owner.value, name.value, chosen?.name, withKey.checked)));
  }

  async function onsubmit() {
    const user = { name: name.value, account: owner.value };
    try {
      const { key } = await post("users", { ...user, role: role.value || null, with_key: withKey.checked });
      notice(`${user.name} is added${role.value ? ` as ${role.value}` : ", and may do nothing until a policy says so"}.`);
      if (key) {
        showSecret(secret, key);
        name.value = "";
        await read();
      } else if (!signal.aborted) location.hash = addressOf(user);
    } catch (error) {
      fail(error);
    }
  }

  return form(
    { class: "panel", onsubmit, oninput: showMeaning, "aria-label": "Add a user" },
    el("h2", {}, "Add a user"),
    el("div", { class: "search" }, field("Name", name), field("Account", owner), field("Role", role),
      el("label", { class: "choice" }, withKey, "With an access key"),
      submit("Add user", { busy: "Adding …" })),
    meaning,
    same,
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
    time(user.created_at_ms),
  ]);
}
