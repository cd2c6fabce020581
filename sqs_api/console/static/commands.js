// The commands that do what the console does.

import { quoted } from "./format.js";

function aws(action, ...options) {
  return [`aws sqs ${action} --endpoint-url ${location.origin}`, ...options].join(" \\\n  ");
}

function holdfast(what, ...options) {
  return [`holdfast ${what} --url ${location.origin}`, ...options].join(" ");
}

function urlOf(queue) {
  return `--queue-url ${location.origin}/${queue.account}/${queue.name}`;
}

export function listQueues(search, sort) {
  return holdfast("queues list", search && `--search ${quoted(search)}`, `--sort ${sort}`)
    .replace("  ", " ");
}

export function showQueue(queue) {
  return [aws("get-queue-attributes", urlOf(queue), "--attribute-names All"),
    holdfast(`queues show ${queue.name}`)];
}

export function purge(queue) {
  return aws("purge-queue", urlOf(queue));
}

export function send(queue, message) {
  const options = [urlOf(queue), `--message-body ${quoted(message.body)}`];
  if (message.group_id) options.push(`--message-group-id ${quoted(message.group_id)}`);
  if (message.deduplication_id)
    options.push(`--message-deduplication-id ${quoted(message.deduplication_id)}`);
  if (message.delay_s) options.push(`--delay-seconds ${message.delay_s}`);
  return aws("send-message", ...options);
}

const SEARCHES = { json: "--field", received_min: "--received-min" };

export function browse(name, search) {
  const options = Object.entries(search)
    .filter(([option, value]) => value && !(option === "state" && value === "all"))
    .map(([option, value]) => `${SEARCHES[option] ?? `--${option}`} ${quoted(value)}`);
  return holdfast(`messages browse ${name}`, ...options);
}

export function showMessage(name, sequence) {
  return holdfast(`messages show ${name} ${sequence}`);
}

export function deleteMessages(name, sequences) {
  return holdfast(`messages delete ${name} ${sequences.join(" ")}`);
}

export function resend(name, sequence, copy) {
  const options = [`--body ${quoted(copy.body)}`, `--to ${copy.to}`];
  if (copy.deduplication_id)
    options.push(`--deduplication-id ${quoted(copy.deduplication_id)}`);
  if (copy.replace) options.push("--replace");
  return holdfast(`messages resend ${name} ${sequence}`, ...options);
}

function moved(redrive) {
  const options = (redrive.sequences ?? []).map((sequence) => `--sequence ${sequence}`);
  if (redrive.destination) options.push(`--to ${redrive.destination}`);
  return options;
}

export function plan(name, redrive) {
  return holdfast(`redrive plan ${name}`, ...moved(redrive));
}

/** By `aws` where SQS has it: it cannot name single messages. */
export function start(queue, redrive) {
  if (redrive.sequences) {
    const more = redrive.rate ? [`--rate ${redrive.rate}`] : [];
    return holdfast(`redrive start ${queue.name}`, ...moved(redrive), ...more);
  }
  const options = [`--source-arn ${queue.arn}`];
  if (redrive.destination)
    options.push(`--destination-arn ${queue.arn.replace(/[^:]*$/, redrive.destination)}`);
  if (redrive.rate) options.push(`--max-number-of-messages-per-second ${redrive.rate}`);
  return aws("start-message-move-task", ...options);
}

export function cancel(handle) {
  return aws("cancel-message-move-task", `--task-handle ${handle}`);
}
