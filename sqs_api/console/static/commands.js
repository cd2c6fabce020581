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

function json(value) {
  return quoted(JSON.stringify(value));
}

export function listQueues(list) {
  const tags = list.tags ? list.tags.split("\n") : [];
  return holdfast("queues list", ...listed(list), ...tags.map((each) => `--tag ${quoted(each)}`));
}

export function listDeadLetters(list) {
  const { tag } = list;
  return holdfast("queues list --dead-letters", ...listed(list), ...(tag ? [`--by-tag ${quoted(tag)}`] : []));
}

function listed({ search, sort, reverse }) {
  return [search && `--search ${quoted(search)}`, `--sort ${sort}`, reverse && "--reverse"].filter(Boolean);
}

export function showQueue(queue) {
  return [aws("get-queue-attributes", urlOf(queue), "--attribute-names All"),
    holdfast(`queues show ${queue.name}`)];
}

export function purge(queue) {
  return aws("purge-queue", urlOf(queue));
}

/** Of a deleted or purged queue. */
export function restoreQueue(name) {
  return holdfast(`restore-queue ${name}`);
}

/** The dead-letter queue first, if it is to be made. */
export function createQueue({ name, attributes, dead_letter_queue: dead }) {
  const policy = dead && { RedrivePolicy: JSON.stringify({
    deadLetterTargetArn: `ARN_OF_${dead.name}`, maxReceiveCount: dead.max_receive_count }) };
  const options = (given) => (Object.keys(given).length ? [`--attributes ${json(given)}`] : []);
  return [
    ...(dead ? [aws("create-queue", `--queue-name ${dead.name}`, ...options(dead.attributes))] : []),
    aws("create-queue", `--queue-name ${name}`, ...options({ ...attributes, ...policy })),
  ];
}

export function deleteQueue(queue) {
  return aws("delete-queue", urlOf(queue));
}

export function setAttributes(queue, attributes) {
  return aws("set-queue-attributes", urlOf(queue), `--attributes ${json(attributes)}`);
}

export function tag(queue, tags) {
  return aws("tag-queue", urlOf(queue), `--tags ${json(tags)}`);
}

export function untag(queue, keys) {
  return aws("untag-queue", urlOf(queue), `--tag-keys ${keys.map(quoted).join(" ")}`);
}

/** A copy now; three hosts on this machine, to try. */
export function backup() {
  return [holdfast("backup /mnt/other/today"), "holdfast cluster try"];
}

export function clusterStatus() {
  return holdfast("cluster status");
}

export function addCluster() {
  return "holdfast fleet add-cluster --hosts d,e,f";
}

/** The plan, and what it would do to a queue, by hand. */
export function fleetPlan() {
  return [holdfast("fleet plan"), holdfast("fleet split QUEUE --parts 2"), holdfast("fleet move QUEUE --shard NUMBER")];
}

/** Of a queue with so many open parts. */
export function parts(name, open) {
  return [holdfast(`fleet parts ${name}`), holdfast(`fleet split ${name} --parts ${open + 1}`),
    ...(open > 1 ? [holdfast(`fleet shrink ${name} --parts ${open - 1}`)] : [])];
}

export function applyChange(id) {
  return holdfast(`fleet apply ${id}`);
}

export function drain(host, drained) {
  return holdfast(`cluster ${drained ? "drain" : "undrain"} ${host}`);
}

export function send(queue, message) {
  const options = [urlOf(queue), `--message-body ${quoted(message.body)}`];
  if (message.group_id) options.push(`--message-group-id ${quoted(message.group_id)}`);
  if (message.deduplication_id)
    options.push(`--message-deduplication-id ${quoted(message.deduplication_id)}`);
  if (message.delay_s) options.push(`--delay-seconds ${message.delay_s}`);
  const { attributes = {} } = message;
  if (Object.keys(attributes).length) options.push(`--message-attributes ${json(asAws(attributes))}`);
  return aws("send-message", ...options);
}

/** Message attributes as AWS writes them. */
function asAws(attributes) {
  return Object.fromEntries(Object.entries(attributes).map(([name, { type, value, binary }]) =>
    [name, { DataType: type, ...(typeof value === "string" ? { StringValue: value } : { BinaryValue: binary }) }]));
}

const FILTERS = {
  json: "--field",
  received_min: "--received-min",
  received_max: "--received-max",
  older_s: "--older",
  newer_s: "--newer",
};

function filtered(conditions) {
  return Object.entries(conditions ?? {})
    .filter(([option, value]) => value !== "" && !(option === "state" && value === "all"))
    .map(([option, value]) => `${FILTERS[option] ?? `--${option}`} ${quoted(String(value))}`);
}

export function failures(name) {
  return holdfast(`queues failures ${name}`);
}

export function browse(name, search) {
  return holdfast(`messages browse ${name}`, ...filtered(search));
}

export function tail(name) {
  return holdfast(`messages tail ${name}`);
}

export function showMessage(name, sequence) {
  return holdfast(`messages show ${name} ${sequence}`);
}

export function deleteMessages(name, sequences, undoS) {
  return holdfast(`messages delete ${name} ${sequences.join(" ")} --undo ${undoS}s`);
}

export function undelete(name, sequences) {
  return holdfast(`messages undelete ${name} ${sequences.join(" ")}`);
}

export function hold(name, sequences, owner = "", reference = "") {
  const options = [owner && `--owner ${quoted(owner)}`, reference && `--reference ${quoted(reference)}`];
  return holdfast(`messages hold ${name} ${sequences.join(" ")}`, ...options.filter(Boolean));
}

function placesOf(places) {
  return places.map((each) => `${each.due_ms}:${each.sequence}`).join(" ");
}

export function cancelDelivery(name, places) {
  return holdfast(`messages cancel ${name} ${placesOf(places)}`);
}

export function reschedule(name, places) {
  return holdfast(`messages reschedule ${name} ${placesOf(places)} --at 1h`);
}

export function release(name, sequences) {
  return holdfast(`messages release ${name} ${sequences.join(" ")}`);
}

/** The copy of a `message`, whose attributes and group the command takes over by itself. */
export function resend(name, sequence, copy, message) {
  const options = [`--body ${quoted(copy.body)}`, `--to ${copy.to}`];
  const [before, now] = [message, copy].map(({ attributes }) => json(asAws(attributes)));
  if (before !== now) options.push(`--message-attributes ${now}`);
  if ((message.group_id ?? "") !== (copy.group_id ?? "")) options.push(`--group ${quoted(copy.group_id ?? "")}`);
  if (copy.deduplication_id)
    options.push(`--deduplication-id ${quoted(copy.deduplication_id)}`);
  if (copy.replace) options.push("--replace");
  return holdfast(`messages resend ${name} ${sequence}`, ...options);
}

const PACE = {
  rate: "--rate",
  ramp_s: "--ramp",
  canary: "--canary",
  stop_after: "--stop-after",
  reason: "--reason",
};

function chosen(redrive) {
  const options = (redrive.sequences ?? []).map(String);
  options.push(...filtered(redrive.filter));
  if (redrive.edit) options.push(`--merge-patch ${json(redrive.edit)}`);
  if (redrive.destination) options.push(`--to ${redrive.destination}`);
  return options;
}

function paced(redrive, names) {
  return names.filter((name) => redrive[name])
    .map((name) => `${PACE[name]} ${quoted(String(redrive[name]))}`);
}

export function plan(name, redrive) {
  return holdfast(`redrive plan ${name}`, ...chosen(redrive), ...paced(redrive, ["rate"]));
}

/** By `aws` where SQS has it: it knows neither filters nor a pace beyond the rate. */
export function start(queue, redrive) {
  const { name, arn } = queue;
  const all = redrive.sequences || redrive.filter ? [] : ["--all"];
  const ours = [...chosen(redrive), ...paced(redrive, Object.keys(PACE))];
  const isPlain = all.length && !redrive.edit && paced(redrive, Object.keys(PACE).slice(1)).length === 0;
  if (!isPlain) return holdfast(`redrive start ${name}`, ...all, ...ours);
  const options = [`--source-arn ${arn}`];
  if (redrive.destination)
    options.push(`--destination-arn ${arn.replace(/[^:]*$/, redrive.destination)}`);
  if (redrive.rate) options.push(`--max-number-of-messages-per-second ${redrive.rate}`);
  return aws("start-message-move-task", ...options);
}

export function control(name, redrive) {
  const of = (what) => holdfast(`redrive ${what} ${name}`);
  const cancel = aws("cancel-message-move-task", `--task-handle ${redrive.handle}`);
  const pace = [of("pace"), ...paced(redrive, ["rate", "stop_after"])].join(" ");
  return [of(redrive.paused ? "resume" : "pause"), pace, undo(name, redrive), cancel];
}

export function undo(name, redrive) {
  return holdfast(`redrive undo ${name} --redrive ${redrive.id.slice(0, 8)}`);
}

export function history(queue) {
  const aws10 = aws("list-message-move-tasks", `--source-arn ${queue.arn} --max-results 10`);
  return [holdfast(`redrive list ${queue.name}`), aws10];
}

function archived({ order, from_ms: from, until_ms: until, ...conditions }) {
  const times = [["--from", from], ["--until", until]].filter(([, at]) => at)
    .map(([option, at]) => `${option} ${new Date(at).toISOString().slice(0, 23)}`);
  return [...times, ...(order === "oldest" ? ["--order oldest"] : []), ...filtered(conditions)];
}

export function searchArchive(name, search) {
  return holdfast(`archive search ${name}`, ...archived(search));
}

export function showArchived(name, place) {
  return holdfast(`archive show ${name} ${place}`);
}

/** @typedef {{places?: string[], filter?: object, to: string, token?: string}} Replay */

export function replay(name, /** @type {Replay} */ { places, filter, to, token }) {
  const chosen = places ?? archived(filter);
  return holdfast(`archive replay ${name}`, ...(chosen.length ? chosen : ["--all"]), `--to ${to}`,
    ...(token ? [`--token ${quoted(token)}`] : []));
}

export function readAudit({ denied, ...given }) {
  const options = Object.entries(given).map(([name, text]) => `--${name} ${quoted(text)}`);
  return holdfast("audit", ...options, ...(denied ? ["--denied"] : []));
}

/** Commands on users and keys read the data folder, or etcd: they take no address. */
function onFolder(what, account, ...options) {
  return [`holdfast ${what}`, ...options, account && `--account ${account}`].filter(Boolean).join(" ");
}

export function listUsers() {
  return ["holdfast users list", "holdfast credentials list"];
}

function users(what, account) {
  return `users --account ${account} ${what}`;
}

export function showUser({ account, name }) {
  return onFolder(users(`show ${quoted(name)}`, account));
}

/** With the policy of a role and a key, if these are asked for. */
export function addUser(account, name, role = "", withKey = false) {
  return [
    onFolder(users(`add ${quoted(name)}`, account)),
    role && onFolder(users(`put-policy ${quoted(name)} ${role} ${role}.json`, account)),
    withKey && addKey(account, name, ""),
  ].filter(Boolean);
}

export function removeUser({ account, name }) {
  return onFolder(users(`remove ${quoted(name)}`, account));
}

export function putPolicy({ account, name }, policy) {
  return onFolder(users(`put-policy ${quoted(name)} ${quoted(policy)} policy.json`, account));
}

export function removePolicy({ account, name }, policy) {
  return onFolder(users(`remove-policy ${quoted(name)} ${quoted(policy)}`, account));
}

export function addKey(account, name, days) {
  const options = [name && `--user ${quoted(name)}`, days && `--expires-in ${days}d`];
  return onFolder("credentials add", account, ...options.filter(Boolean));
}

export function changeKey(what, id) {
  return onFolder(`credentials ${what} ${id}`);
}

export function rotateKey(id, hours) {
  return onFolder(`credentials rotate ${id} --overlap ${hours}h`);
}

export function checkPermission({ who, user, account, action, queue, conditions }) {
  const asker = { user: `--user ${quoted(user ?? "")}`, anonymous: "--anonymous", root: "" };
  const options = [
    asker[who],
    who !== "anonymous" && `--account ${account}`,
    `--action ${quoted(action)}`,
    queue && `--queue ${quoted(queue)}`,
    ...conditions.split("\n").filter(Boolean).map((each) => `--condition ${quoted(each)}`),
  ];
  return onFolder("policy check", "", ...options.filter(Boolean));
}
