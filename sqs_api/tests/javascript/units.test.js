// Units of the console that need no browser.

import assert from "node:assert/strict";
import { test } from "node:test";

globalThis.location = { origin: "https://queues.example" };

const { bytes, count, delay, instant, nameOf, pretty, quoted, rate, span } = await import("./static/format.js");
const { conditionsOf, filterText } = await import("./static/filters.js");
const { diff } = await import("./static/diff.js");
const { path } = await import("./static/lines.js");
const { encoded, queryOf, signedHeaders } = await import("./static/signing.js");
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
cases("nameOf", nameOf, [["", ""], ["arn:aws:sqs:eu-west-1:000000000000:jobs.fifo", "jobs.fifo"]]);
cases("quoted", quoted, [["plain-1.2", "plain-1.2"], ["a b", "'a b'"], ["it's", "'it'\\''s'"], ["", "''"]]);
cases("pretty", pretty, [
  ["no json", null],
  ["12", null],
  ["[]", "[]"],
  ['{"n":1.00,"s":"a:{,}","l":[1,{}]}', '{\n  "n": 1.00,\n  "s": "a:{,}",\n  "l": [\n    1,\n    {}\n  ]\n}'],
]);
cases("encoded", encoded, [["a b/c*'(é)!", "a%20b%2Fc%2A%27%28%C3%A9%29%21"], ["~._-", "~._-"]]);

test("a pretty body means what the body means", () => {
  const body = { text: 'quote " and \\ and \n', deep: [[[]], { a: { b: [true, null, -1.5e3] } }] };

  assert.deepEqual(JSON.parse(pretty(JSON.stringify(body))), body);
});

test("only a filter's conditions are read from an address", () => {
  const query = new URLSearchParams("text=boom&received_min=3&page=2&group=");

  assert.deepEqual(conditionsOf(query), { text: "boom", received_min: "3" });
  assert.equal(filterText({ text: "boom", sent_before_ms: 0 }), "text boom, sent_before 1970-01-01T00:00:00");
});

test("a difference keeps the lines of both texts in order", () => {
  const [before, after] = ["a\nb\nc", "a\nc\nd"];
  const found = diff(before, after);
  const side = (kind) => found.filter(([each]) => each !== kind).map(([, line]) => line).join("\n");

  assert.deepEqual(found, [["same", "a"], ["gone", "b"], ["same", "c"], ["new", "d"]]);
  assert.equal(side("new"), before);
  assert.equal(side("gone"), after);
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
});
