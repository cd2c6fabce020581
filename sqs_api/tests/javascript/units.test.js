// Units of the console that need no browser.

import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { test } from "node:test";

process.env.TZ = "Europe/Stockholm"; // times are shown on the browser's clock
globalThis.location = { origin: "https://queues.example" };

const { ago, backText, bothTimes, bytes, changedText, count, dayOf, delay, heardClock, instant, local, nameOf, nowMs, pretty, quoted, rate, secondsOf, sizeOf, span } = await import("./static/format.js");
const { ARCHIVED, conditionsOf, conditionText, each, editText, filterText, MESSAGES, parsed, QUEUES, suggestions, withMore, without } =
  await import("./static/filters.js");
const { repeat } = await import("./static/live.js");
const { sent, sentUntilTaken } = await import("./static/wire.js");
const { partsOf, unseenIn } = await import("./static/unseen_characters.js");
const { hitsOf, textHits } = await import("./static/hits.js");
const { diff } = await import("./static/diff.js");
const { path } = await import("./static/lines.js");
const { RANGES, pointAt, ticksOf, topOf } = await import("./static/axes.js");
const { encoded, queryOf, signedHeaders } = await import("./static/signing.js");
const { patchIn, patchOf } = await import("./static/edit.js");
const { eventText, timesOf } = await import("./static/timeline.js");
const commands = await import("./static/commands.js");

function cases(name, of, table) {
  for (const [given, wanted] of table)
    test(`${name}(${JSON.stringify(given)})`, () => assert.equal(of(given), wanted));
}

cases("span", span, [[null, ""], [0, "0s"], [59.9, "59s"], [61, "1m 1s"], [90061, "1d 1h"], [86400, "1d"]]);
cases("delay", delay, [[0.0124, "12 ms"], [1.25, "1.3 s"], [75, "1m 15s"]]);
cases("count", count, [[null, "?"], [1234567, "1,234,567"]]);
cases("rate", rate, [[null, ""], [0, "0"], [9.94, "9.9"], [1234.4, "1,234"]]);
cases("bytes", bytes, [[1023, "1023 B"], [1536, "1.5 KiB"], [3 << 20, "3.0 MiB"]]);
cases("instant", instant, [[0, ""], [1700000000000, "2023-11-14 22:13:20 UTC"]]);
cases("local", local, [[0, ""], [1700000000000, "2023-11-14 23:13:20"], [1690000000000, "2023-07-22 06:26:40"]]);
cases("bothTimes", bothTimes, [[0, ""], [1700000000000, "2023-11-14 23:13:20, 2023-11-14 22:13:20 UTC"]]);
cases("nameOf", nameOf, [["", ""], ["arn:aws:sqs:eu-west-1:000000000000:jobs.fifo", "jobs.fifo"]]);
cases("quoted", quoted, [["plain-1.2", "plain-1.2"], ["a b", "'a b'"], ["it's", "'it'\\''s'"], ["", "''"]]);
cases("pretty", pretty, [
  ["no json", null],
  ["12", null],
  ["[]", "[]"],
  ['{"n":1.00,"s":"a:{,}","l":[1,{}]}', '{\n  "n": 1.00,\n  "s": "a:{,}",\n  "l": [\n    1,\n    {}\n  ]\n}'],
]);
cases("encoded", encoded, [["a b/c*'(é)!", "a%20b%2Fc%2A%27%28%C3%A9%29%21"], ["~._-", "~._-"]]);

const HOUR = 3600000;
cases("eventText", eventText, [
  [{ what: "received", count: 1, until_ms: 0 }, "Received once"],
  [{ what: "received", count: 4, until_ms: 1700000000000 }, "Received 4 times, hidden until 2023-11-14 23:13:20"],
  [{ what: "died", text: "expired", queue: "jobs" }, "Became a dead letter of jobs: expired"],
  [{ what: "redriven", by: "ann", queue: "dead", text: "fixed" }, "Redriven from dead by ann: fixed"],
  [{ what: "redriven", by: null, queue: null, text: null }, "Redriven, by whom is not known"],
  [{ what: "undone", by: "ann" }, "Brought back by an undo of ann"],
  [{ what: "held", by: "ann", text: null }, "Held by ann"],
  [{ what: "noted", by: "ann", text: "Anything" }, "Anything by ann"],
]);
const timesText = (entry) => timesOf(entry, HOUR).map((part) => (typeof part === "number" ? instant(part) : part)).join("");

cases("timesOf", timesText, [
  [{ what: "sent", at_ms: HOUR }, "1970-01-01 01:00:00 UTC"],
  [{ what: "redriven", at_ms: 0 }, "time not kept"],
  [{ what: "received", at_ms: 0, first_ms: 0, count: 2 }, "times not kept"],
  [{ what: "received", at_ms: 0, first_ms: HOUR, count: 2 }, "first 1970-01-01 01:00:00 UTC"],
  [{ what: "received", at_ms: HOUR, first_ms: HOUR, count: 1 }, "1970-01-01 01:00:00 UTC"],
  [{ what: "received", at_ms: 2 * HOUR, first_ms: HOUR, count: 2 },
    "first 1970-01-01 01:00:00 UTC, last 1970-01-01 02:00:00 UTC"],
  [{ what: "lost", at_ms: 2 * HOUR }, "in 1h, 1970-01-01 02:00:00 UTC"],
]);

test("a pretty body means what the body means", () => {
  const body = { text: 'quote " and \\ and \n', deep: [[[]], { a: { b: [true, null, -1.5e3] } }] };

  assert.deepEqual(JSON.parse(pretty(JSON.stringify(body))), body);
});

test("only a filter's conditions are read from an address", () => {
  const query = new URLSearchParams("text=boom&received_min=3&page=2&group=");

  assert.deepEqual(conditionsOf(query), { text: "boom", received_min: "3" });
  assert.equal(filterText({ text: "boom", received_min: 2 }), '"boom", receives >= 2');
  assert.equal(editText({ edit: { retry: true } }), 'edit {"retry":true}');
  assert.equal(editText({ edit: { "(hidden)": "(hidden)" } }), "edited (hidden)");
});

test("a difference keeps the lines of both texts in order", () => {
  const [before, after] = ["a\nb\nc", "a\nc\nd"];
  const found = diff(before, after);
  const side = (kind) => found.filter(([each]) => each !== kind).map(([, line]) => line).join("\n");

  assert.deepEqual(found, [["same", "a"], ["gone", "b"], ["same", "c"], ["new", "d"]]);
  assert.equal(side("new"), before);
  assert.equal(side("gone"), after);
});

test("the top of an axis is a usual number that can be halved", () => {
  assert.deepEqual([0, 1, 2, 3, 7, 9.5, 11, 2034, 9_999].map((most) => topOf(most, "messages")),
    [2, 2, 2, 4, 8, 10, 15, 2_500, 10_000]);
  assert.deepEqual([0, 0.35, 9.8, 101].map((most) => topOf(most, "messages/s")), [1, 0.4, 10, 150]);
  assert.deepEqual([0.242, 50, 61, 700, 86_401].map((most) => topOf(most, "time")), [0.25, 60, 120, 1200, 172_800]);
});

test("times on an axis stand at whole hours of this clock, and midnight has its date", () => {
  const begin = new Date(2026, 10, 28, 22, 30).getTime() / 1000;
  const ticks = ticksOf({ begin_s: begin, period_s: 60 }, 181, 3600);

  assert.deepEqual(ticks, [[1 / 6, "23:00"], [0.5, "11-29"], [5 / 6, "01:00"]]);
});

test("days on an axis begin at midnight, also after the clock was changed", () => {
  const begin = new Date(2026, 9, 23, 12).getTime() / 1000; // summer time ends on the 25th
  const ticks = ticksOf({ begin_s: begin, period_s: 1800 }, 4 * 48 + 1, 86400);

  assert.deepEqual(ticks.map(([, text]) => text), ["10-24", "10-25", "10-26", "10-27"]);
});

test("hours on an axis are those of this clock, also while it is changed", () => {
  const textsFrom = (/** @type {Date} */ begin) =>
    ticksOf({ begin_s: begin.getTime() / 1000, period_s: 60 }, 301, 3600).map(([share, text]) => [share * 5, text]);

  assert.deepEqual(textsFrom(new Date(2026, 2, 29, 0)), // 02:00 is 03:00
    [[0, "03-29"], [1, "01:00"], [2, "03:00"], [3, "04:00"], [4, "05:00"], [5, "06:00"]]);
  assert.deepEqual(textsFrom(new Date(2026, 9, 25, 0)), // 03:00 is 02:00 again
    [[0, "10-25"], [1, "01:00"], [3, "02:00"], [4, "03:00"], [5, "04:00"]]);
});

test("a day of redrives has its date, also from before the clock was changed", () => {
  const dayMs = (/** @type {string} */ begin) => Date.parse(`${begin}Z`); // in the offset of now

  assert.equal(dayOf(dayMs("2026-03-27T22:00")), "2026-03-28"); // seen in summer
  assert.equal(dayOf(dayMs("2026-03-30T22:00")), "2026-03-31");
  assert.equal(dayOf(dayMs("2026-10-23T23:00")), "2026-10-24"); // seen in winter
});

test("each range has points enough, and not too many", () => {
  for (const { hours, period, tick } of Object.values(RANGES)) {
    assert.ok((hours * 3600) / period >= 60 && (hours * 3600) / period <= 360);
    assert.ok((hours * 3600) / tick >= 4 && (hours * 3600) / tick <= 8);
  }
});

test("the pointer is at the nearest point", () => {
  assert.deepEqual([-0.1, 0, 0.49, 0.5, 1, 2].map((share) => pointAt(share, 3)), [0, 0, 1, 1, 2, 2]);
});

test("a line has gaps where nothing is known", () => {
  assert.equal(path([0, 10, null, 5], 10, 30, 26), "M0.0,24.0L0.0,24.0L10.0,4.0M22.0,14.0L30.0,14.0");
});

test("parameters are signed in the order of their names", () => {
  assert.equal(queryOf({ b: "2 3", a: "1", "a-": "é" }), "a=1&a-=%C3%A9&b=2%203");
});

test("a signature is that of AWS's example, get-vanilla", async () => {
  const key = {
    accessKeyId: "AKIDEXAMPLE",
    secret: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
    region: "us-east-1",
    sessionToken: null,
  };
  const request = { method: "GET", host: "example.amazonaws.com", path: "/", query: "", headers: {}, body: "" };
  const headers = await signedHeaders(key, request, new Date("2015-08-30T12:36:00Z"), "service");

  assert.equal(headers["x-amz-date"], "20150830T123600Z");
  assert.equal(
    headers.authorization,
    "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
      + "SignedHeaders=host;x-amz-date, "
      + "Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
  );
});

test("a session token is sent and signed", async () => {
  const key = { accessKeyId: "A", secret: "S", region: "eu-west-1", sessionToken: "T" };
  const request = { method: "POST", host: "h", path: "/p", query: "", headers: { "x-holdfast-nonce": "n" }, body: "{}" };
  const headers = await signedHeaders(key, request, new Date(0));

  assert.equal(headers["x-amz-security-token"], "T");
  assert.match(headers.authorization, /SignedHeaders=host;x-amz-date;x-amz-security-token;x-holdfast-nonce,/);
});

const QUEUE = { name: "jobs", account: "000000000000", arn: "arn:aws:sqs:eu-west-1:000000000000:jobs" };

test("a redrive of all is a command of AWS's tool where that knows it", () => {
  assert.equal(
    commands.start(QUEUE, { rate: 5 }),
    "aws sqs start-message-move-task --endpoint-url https://queues.example \\\n"
      + "  --source-arn arn:aws:sqs:eu-west-1:000000000000:jobs \\\n"
      + "  --max-number-of-messages-per-second 5",
  );
});

test("a redrive with a filter and a canary is a command of ours", () => {
  assert.equal(
    commands.start(QUEUE, { filter: { text: "it's", received_min: 3 }, destination: "jobs-2", canary: 10 }),
    "holdfast redrive start jobs --url https://queues.example "
      + "--text 'it'\\''s' --received-min 3 --to jobs-2 --canary 10",
  );
});

test("what a user types cannot leave its place in a command", () => {
  const message = { body: "$(reboot) `reboot` 'x'", group_id: "g;h" };

  assert.equal(
    commands.send(QUEUE, message),
    "aws sqs send-message --endpoint-url https://queues.example \\\n"
      + "  --queue-url https://queues.example/000000000000/jobs \\\n"
      + "  --message-body '$(reboot) `reboot` '\\''x'\\''' \\\n"
      + "  --message-group-id 'g;h'",
  );
  const attributes = { n: { type: "Number", value: "1" }, b: { type: "Binary", binary: "AA==" } };
  assert.match(commands.send(QUEUE, { body: "x", attributes }),
    /--message-attributes '{"n":{"DataType":"Number","StringValue":"1"},"b":{"DataType":"Binary","BinaryValue":"AA=="}}'$/);
});

test("the command of a copy says what of it is changed", () => {
  const message = { group_id: "g", attributes: { n: { type: "Number", value: "1" } } };
  const same = { body: "x", to: "jobs", ...message };
  const changed = { ...same, group_id: null, attributes: {} };
  assert.equal(commands.resend("dead", 4, same, message), "holdfast messages resend dead 4 --url https://queues.example --body x --to jobs");
  assert.match(commands.resend("dead", 4, changed, message), /--to jobs --message-attributes '\{\}' --group ''$/);
});

// -- resources ---------------------------------------------------------------------------------------

globalThis.document = { querySelector: () => null };
const { failureText, Resource } = await import("./static/resource.js");
const { addressOf, stateOf } = await import("./static/address.js");
const { LIMIT, limitOf, paceText, PRESETS, resultText } = await import("./static/presets.js");
const { windowOf } = await import("./static/all_redrives.js");
const { choicesOf } = await import("./static/queue_edit.js");
const { asSent, asShown, rangeText } = await import("./static/ranged_fields.js");
const { encryptionChanges, kindOf } = await import("./static/encryption_form.js");
const { allowedBy, arnOf, lets } = await import("./static/redrive_forms.js");
const { nameFault, requestOf } = await import("./static/new_queue.js");

/** A resource whose answers are given by hand, and the states that it went through. */
function asked() {
  const answers = [];
  const states = [];
  const ask = (signal) => new Promise((resolve, reject) => answers.push({ resolve, reject, signal }));
  const made = new Resource(new AbortController().signal, ask,
    ({ value, failure, isOther }) => states.push([value, failure?.message ?? null, isOther]), () => 7);
  return { made, answers, states };
}

test("the latest answer wins, whichever comes first", async () => {
  const { made, answers, states } = asked();
  const [first, second] = [made.read(), made.read(true)];
  answers[1].resolve("new");
  await second;
  answers[0].resolve("old");
  await first;

  assert.equal(made.value, "new");
  assert.deepEqual(states, [[null, null, true], [null, null, true], ["new", null, false]]);
  assert.ok(answers[0].signal.aborted);
});

test("what fails leaves the older value, which the next answer replaces", async () => {
  const { made, answers, states } = asked();
  for (const end of ["resolve", "reject", "resolve"]) {
    const reading = made.read();
    answers.at(-1)[end](end === "reject" ? new Error("The service does not answer.") : "value");
    await reading;
  }

  assert.deepEqual(states, [[null, null, true], ["value", null, false], ["value", "The service does not answer.", false], ["value", null, false]]);
});

test("what is known so far is shown until the whole answer is there", async () => {
  const { signal } = new AbortController();
  const states = [];
  const asked = [];
  const made = new Resource(signal, (_, partly) => new Promise((resolve) => asked.push({ partly, resolve })),
    ({ value, isOther }) => states.push([value, isOther]));
  const reading = made.read();
  asked[0].partly(1);
  asked[0].resolve(2);
  await reading;
  const other = made.read(true);
  made.forget();
  asked[1].partly(3);
  asked[1].resolve(4);
  await other;

  assert.deepEqual(states, [[null, true], [1, true], [2, false], [2, true], [null, false]]);
});

test("a failure is a sentence, with the time of what is shown still", () => {
  const failure = new Error("The service does not answer.");
  const said = failureText("The queues", { failure, value: [], readAtMs: 0 });

  assert.equal(failureText("The queues", { failure, value: null }), "The queues cannot be read: the service does not answer.");
  assert.equal(failureText("The queues", { failure: { message: "User x may not" }, value: null }), "The queues cannot be read: user x may not.");
  assert.match(said, /^The queues cannot be read: the service does not answer\. This is from .+\.$/);
});

test("a state is in the address as far as it is not by default", () => {
  const defaults = { search: "", sort: "name", after: "" };

  assert.equal(addressOf("/queues", defaults, defaults), "#/queues");
  assert.equal(addressOf("/queues", { ...defaults, search: "a b" }, defaults), "#/queues?search=a+b");
  assert.deepEqual(stateOf(new URLSearchParams("sort=oldest&other=1"), defaults), { ...defaults, sort: "oldest" });
});

// -- failures and redrives ---------------------------------------------------------------------------

cases("resultText", resultText, [
  [{ moved: 4200, to_move: 4200, came_back: 27, is_active: true }, "4,200 of 4,200 moved, 27 came back"],
  [{ moved: 3, to_move: 5, came_back: 0, stayed: 2, undone: { moved: 1 } }, "3 of 5 moved, 2 could not be moved, 1 returned by an undo"],
]);

const { endText } = await import("./static/plan.js");

test("a redrive that failed says why", () => {
  const redrive = { moved: 3, to_move: 90, came_back: 0, stayed: 1, is_active: false };
  const failure = "AWS.SimpleQueueService.NonExistentQueue";

  assert.equal(endText({ ...redrive, failure }), "3 of 90 moved, 1 could not be moved: the queue they go to is gone or of another type");
  assert.equal(endText({ ...redrive, failure: null }), "3 of 90 moved, 1 could not be moved");
});

test("presets fit the number of messages, and are told in sentences", () => {
  assert.deepEqual(PRESETS.careful.pace(4200), { rate: 50, ramp_s: 60, canary: 10, stop_after: 42 });
  assert.deepEqual(PRESETS.normal.pace(3), { rate: 200, stop_after: 1 });
  assert.equal(paceText(PRESETS.now.pace(9), 9), "As fast as the queues can.");
  assert.equal(
    paceText(PRESETS.careful.pace(4200), 4200),
    "At most 50 messages a second, rising for 60 seconds, about 84 seconds. Waits for you after the first 10. "
      + "Stops by itself when 42 came back.",
  );
});

test("yesterday is a day of this clock", () => {
  const { since_ms: since, until_ms: until } = windowOf("yesterday", new Date(2026, 10, 25, 12, 30));

  assert.equal(since, new Date(2026, 10, 24).getTime());
  assert.equal(until, new Date(2026, 10, 25).getTime());
});

cases("changedText", (given) => changedText(...given), [
  [["deleted", 1200, 0], "1,200 deleted."],
  [["held", 0, 1], "0 held, 1 not: in another state, or gone."],
]);

cases("backText", (given) => backText(...given), [
  [[1, 0], "1 is back."],
  [[1200, 3], "1,200 are back. Gone: 3."],
]);

cases("rangeText", ([name, value]) => rangeText(name, value), [
  [["VisibilityTimeout", "90"], "1m 30s; 0s to 12h"],
  [["VisibilityTimeout", "2h 5m"], "2h 5m; 0s to 12h"],
  [["VisibilityTimeout", "13h"], "must be 0s to 12h"],
  [["VisibilityTimeout", "soon"], "must be 0s to 12h"],
  [["MaximumMessageSize", "2048"], "2 KiB; 1 KiB to 1 MiB"],
  [["MaximumMessageSize", "90"], "must be 1 KiB to 1 MiB"],
  [["KmsMasterKeyId", ""], ""],
]);

cases("secondsOf", secondsOf, [["90", 90], ["1m 30s", 90], ["4d", 345600], ["1d2h", 93600], ["", null], ["-1", null], ["1.5h", null], ["5x", null]]);
cases("sizeOf", sizeOf, [["1024", 1024], ["256 KiB", 262144], ["0.5 mib", 524288], ["1.0001 KiB", null], ["", null], ["-1", null], ["1 GiB", null]]);

cases("asShown", ([name, value]) => asShown(name, value), [
  [["MessageRetentionPeriod", "345600"], "4d"],
  [["MessageRetentionPeriod", "345661"], "345661"],
  [["MaximumMessageSize", "1048576"], "1 MiB"],
  [["MaximumMessageSize", "1025"], "1025"],
  [["FifoThroughputLimit", "perQueue"], "perQueue"],
]);
cases("asSent", ([name, value]) => asSent(name, value), [
  [["MessageRetentionPeriod", "4d"], "345600"],
  [["MaximumMessageSize", "1 MiB"], "1048576"],
  [["VisibilityTimeout", "soon"], "soon"],
  [["KmsMasterKeyId", "5s"], "5s"],
]);

test("a change of encryption sets what is needed for it and no more", () => {
  const own = { SqsManagedSseEnabled: "true" };
  const named = { SqsManagedSseEnabled: "false", KmsMasterKeyId: "alias/a", KmsDataKeyReusePeriodSeconds: "300" };
  const to = (before, kind, key = "", period = "300") => encryptionChanges(before, { kind, key, period });

  assert.deepEqual([own, named, { SqsManagedSseEnabled: "false" }].map(kindOf), ["sqs", "kms", "none"]);
  assert.deepEqual(to(own, "sqs"), {});
  assert.deepEqual(to(own, "none"), { SqsManagedSseEnabled: "false" });
  assert.deepEqual(to(own, "kms", "alias/a"), { KmsMasterKeyId: "alias/a" });
  assert.deepEqual(to(named, "kms", "alias/a", "600"), { KmsDataKeyReusePeriodSeconds: "600" });
  assert.deepEqual(to(named, "sqs"), { SqsManagedSseEnabled: "true" });
  assert.deepEqual(to(named, "none"), { KmsMasterKeyId: "", SqsManagedSseEnabled: "false" });
});

test("the values of a tag are offered where they are few", () => {
  assert.deepEqual(choicesOf("on, off"), ["on", "off"]);
  assert.deepEqual(["whole numbers from 1 to 43200", "the ARN of a standard queue", ""].map(choicesOf), [[], [], []]);
});

test("a dead-letter queue lets in whom its policy says", () => {
  const arn = "arn:aws:sqs:us-east-1:1:orders";
  const some = allowedBy(`{"redrivePermission":"byQueue","sourceQueueArns":["${arn}"]}`);

  assert.deepEqual([undefined, "", '{"redrivePermission":"denyAll"}'].map((each) => lets(allowedBy(each), arn)), [true, true, false]);
  assert.deepEqual([arn, `${arn}2`].map((each) => lets(some, each)), [true, false]);
  assert.deepEqual([arnOf("jobs", arn), arnOf("arn:aws:sqs:x:2:q", arn)], ["arn:aws:sqs:us-east-1:1:jobs", "arn:aws:sqs:x:2:q"]);
});


test("a form makes the request of a queue with its dead-letter queue", () => {
  const given = { VisibilityTimeout: 60, MessageRetentionPeriod: 4, DelaySeconds: 0, ReceiveMessageWaitTimeSeconds: 0 };
  const form = { name: "jobs", isFifo: true, given, withDead: true, receives: 5, deadName: "" };

  assert.deepEqual(requestOf(form), {
    name: "jobs.fifo",
    attributes: { FifoQueue: "true", VisibilityTimeout: "60" },
    dead_letter_queue: {
      name: "jobs-dead.fifo",
      max_receive_count: 5,
      attributes: { FifoQueue: "true", MessageRetentionPeriod: "1209600" },
    },
  });
  assert.equal(requestOf({ ...form, withDead: false }).dead_letter_queue, null);
  assert.equal(nameFault("a b", false), "Letters, digits, - and _ make a name.");
  assert.equal(nameFault("a".repeat(80), false), "");
});

test("a field that is set is a merge patch", () => {
  assert.deepEqual(patchOf("error.retry", "true"), { error: { retry: true } });
  assert.deepEqual(patchOf("n", "1e3"), { n: 1000 });
  assert.deepEqual(patchOf("country", "SE"), { country: "SE" });
  assert.deepEqual(patchOf("gone", "null"), { gone: null });
  assert.deepEqual(patchOf("text", ""), { text: "" });
  for (const path of ["", "a..b", ".a", "items[0].sku"]) assert.throws(() => patchOf(path, "1"), /error\.retry/);
});

test("a merge patch is a JSON object", () => {
  assert.deepEqual(patchIn('{"a": null}'), { a: null });
  for (const text of ["", "{", "[1]", "1", "null", "text"]) assert.throws(() => patchIn(text), /JSON object/);
});

test("a limit is a number, or a share of what moves", () => {
  const table = [["20", 20], ["5%", 210], ["0.5 %", 21], ["100%", 4200], ["", 0], [" 7 ", 7]];
  for (const [text, wanted] of table) assert.equal(limitOf(text, 4200), wanted, String(text));
  assert.equal(limitOf("1%", 3), 1);
  const pattern = new RegExp(`^(?:${LIMIT})$`, "v"); // as browsers compile it
  for (const text of ["1", "20", "5%", "12.5 %", "100%", "0.5%"]) assert.match(text, pattern);
  for (const text of ["0", "-1", "101%", "five", "5%%", "1e9", "1.5"]) assert.doesNotMatch(text, pattern);
});

test("a list of queues is the same as a command", () => {
  const list = { search: "", sort: "name", reverse: "", tag: "" };
  const url = "--url https://queues.example";

  assert.equal(commands.listQueues(list), `holdfast queues list ${url} --sort name`);
  assert.equal(
    commands.listDeadLetters({ search: "a b", sort: "arrived", reverse: "yes", tag: "team" }),
    `holdfast queues list --dead-letters ${url} --search 'a b' --sort arrived --reverse --by-tag team`,
  );
});

const { hasText, merged } = await import("./static/tail.js");
const { changesOf, isShownAt, toldOf } = await import("./static/watched_redrives.js");

test("a tail has the newest first, each message once, and a bound", () => {
  const message = (id) => ({ message_id: id });
  const known = merged([], ["a", "b"].map(message));

  assert.deepEqual(known.map((each) => each.message_id), ["b", "a"]);
  assert.deepEqual(merged(known, ["b", "c", "d"].map(message), 3).map((each) => each.message_id), ["d", "c", "b"]);
  assert.ok(hasText({ body: "Card declined", message_id: "x", group_id: null }, "CARD"));
  assert.ok(!hasText({ body: null, message_id: "x", group_id: null }, "card"));
});

test("a redrive is told of once it waits, stops or ends, and not twice", () => {
  const running = { id: "1", status: "RUNNING", paused: null, is_active: true };
  const waits = { ...running, paused: "canary" };
  const ended = { ...running, status: "COMPLETED", is_active: false };
  const known = (each) => new Map([["1", toldOf(each)]]);

  assert.deepEqual(changesOf(new Map(), [running, { ...ended, id: "2" }]), []);
  assert.deepEqual(changesOf(new Map(), [waits]), [waits]);
  assert.deepEqual(changesOf(known(running), [waits]), [waits]);
  assert.deepEqual(changesOf(known(waits), [waits]), []);
  assert.deepEqual(changesOf(known(waits), [running]), []);
  assert.deepEqual(changesOf(known(running), [ended]), [ended]);
  assert.deepEqual(changesOf(known(ended), [ended]), []);
});

test("a redrive is not told of on the screens that show it", () => {
  for (const place of ["#/redrives", "#/redrives?during=today", "#/queues/a", "#/queues/a/redrive?json=x"])
    assert.ok(isShownAt(place, { queue: "a" }), place);
  for (const place of ["", "#/queues", "#/queues/ab", "#/queues/a/messages", "#/queues/b/redrive"])
    assert.ok(!isShownAt(place, { queue: "a" }), place);
});

const { crumbsOf } = await import("./static/crumbs.js");
const { matching } = await import("./static/palette.js");

cases("crumbsOf", (path) => crumbsOf(path).map((each) => each.join(" ")).join(" › "), [
  ["/queues", ""],
  ["/redrives", ""],
  ["/queues/jobs", "Queues #/queues › jobs "],
  ["/queues/messages/messages/12", "Queues #/queues › messages #/queues/messages › Messages #/queues/messages/messages › 12 "],
  ["/users/123456789012/ann%20b", "Users #/users › ann b "],
  ["/archive/jobs/replay", "Archive #/archive › jobs #/archive/jobs › Replay "],
]);
cases("matching", (typed) => matching(["old jobs", "jobs Messages", "jobs", "Dead letters"].map((text) => ({ text })), typed)
  .map(({ text }) => text).join(), [
  ["", "old jobs,jobs Messages,jobs,Dead letters"],
  ["JOBS", "jobs Messages,jobs,old jobs"],
  ["jobs mess", "jobs Messages"],
  ["none", ""],
]);

const { TEMPLATES, statementOf, withStatement } = await import("./static/policy_templates.js");

test("a template is a statement about the queue, and takes the place of the same one", () => {
  const [send, , , , tls] = TEMPLATES;
  const first = withStatement("", statementOf(send, "123456789012", "arn:q"));
  const second = withStatement(first, statementOf(tls, "", "arn:q"));
  const { Version, Statement } = JSON.parse(withStatement(second, statementOf(send, "123456789012", "arn:q")));
  assert.equal(Version, "2012-10-17");
  assert.deepEqual(Statement.map((each) => each.Sid), ["OnlyTls", "Send123456789012"]);
  assert.deepEqual(Statement[1].Principal, { AWS: "arn:aws:iam::123456789012:root" });
  assert.ok(Statement.every((each) => each.Resource === "arn:q"));
  for (const text of ["{", "[]", "12"]) assert.throws(() => withStatement(text, Statement[0]));
});

const { operationsOf, typeText } = await import("./static/api_reference.js");

cases("typeText", typeText, [
  [{ type: "integer" }, "integer"],
  [{ anyOf: [{ $ref: "#/components/schemas/Undone" }, { type: "null" }] }, "Undone or null"],
  [{ type: "array", items: { type: "string" } }, "list of string"],
  [{ type: "object", additionalProperties: { type: "integer" } }, "object of integer"],
  [{ enum: ["a", "b"] }, '"a" or "b"'],
  [{}, "anything"],
]);
test("operations have the parameters that are told once for all", () => {
  const account = { name: "account", in: "query", schema: { type: "string" } };
  const told = { tags: ["queues"], summary: "Lists.", parameters: [{ $ref: "#/components/parameters/account" }],
    responses: { 200: { content: { "application/json": { schema: { type: "object" } } } } } };
  const [found] = operationsOf({ paths: { "/q": { get: told } }, components: { parameters: { account } } });
  assert.deepEqual(found, { method: "GET", path: "/q", tag: "queues", summary: "Lists.", description: "",
    parameters: [account], body: undefined, answer: { type: "object" } });
});

const { placeOf } = await import("./static/hosts.js");

cases("placeOf", ([host, more]) => placeOf({ voters: ["a", "b", "c"], leader: "a", replicas: [
  { host: "a", behind: 0, is_voter: true }, { host: "b", behind: 0, is_voter: true, ...more }] }, host).join(": "), [
  [["a", {}], "leads: leads"],
  [["b", {}], "follows: follows"],
  [["b", { behind: 1200 }], "lags: 1,200 behind"],
  [["b", { needs_checkpoint: true }], "lags: is copied anew"],
  [["b", { damage: "log" }], "away: damaged"],
  [["b", { conflict: "up to 9" }], "away: in conflict"],
  [["b", { is_voter: false }], "follows: does not count yet"],
  [["c", {}], "away: not reached"],
  [["d", {}], ": "],
]);

const { pathsIn, pathsOf, sharedBy, valueAt } = await import("./static/columns.js");

test("columns are offered by what looks like an error, then by what differs", () => {
  const bodies = [{ v: 1, n: 1, items: [{ sku: "A" }], error: { code: 7 } }, { v: 1, n: 2, items: [{ sku: "A" }] }];
  assert.deepEqual(pathsIn([...bodies.map((each) => JSON.stringify(each)), "no JSON"]),
    ["error.code", "n", "v", "items[0].sku"]);
  const errors = ["a", "b", "c"].map((text, at) => JSON.stringify({ error: { message: text, type: at % 2 } }));
  assert.deepEqual(pathsIn(errors), ["error.type", "error.message"]);
});

cases("pathsOf", (text) => pathsOf(text).join("|"), [[" error.type,, a ,a", "error.type|a"], ["", ""], ["1,2,3,4,5,6,7", "1|2|3|4|5|6"]]);
cases("valueAt", ([body, path]) => valueAt(body, path), [
  [['{"a": {"b": [{"c": "x"}]}}', "a.b[0].c"], "x"],
  [['{"a": {"b": 1.5}}', "a"], '{"b":1.5}'],
  [['{"a": null}', "a"], "null"],
  [['{"a": 1}', "constructor"], ""],
  [["no json", "a"], ""],
]);
cases("sharedBy", sharedBy, [
  [[], 0],
  [['{"a": 1}'], 0],
  [['{"a": 1, "b": 2}', '{"a": 1, "b": 3}'], 0],
  [['{"tenant": "shop", "v": 1, "id": 1}', '{"tenant": "shop", "v": 1, "id": 2}'], 26],
  [['{"tenant": "shop", "v": 1, "id": 1}', ""], 0],
]);

const CONDITIONS = [
  ['error.type = "Tax…"', { json: "error.type^=Tax" }],
  ["error.type ^= Tax", { json: "error.type^=Tax" }],
  ["items[0].sku=A1", { json: "items[0].sku=A1" }],
  ['note = ""', { json: "note=" }],
  ["has error.type", { json: "error.type" }],
  ["$.id = 7", { json: "$.id=7" }],
  ["attribute.trace.id = \"a b\"", { attribute: "trace.id=a b" }],
  ["sent < 14h", { newer_s: "50400" }],
  ["sent > 2d 6h", { older_s: "194400" }],
  ["receives >= 3", { received_min: "3" }],
  ["receives < 3", { received_max: "2" }],
  ["receives = 3", { received_min: "3", received_max: "3" }],
  ["group = \"g 1\"", { group: "g 1" }],
  ["source = orders", { source: "orders" }],
  ["state = in flight", { state: "in flight" }],
  ["0b7f2c11-0000", { id: "0b7f2c11-0000" }],
  ["card declined", { text: "card declined" }],
  ['"a = b"', { text: "a = b" }],
];
for (const [given, wanted] of CONDITIONS)
  test(`a condition is read: ${given}`, () => {
    assert.deepEqual(parsed(given, MESSAGES), wanted);
    const shown = each(wanted).map(([name, value]) => parsed(conditionText(name, value), MESSAGES));
    assert.deepEqual(Object.assign({}, ...shown), wanted, "and its chip means the same");
  });

test("times are of the archive, tags of queues", () => {
  assert.deepEqual(parsed("sent >= 2026-11-29 10:00", ARCHIVED), { from_ms: String(Date.UTC(2026, 10, 29, 9)) });
  assert.deepEqual(parsed("sent < 2026-11-29 10:00Z", ARCHIVED), { until_ms: String(Date.UTC(2026, 10, 29, 10)) });
  assert.deepEqual(parsed("sent >= 2026-11-29", ARCHIVED), { from_ms: String(Date.UTC(2026, 10, 28, 23)) });
  assert.equal(conditionText("from_ms", String(Date.UTC(2026, 10, 29, 9))), "sent >= 2026-11-29 10:00:00");
  assert.deepEqual(parsed("left = expired", ARCHIVED), { reason: "expired" });
  assert.deepEqual(parsed('team = "pay…"', QUEUES), { tags: "team^=pay" });
  assert.deepEqual(parsed("has team", QUEUES), { tags: "team" });
});

test("what is no condition is said in a sentence", () => {
  assert.throws(() => parsed("sum > 3", MESSAGES), /Only sent and receives are compared by >/);
  assert.throws(() => parsed("sent < soon", MESSAGES), /Write sent < 14h/);
  assert.throws(() => parsed("state = odd", MESSAGES), /state is one of: visible/);
  assert.throws(() => parsed("error.type =", MESSAGES), /Write what error.type is compared with/);
  assert.throws(() => parsed("left = expired", new Set(["id"])), /no condition on left/);
});

test("several fields are compared, each once", () => {
  const both = withMore({ json: "a=1" }, { json: "b=2" });
  assert.deepEqual(both, { json: "a=1\nb=2" });
  assert.deepEqual(withMore(both, { json: "a^=3" }), { json: "b=2\na^=3" });
  assert.deepEqual(without(both, "json", "a=1"), { json: "b=2" });
  assert.deepEqual(without({ json: "a=1", id: "7" }, "json", "a=1"), { id: "7" });
  assert.deepEqual(without({ id: "7" }, "json", "a=1"), { id: "7" });
  assert.equal(filterText(both), 'a = "1", b = "2"');
});

test("suggestions are what is typed, what is shown, and beginnings", () => {
  const seen = ['error.type = "TaxLookup"', 'group = "g1"'];
  const texts = (typed) => suggestions(typed, MESSAGES, seen).map(({ text }) => text);
  assert.deepEqual(texts("tax"), ['"tax"', 'error.type = "TaxLookup"']);
  assert.deepEqual(texts("type=Tax"), ['type = "Tax"', '"type=Tax"', 'error.type = "TaxLookup"']);
  assert.ok(texts("").includes("sent < "));
  assert.ok(texts("held").includes("state = held"));
});

test("hits are where the filter found something", () => {
  const marked = (body, filter) => hitsOf(body, filter).map(([begin, end]) => body.slice(begin, end));
  const body = '{"n": 12, "type": "Tax", "other": "Tax", "error": {"type":"TaxLookup"}}';
  assert.deepEqual(marked(body, { text: "TAX" }), ["Tax", "Tax", "Tax"]);
  assert.deepEqual(marked(body, { json: "type=Tax" }), ['"Tax"']);
  assert.deepEqual(marked(body, { json: "error.type^=TaxL" }), ['"TaxL']);
  assert.deepEqual(marked(body, { json: "n=12" }), ["12"]);
  assert.deepEqual(marked(body, { json: "n=1" }), []);
  assert.deepEqual(marked(body, { json: "other" }), ['"other"']);
  assert.deepEqual(marked("a.b a+b", { text: "a+b" }), ["a+b"]);
});

const { nextHit } = await import("./static/editor.js");

test("a text is found in any case, and the steps go round", () => {
  assert.deepEqual(textHits("ab(AB", "ab("), [[0, 3]]);
  assert.deepEqual(textHits("aaaa", "aa"), [[0, 2], [2, 4]]);
  assert.deepEqual(textHits("abc", ""), []);
  assert.deepEqual([[-1, 1, 3], [2, 1, 3], [0, -1, 3], [-1, -1, 3], [0, 1, 0]].map((each) => nextHit(...each)), [0, 0, 2, 2, -1]);
});

const { bytesOf, jsonFault, placeText, refusal } = await import("./static/body_check.js");

test("a body is JSON, or the first place at which it is not is told", () => {
  const told = (text) => {
    const fault = jsonFault(text);
    return fault && `${placeText(text, fault.at)}: ${fault.text}`;
  };
  for (const good of ['{"a": [1, -2.5e3, true, null, "\\u00e9\\n"], "b": {}}', "[]", '"x"', " 12 "]) {
    assert.equal(told(good), null);
    JSON.parse(good);
  }
  assert.equal(told('{"a": 1,}'), "line 1, column 9: A comma before } is one too many.");
  assert.equal(told('{\n  "a": 1\n  "b": 2}'), "line 3, column 3: A comma or } is expected.");
  assert.equal(told("{a: 1}"), "line 1, column 2: A name in quotes or } is expected.");
  assert.equal(told('{"a" 1}'), "line 1, column 6: A colon is expected.");
  assert.equal(told('{"a": tax}'), "line 1, column 7: A value is expected: a text stands in double quotes.");
  assert.equal(told('["open]'), "line 1, column 2: The quotes of this text are not closed.");
  assert.equal(told('["\\x"]'), "line 1, column 3: This is no escape: write \\\\ for a backslash.");
  assert.equal(told("[1] 2"), "line 1, column 5: Nothing more is expected here.");
  assert.equal(told(""), "line 1, column 1: A value is expected: the text ends.");
  assert.match(told("[".repeat(200000)) ?? "", /too deep/);
});

test("what is no JSON for a browser is none for the editor", () => {
  for (const text of ["01", "1.", "+1", "nul", '{"a":1 "b"}', "[1,,2]", "[1", '"\t"', "{} {}", "'a'", "1e", "-"]) {
    assert.throws(() => JSON.parse(text));
    assert.notEqual(jsonFault(text), null, text);
  }
});

test("what the service refuses is told with its place", () => {
  assert.equal(refusal("ok \t\n \u{1f600}", 100), null);
  assert.deepEqual(refusal("a\u0001b", 100), { at: 1, text: "The character U+0001 may not be in a message." });
  assert.equal(refusal("\ud800", 100)?.text, "The character U+D800 may not be in a message.");
  assert.equal(refusal("é".repeat(600), 1024, 10)?.text, "The message has 186 bytes more than the 1,024 that the queue takes.");
  assert.equal(refusal("", 100)?.text, "A message has a body.");
  assert.equal(bytesOf("é"), 2);
});

/** What becomes of a request that gets these answers, with the number of tries; the time stands still. */
async function triedWith(/** @type {[number, string | null][]} */ answers) {
  let tries = 0;
  let waited = 0;
  const left = new AbortController();
  const { fetch, setTimeout: later } = globalThis;
  Object.assign(globalThis, {
    setTimeout: (/** @type {() => void} */ done) => queueMicrotask(done),
    fetch: async () => {
      const [status, retryAfter] = answers[Math.min(tries, answers.length - 1)] ?? [0, null];
      tries += 1;
      const headers = new Headers(retryAfter ? { "retry-after": retryAfter } : {});
      return new Response(JSON.stringify(status === 200 ? {} : { error: "No room." }), { status, headers });
    },
  });
  try {
    await sentUntilTaken({ method: "GET", path: "x" }, left.signal, () => {
      waited += 1;
      if (waited === 50) left.abort();
    });
    return ["", tries, waited];
  } catch (error) {
    return [error.name === "AbortError" ? "left" : error.message, tries, waited];
  } finally {
    Object.assign(globalThis, { fetch, setTimeout: later });
  }
}

test("what the service has no room for is tried again until its screen is left", async () => {
  assert.deepEqual(await triedWith([[503, "1"], [503, "1"], [200, null]]), ["", 3, 2]);
  assert.deepEqual(await triedWith([[503, "1"]]), ["left", 50, 50]);
  assert.deepEqual(await triedWith([[503, null]]), ["No room.", 1, 0]);
  assert.deepEqual(await triedWith([[503, "1"], [400, null]]), ["No room.", 2, 1]);
});

test("times since and until now are by the service's clock", () => {
  const atMs = Date.now();
  heardClock(new Date(atMs - HOUR).toUTCString(), atMs);
  assert.ok(Math.abs(nowMs() - (atMs - HOUR)) < 2000);
  assert.match(ago(atMs - HOUR - 75000), /^1m 1\ds ago$/);
  heardClock(null);
  assert.ok(nowMs() < atMs - HOUR + 2000, "an answer of something else tells nothing");
  heardClock(new Date(atMs + 1500).toUTCString(), atMs);
  assert.ok(Math.abs(nowMs() - Date.now()) < 100, "whole seconds, and the way of an answer, are no difference");
});

async function refusedWith(status, body, statusText = "") {
  const { fetch } = globalThis;
  const answer = { ok: false, status, statusText, headers: new Headers(), text: async () => body };
  Object.assign(globalThis, { fetch: async () => answer });
  try {
    return await sent({ method: "GET", path: "queues" }).then(() => "", (error) => error.message);
  } finally {
    Object.assign(globalThis, { fetch });
  }
}

test("a page that is open for days keeps nothing of its pauses", async () => {
  const ended = new AbortController();
  /** @type {number[]} */
  const listeners = [];
  const { document: before } = globalThis;
  Object.assign(globalThis, { document: { hidden: false } });
  try {
    await repeat(ended.signal, 0, async () => {
      listeners.push(getEventListeners(ended.signal, "abort").length);
      if (listeners.length === 20) ended.abort();
    });
  } finally {
    Object.assign(globalThis, { document: before });
  }
  assert.deepEqual(listeners, Array(20).fill(0));
});

test("the end of a screen ends its pause", async () => {
  const ended = new AbortController();
  const { document: before } = globalThis;
  Object.assign(globalThis, { document: { hidden: true } });
  const repeated = repeat(ended.signal, 3600000, async () => assert.fail("nobody looks"));
  ended.abort();
  await repeated;
  Object.assign(globalThis, { document: before });
});

test("a refusal says what is needed, or what to do next", async () => {
  const denied = "User: arn:aws:iam::000000000000:user/wat is not authorized to perform: holdfast:ReadMessageBodies "
    + "on resource: arn:aws:sqs:us-east-1:000000000000:shop-dead ";
  const answer = (rest) => JSON.stringify({ error: denied + rest, code: "AccessDenied" });
  assert.equal(await refusedWith(403, answer("because no identity-based policy allows the holdfast:ReadMessageBodies action")),
    "This needs holdfast:ReadMessageBodies on shop-dead: your policies do not allow it.");
  assert.equal(await refusedWith(403, answer("with an explicit deny in a resource-based policy")),
    "This needs holdfast:ReadMessageBodies on shop-dead: a policy denies it.");
  assert.equal(await refusedWith(400, JSON.stringify({ error: "No such path." })), "No such path.");
  assert.equal(await refusedWith(502, "<html>", "Bad Gateway"),
    "The service, or a proxy before it, answered 502 Bad Gateway. Try again in a moment.");
  assert.equal(await refusedWith(403, ""),
    "The service, or a proxy before it, answered 403. Reload this page: a proxy may ask you to sign in.");
});

for (const [text, parts] of /** @type {[string, (string | string[])[]][]} */ ([
  ["", []],
  ["a\tb\r\nc\n", ["a\tb\r\nc\n"]],
  ["a\u200bb", ["a", ["U+200B", "zero-width space"], "b"]],
  ["\u202eevil\u202c", [["U+202E", "right-to-left override"], "evil", ["U+202C", "end of a direction"]]],
  ["\u0001\u0085", [["U+0001", "control character"], ["U+0085", "control character"]]],
  ["a\rb", ["a", ["U+000D", "control character"], "b"]],
  ["\u{e0041}\ufe0f", [["U+E0041", "character that is not seen"], ["U+FE0F", "character that is not seen"]]],
  ["👩‍💻 ❤️ 👍🏽", ["👩‍💻 ❤️ 👍🏽"]],
  ["👩\u200d", ["👩", ["U+200D", "zero-width joiner"]]],
  ["1\uFE0F\u20E3 \u{1F3F4}\u{E0067}\u{E0062}\u{E007F} \u0600", ["1\uFE0F\u20E3 \u{1F3F4}\u{E0067}\u{E0062}\u{E007F} \u0600"]],
  ["می\u200Cخواهم", ["می\u200Cخواهم"]],
  ["pay\u200Cload", ["pay", ["U+200C", "zero-width non-joiner"], "load"]],
])) test(`partsOf(${JSON.stringify(text)})`, () =>
  assert.deepEqual(partsOf(text).map(({ text: part, name }) => (name ? [part, name] : part)), parts));

test("the kinds of characters that are not seen are named once, with the first place", () => {
  assert.equal(unseenIn('{"a": "b"}\n'), null);
  assert.deepEqual(unseenIn("ab\u202ec\u202cd\u202e"), { at: 2, names: ["U+202E (right-to-left override)", "U+202C (end of a direction)"] });
  assert.equal(unseenIn("\u200b")?.at, 0);
});

test("of many characters that are not seen only the first are named", () => {
  const text = "a\u200B".repeat(50000);
  const parts = partsOf(text);
  assert.ok(parts.length < 1100);
  const rest = parts.at(-1);
  assert.equal(parts.at(-2).text, "…");
  assert.ok(rest.name === "" && text.endsWith(rest.text));
});
