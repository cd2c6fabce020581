// One user: access keys, policies, and what they allow.

import { get, post } from "./api.js";
import * as commands from "./commands.js";
import { button, command, confirmed, el, facts, field, fill, link, notice } from "./dom.js";
import { instant, pretty } from "./format.js";
import { keyTable, newKey } from "./keys.js";
import { permissionForm } from "./permission.js";

const EMPTY = `{
  "Version": "2012-10-17",
  "Statement": [
    {
      "Sid": "",
      "Effect": "Allow",
      "Action": ["sqs:SendMessage"],
      "Resource": "*"
    }
  ]
}`;

export async function showUser({ view, parts: [account, encoded], signal, fail }) {
  const name = decodeURIComponent(encoded);
  const keys = el("div");
  const secret = el("div");
  const policies = el("div");
  const who = { account, name };
  const find = () => get("users/show", { user: name, account }, signal);

  async function readKeys() {
    try {
      fill(keys, keyTable((await find()).keys, { place: secret, read: readKeys, fail }));
    } catch (error) {
      fail(error);
    }
  }

  async function readPolicies() {
    try {
      showPolicies((await find()).policies);
    } catch (error) {
      fail(error);
    }
  }

  function showPolicies(found) {
    const forms = Object.entries(found).map(([policy, text]) => policyForm(who, policy, text, readPolicies));
    fill(
      policies,
      forms.length ? forms : el("p", { class: "empty" }, "No policy: this user may do nothing, "
        + "except what a queue's own policy allows."),
      policyForm(who, null, EMPTY, readPolicies),
    );
  }

  async function remove() {
    const text = "Its policies and access keys go with it. It cannot be brought back.";
    if (!(await confirmed(`Delete user ${name}?`, text, "Delete user", name))) return;
    try {
      await post("users/remove", { name, account });
      notice(`${name} is deleted.`);
      location.hash = "#/users";
    } catch (error) {
      fail(error);
    }
  }

  const user = await find();
  fill(keys, keyTable(user.keys, { place: secret, read: readKeys, fail }));
  showPolicies(user.policies);
  fill(
    view,
    el("h1", {}, "User ", name),
    el("p", { class: "actions" }, link("All users", "#/users", { class: "button" }),
      button("New key", () => newKey(secret, { account, user: name }, readKeys, fail), { class: "main" }),
      button("Delete user", remove, { class: "danger" })),
    facts([["ARN", user.arn], ["User id", user.user_id], ["Created", instant(user.created_at_ms)],
      ...Object.entries(user.tags).map(([key, value]) => [`Tag ${key}`, value])]),
    el("h2", {}, "Access keys"),
    secret,
    keys,
    el("h2", {}, "Policies"),
    policies,
    permissionForm({ account, user: name }, fail),
    command(commands.showUser(who), commands.addKey(account, name, ""),
      ...user.keys.map((key) => commands.changeKey("disable", key.access_key_id)),
      commands.removeUser(who)),
  );
}

/** A policy to edit, or (`policy` null) to add. The service's refusal stands beside it. */
function policyForm(who, policy, text, read) {
  const name = el("input", { name: "policy", required: true, autocomplete: "off" });
  const document = el("textarea", { rows: "10", spellcheck: "false", required: true });
  const refusal = el("p", { class: "notice error", role: "alert", hidden: true });
  const same = el("div");
  const title = policy === null ? "Add a policy" : `Policy ${policy}`;
  const named = () => policy ?? name.value;
  document.value = pretty(text) ?? text;
  const refuse = (error) => {
    refusal.textContent = error.message;
    refusal.hidden = false;
  };
  const show = () => fill(same, named() && command(commands.putPolicy(who, named()),
    policy !== null && commands.removePolicy(who, policy) || ""));

  async function save(event) {
    event.preventDefault();
    try {
      await post("users/policies", { ...who, policy: named(), document: document.value });
      notice(`Policy ${named()}: saved.`);
      await read();
    } catch (error) {
      refuse(error);
    }
  }

  async function remove() {
    const what = `${who.name} loses what it allows or denies.`;
    if (!(await confirmed(`Remove policy ${policy}?`, what, "Remove"))) return;
    try {
      await post("users/policies/remove", { ...who, policy });
      await read();
    } catch (error) {
      refuse(error);
    }
  }

  show();
  return el(
    "form",
    { class: "panel", onsubmit: save, oninput: show, "aria-label": title },
    el("h3", {}, title),
    policy === null && field("Name of the policy", name),
    field("Document", document),
    refusal,
    el("p", { class: "actions" },
      button("Save policy", () => {}, { type: "submit", class: "main" }),
      policy !== null && button("Remove", remove, { class: "danger",
        "aria-label": `Remove policy ${policy}` })),
    same,
  );
}
