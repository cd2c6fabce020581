// Statements of a queue's policy for what is often wanted, with one thing to fill in.

import { button, el, field, fill, form } from "./dom.js";

const READ = ["sqs:GetQueueUrl", "sqs:GetQueueAttributes"];
const ACCOUNT = { label: "Account, or the ARN of a user", pattern: "[0-9]{12}|arn:aws:iam::[0-9]{12}:.+", placeholder: "123456789012" };
const ADDRESSES = { label: "Addresses", pattern: "[0-9a-fA-F:.]+(/[0-9]{1,3})?", placeholder: "10.0.0.0/8" };

/**
 * @typedef {{Sid: string, Effect: string, Principal: unknown, Action: string | string[], Resource: string, Condition?: object}} Statement
 * @typedef {{name: string, text: string, asks: typeof ACCOUNT | null, statement: (value: string) => Omit<Statement, "Sid" | "Resource">}} Template
 * @type {Template[]}
 */
export const TEMPLATES = [
  { name: "Send", text: "An account may send", asks: ACCOUNT,
    statement: (value) => allowed(value, ["sqs:SendMessage", ...READ]) },
  { name: "Receive", text: "An account may receive and delete", asks: ACCOUNT,
    statement: (value) => allowed(value, ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility", ...READ]) },
  { name: "Watch", text: "An account may read attributes and counts only", asks: ACCOUNT,
    statement: (value) => allowed(value, [...READ, "sqs:ListDeadLetterSourceQueues", "sqs:ListQueueTags"]) },
  { name: "SendFrom", text: "Anyone may send from certain addresses", asks: ADDRESSES,
    statement: (value) => ({ Effect: "Allow", Principal: "*", Action: "sqs:SendMessage",
      Condition: { IpAddress: { "aws:SourceIp": value } } }) },
  { name: "OnlyTls", text: "Nobody may do anything without TLS", asks: null,
    statement: () => ({ Effect: "Deny", Principal: "*", Action: "sqs:*",
      Condition: { Bool: { "aws:SecureTransport": "false" } } }) },
];

function allowed(value, actions) {
  const principal = /^[0-9]{12}$/.test(value) ? `arn:aws:iam::${value}:root` : value;
  return { Effect: "Allow", Principal: { AWS: principal }, Action: actions };
}

/** The statement of a template on a queue. @returns {Statement} */
export function statementOf(/** @type {Template} */ { name, statement }, /** @type {string} */ value, /** @type {string} */ arn) {
  return { Sid: `${name}${value.replace(/[^0-9A-Za-z]/g, "")}`, ...statement(value), Resource: arn };
}

/** A policy with one more statement, which replaces one of its Sid. Raises an Error if the text is no policy. */
export function withStatement(/** @type {string} */ text, /** @type {Statement} */ statement) {
  const policy = text.trim() ? JSON.parse(text) : { Version: "2012-10-17", Statement: [] };
  if (policy === null || typeof policy !== "object" || Array.isArray(policy)) throw new SyntaxError("no policy");
  const others = [policy.Statement ?? []].flat().filter((each) => each?.Sid !== statement.Sid);
  return JSON.stringify({ ...policy, Statement: [...others, statement] }, null, 2);
}

/** A form that writes into the text of a policy, which is then looked at and saved. */
export function templateForm(/** @type {string} */ arn, /** @type {HTMLTextAreaElement} */ area) {
  const kind = el("select", { onchange: choose }, TEMPLATES.map(({ name, text }) => el("option", { value: name }, text)));
  const input = el("input", { autocomplete: "off", spellcheck: "false" });
  const place = el("div", { class: "search" });
  const said = el("p", { role: "status", class: "hint" });
  const chosen = () => TEMPLATES.find(({ name }) => name === kind.value) ?? TEMPLATES[0];

  function choose() {
    const { asks } = chosen();
    if (asks) {
      input.placeholder = asks.placeholder;
      input.pattern = asks.pattern;
      input.required = true;
    } else input.required = false;
    fill(place, field("What", kind), asks && field(asks.label, input),
      button("Add to the policy", () => {}, { type: "submit" }));
  }

  function add() {
    const template = chosen();
    try {
      area.value = withStatement(area.value, statementOf(template, template.asks ? input.value.trim() : "", arn));
    } catch {
      said.textContent = "The policy below is no JSON object: mend or empty it first.";
      return;
    }
    area.rows = 12;
    area.dispatchEvent(new Event("input", { bubbles: true }));
    said.textContent = "Added to the policy below. It holds once you save it.";
  }

  choose();
  return form({ class: "panel", onsubmit: add, "aria-label": "A statement by template" },
    el("h2", {}, "Add to the policy"), place, said);
}
