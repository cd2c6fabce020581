// One user: access keys, policies, and what they allow.

import { caller, get, post } from "./api.js";
import * as commands from "./commands.js";
import { button, command, el, facts, field, fill, form, link, notice, submit, time } from "./dom.js";
import { pretty } from "./format.js";
import { keyTable, newKey } from "./keys.js";
import { permissionForm } from "./permission.js";
import { needed, resource } from "./resource.js";

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

export async function showUser(screen) {
  const { view, parts: [account, encoded], signal, fail } = screen;
  const name = decodeURIComponent(encoded);
  const secret = el("div");
  const policies = el("div", { "data-key": "policies" });
  const who = { account, name };
  const mayManage = (await caller()).may.includes("holdfast:ManageUsers");
  const ask = (mine) => get("users/show", { user: name, account }, mine);
  const user = resource({ what: "The user", ask, show, signal, fail });
  let shownPolicies = "";
  /** @type {Map<string, {text: string, form: unknown}>} */
  let forms = new Map();
  const adding = mayManage && policyForm(who, null, EMPTY, () => user.read());
  const roles = mayManage ? await needed(screen, "The roles", (mine) => get("roles", {}, mine)) : [];

  function show(found) {
    showPolicies(found.policies);
    return [
      facts([["ARN", found.arn], ["User id", found.user_id], ["Created", time(found.created_at_ms)],
        ...Object.entries(found.tags).map(([key, value]) => [`Tag ${key}`, value])]),
      el("h2", {}, "Access keys"),
      keyTable(found.keys, { place: secret, read: user.read, fail, mayManage }),
      el("h2", {}, "Policies"),
      mayManage && roleButtons(Object.keys(found.policies)),
      policies,
      command(commands.showUser(who), commands.addKey(account, name, ""),
        ...found.keys.map((key) => commands.changeKey("disable", key.access_key_id)),
        commands.removeUser(who)),
    ];
  }

  /** A role on one click; it takes the place of another one. */
  function roleButtons(names) {
    const has = roles.find((each) => names.includes(each.name));
    return el("div", { role: "group", "aria-label": "Role" },
      el("p", { class: "actions" }, el("span", {}, "Role:"),
        roles.map((each) => button(each.name, () => give(each.name),
          { busy: "Giving …", "data-key": `${each.name} ${each === has}`, "aria-pressed": String(each === has), title: `${name} then ${each.meaning}` })),
        has && button("No role", () => give(null), { busy: "Taking …" })),
      el("p", { class: "hint" }, has ? `${name} ${has.meaning}.` : "A role is a policy of its name. "
        + "Its user's sessions end when it changes."));
  }

  async function give(role) {
    try {
      await post("users/role", { ...who, role });
      notice(role ? `${name} is ${role}.` : `${name} has no role.`);
      await user.read();
    } catch (error) {
      fail(error);
    }
  }

  /** Forms of the policies. Each keeps what is typed until its own policy is another one. */
  function showPolicies(found) {
    if (JSON.stringify(found) === shownPolicies) return;
    shownPolicies = JSON.stringify(found);
    const made = (policy, text) => (mayManage
      ? policyForm(who, policy, text, user.read)
      : [el("h3", {}, `Policy ${policy}`), el("pre", { tabindex: "0" }, pretty(text) ?? text)]);
    forms = new Map(Object.entries(found).map(([policy, text]) => {
      const known = forms.get(policy);
      return [policy, known && known.text === text ? known : { text, form: made(policy, text) }];
    }));
    fill(
      policies,
      forms.size ? [...forms.values()].map(({ form }) => form) : el("p", { class: "empty" }, "No policy: this user "
        + "may do nothing, except what a queue's own policy allows."),
      adding,
    );
  }

  const removal = () => [`Delete user ${name}?`,
    "Its policies and access keys go with it. It cannot be brought back.", "Delete user", name];

  async function remove() {
    try {
      await post("users/remove", { name, account });
      notice(`${name} is deleted.`);
      if (!signal.aborted) location.hash = "#/users";
    } catch (error) {
      fail(error);
    }
  }

  fill(
    view,
    el("h1", {}, "User ", name),
    el("p", { class: "actions" }, link("All users", "#/users", { class: "button" }),
      mayManage && button("New key", () => newKey(secret, { account, user: name }, user.read, fail), { class: "main" }),
      mayManage && button("Delete user", remove, { class: "danger", busy: "Deleting …", confirm: removal })),
    secret,
    user.place,
    permissionForm({ account, user: name }, signal, fail),
  );
  await user.read();
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

  async function save() {
    const saved = document.value;
    try {
      await post("users/policies", { ...who, policy: named(), document: saved });
      notice(`Policy ${named()}: saved.`);
      refusal.hidden = true;
      if (policy === null && document.value === saved) {
        name.value = "";
        document.value = text;
        show();
      }
      await read();
    } catch (error) {
      refuse(error);
    }
  }

  const removal = () =>
    [`Remove policy ${policy}?`, `${who.name} loses what it allows or denies.`, "Remove"];

  async function remove() {
    try {
      await post("users/policies/remove", { ...who, policy });
      await read();
    } catch (error) {
      refuse(error);
    }
  }

  show();
  return form(
    { class: "panel", onsubmit: save, oninput: show, "aria-label": title },
    el("h3", {}, title),
    policy === null && field("Name of the policy", name),
    field("Document", document),
    refusal,
    el("p", { class: "actions" },
      submit("Save policy", { busy: "Saving …" }),
      policy !== null && button("Remove", remove, { class: "danger", busy: "Removing …",
        confirm: removal, "aria-label": `Remove policy ${policy}` })),
    same,
  );
}
