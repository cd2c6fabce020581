// May this user do that? The policies of users and queues decide here as they do for requests.

import { get, latest } from "./api.js";
import * as commands from "./commands.js";
import { button, command, el, facts, field, fill } from "./dom.js";

const ACTIONS = ["sqs:SendMessage", "sqs:ReceiveMessage", "sqs:DeleteMessage",
  "sqs:ChangeMessageVisibility", "sqs:GetQueueAttributes", "sqs:SetQueueAttributes", "sqs:PurgeQueue",
  "sqs:DeleteQueue", "kms:Decrypt", "kms:GenerateDataKey", "holdfast:ListQueues", "holdfast:GetQueue",
  "holdfast:BrowseMessages", "holdfast:ReadMessageBodies", "holdfast:DeleteMessages",
  "holdfast:RedriveMessages", "holdfast:SetLossyPolicy", "holdfast:LiftProtection", "holdfast:ReadAudit", "holdfast:ReadUsers"];
const WHO = [["user", "a user"], ["root", "the account itself"], ["anonymous", "an unsigned request"]];

/** The form; on a `queue` it asks about that one. */
export function permissionForm({ account, user, queue: about = "" }, signal, fail) {
  const newest = latest(signal);
  const text = (properties) =>
    el("input", { autocomplete: "off", spellcheck: "false", ...properties });
  const who = el("select", { name: "who" }, WHO.map(([value, label]) => el("option", { value }, label)));
  const name = text({ name: "user", value: user });
  const owner = text({ name: "account", value: account, pattern: "[0-9]{12}", required: true });
  const action = text({ name: "action", required: true, list: "actions" });
  const queue = text({ name: "queue", value: about });
  const conditions = el("textarea", { name: "conditions", rows: "2", spellcheck: "false" });
  const answer = el("div", { role: "status" });

  const question = () => ({
    who: who.value,
    user: who.value === "user" ? name.value : null,
    account: owner.value,
    action: action.value,
    queue: queue.value,
    conditions: conditions.value,
  });

  async function onsubmit(event) {
    event.preventDefault();
    const asked = question();
    try {
      const found = await get("users/check", asked, newest());
      fill(answer, verdict(found), command(commands.checkPermission(asked)));
    } catch (error) {
      if (error.needsSignIn || error.name === "AbortError") fail(error);
      else fill(answer, el("p", { class: "notice error", role: "alert" }, error.message));
    }
  }

  return el(
    "form",
    { class: "panel", onsubmit, "aria-label": "May this user do that?" },
    el("h2", {}, "May this user do that?"),
    about && el("p", { class: "hint" }, "The saved policies decide, of the queue and of the user."),
    el("datalist", { id: "actions" }, ACTIONS.map((each) => el("option", { value: each }))),
    el("div", { class: "search" }, field("Who", who), field("User", name), field("Account", owner),
      field("Action", action), field("Queue, by name or ARN", queue)),
    field("Conditions of the request, each KEY=VALUE such as aws:SourceIp=10.0.0.1", conditions),
    el("p", {}, button("Ask", () => {}, { type: "submit", class: "main" })),
    answer,
  );
}

function verdict(found) {
  const decided = found.decided_by || "no statement: there is none that applies";
  return [
    el("p", { class: found.allowed ? "notice" : "notice error" },
      el("strong", {}, found.allowed ? "Yes" : "No"), `: ${found.rule}`),
    facts([["Who", found.who || "an unsigned request"], ["Action", found.action],
      ["On", found.resource], ["Decided by", decided]]),
  ];
}
