"""The engine's transcripts, run over the wire against a real service in real time.

The stories are the files that `cluster/tests/test_scenarios.py` runs on a virtual clock. Here a
client of the service runs the same commands and must get the same answers, except for the times of
first receives. Commands that only the engine's test can give (a settable clock, an answer that is
never sent) are skipped, together with every later command on the queues that they concern. In a
cluster, where messages are on their way between shards for a moment, a receive that finds nothing
is repeated, and sequence numbers must rise as the story's do.
"""

from __future__ import annotations

import json
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from typing import Any

from compat_tests.facade import Client, ClientError, Members

STORIES = Path(__file__).parent.parent / "cluster" / "tests" / "scenarios"
BUDGET_S = 45.0
"""Real time for which one story may wait."""

_STEP_S_MAX = 10.0
_MARGIN_S = 0.3
_BEFORE_S = 1.5
_EDGE = 0.9
_LATE_S = 0.5
_RECENT = 6  # commands, more than lie between a timeout's beginning and its end
_PATIENCE_S = 60.0
_SETTLED_S = 0.1
_BASE = 10**19  # SequenceNumber of a queue's message 0
_DEFAULTS = {
    "VisibilityTimeout": "30",
    "DelaySeconds": "0",
    "ReceiveMessageWaitTimeSeconds": "0",
    "MessageRetentionPeriod": "345600",
    "RedrivePolicy": "",
}
_COUNTERS = ("", "NotVisible", "Delayed")
_NUMBERS = re.compile(r"number (\d+)\nnumber (\d+)")
_POLLER = re.compile(r"\bas=(\w+)")

Options = dict[str, str]


class Unsupported(Exception):
    """A command that cannot be given over the wire."""


class Late(Exception):
    """The machine was too slow to judge, or a leader changed; the text has the answers."""


class Story:
    """One transcript over one client."""

    def __init__(self, client: Client, prefix: str, *, may_be_cluster: bool = False) -> None:
        self._client = client
        self._may_be_cluster = may_be_cluster
        self._prefix = prefix
        self._urls: dict[str, str] = {}
        self._given: dict[str, Options] = {}
        self._handles: dict[str, str] = {}
        self._tasks: dict[str, str] = {}
        self._polls: dict[str, Future[list[str]]] = {}
        self._waits_on: dict[str, str] = {}
        """Queues by poller."""
        self._numbers: dict[str, dict[int, int]] = {}
        """By queue, sequence numbers of the story and those that came for them."""
        self._unknown: set[str] = set()
        """Queues whose state has departed from the story's."""
        self._is_slow = False
        self._waited_s = 0.0
        self._owed_s = 0.0
        self._taken_s: deque[float] = deque(maxlen=_RECENT)
        self._expected: list[str] = []
        self._threads = ThreadPoolExecutor(8)
        self.commands = 0

    def check(self, text: str) -> Iterator[str]:
        """Run the story; yields each block with a different answer."""
        pollers = set(_POLLER.findall(text))
        for block in text.strip().split("\n\n"):
            head, _, answers = block.partition("\n----")
            self._expected = answers.split("\n")[1:]
            commands = [line for line in head.split("\n") if not line.startswith("#")]
            told = {line.partition(": ")[0] for line in self._expected} & pollers
            if told - self._sound_polls() - set(_POLLER.findall(head)):
                self._give_up(commands)
                continue
            came: list[str] = []
            try:
                for command in commands:
                    came += self._run(command, came)
                    self.commands += 1
            except Unsupported:
                self._give_up(commands)
                continue
            if _masked(came) != _masked(self._expected):
                lines = [*commands, "---- expected", *self._expected, "---- came", *came]
                # A failover does not keep the order of long polls; SQS promises none.
                swapped = _without(pollers, came) == _without(pollers, self._expected)
                if self._is_slow or (self._may_be_cluster and swapped):
                    raise Late("\n".join(lines))
                yield "\n".join(lines)

    def close(self) -> None:
        """Abandon the polls that still wait."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _sound_polls(self) -> set[str]:
        return {name for name in self._polls if self._waits_on[name] not in self._unknown}

    def _give_up(self, commands: list[str]) -> None:
        for command in commands:
            words = command.split()
            if words[0] in ("time", "believe"):
                self._unknown |= self._urls.keys()
            self._unknown |= {word.partition("=")[2] or word for word in words[1:]}
            self._unknown |= {self._waits_on[word] for word in words[1:] if word in self._waits_on}

    def _run(self, command: str, came: list[str]) -> list[str]:
        words = [word for word in command.split() if "=" not in word]
        options = dict(word.split("=", 1) for word in command.split() if "=" in word)
        action: Callable[[list[str], Options], list[str]] | None
        action = getattr(self, "_do_" + words[0].replace("-", "_"), None)
        named = {
            *words[1:2],
            *(options[name] for name in ("to", "dead-letters-to") if name in options),
        }
        if action is None or named & self._unknown:
            raise Unsupported(command)
        begun = time.monotonic()
        left = self._expected[len(came) :]
        answers = self._until(left, lambda: action(words[1:], options), words[0])
        if words[0] != "time":
            self._taken_s.append(time.monotonic() - begun)
            self._is_slow |= sum(self._taken_s) > _LATE_S
        if self._may_be_cluster:
            answers = self._with_numbers("".join(words[1:2]), answers, left)
        return answers + self._answered_polls(left[len(answers) :])

    def _with_numbers(self, queue: str, answers: list[str], left: list[str]) -> list[str]:
        """The answers with the story's sequence numbers, where they are in the same order."""
        known = self._numbers.setdefault(queue, {})
        for place, pair in enumerate(zip(left, answers, strict=False)):
            found = _NUMBERS.fullmatch("\n".join(pair))
            if found is None:
                continue
            told, came = int(found[1]), int(found[2])
            known.setdefault(told, came)
            if all((told < a, told > a) == (came < b, came > b) for a, b in known.items()):
                answers[place] = left[place]
        return answers

    def _until(self, left: list[str], run: Callable[[], list[str]], word: str) -> list[str]:
        """Repeat a command that only reads until it gives the expected answer."""
        deadline = time.monotonic() + _PATIENCE_S
        answers = run()
        reads = word in ("count", "tasks")
        while left[: len(answers)] != answers:
            if not (reads or (self._may_be_cluster and answers == ["nothing"])):
                break
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
            answers = run()
        return answers

    def _answered_polls(self, left: list[str]) -> list[str]:
        """Polls that the command has answered; waits for those that it must answer."""
        lines: list[str] = []
        told = takewhile(lambda line: line.partition(": ")[0] in self._polls, left)
        expected = {line.partition(": ")[0] for line in told}
        for name, answer in list(self._polls.items()):
            deadline = time.monotonic() + (_PATIENCE_S if name in expected else _SETTLED_S)
            while not answer.done() and time.monotonic() < deadline:
                time.sleep(0.01)
            if answer.done():
                del self._polls[name]
                lines += [f"{name}: {line}" for line in answer.result()]
        return lines

    def _call(self, operation: str, **members: Any) -> Members:
        return self._client.call(operation, **members)

    def _told(self, operation: str, **members: Any) -> list[str]:
        try:
            answer = self._call(operation, **members)
        except ClientError as error:
            message = error.message
            for handle in self._handles.values():
                message = message.replace(handle, "handle")
            return [f"{_name(error.code)}: {message}"]
        if "SequenceNumber" in answer:
            return [f"number {int(answer['SequenceNumber']) - _BASE}"]
        done = [f"{entry['Id']}: done" for entry in answer.get("Successful", [])]
        failed = [f"{entry['Id']}: {_name(entry['Code'])}" for entry in answer.get("Failed", [])]
        return done + failed or ["done"]

    def _arn(self, queue: str) -> str:
        members = {"QueueUrl": self._urls[queue], "AttributeNames": ["QueueArn"]}
        return str(self._call("GetQueueAttributes", **members)["Attributes"]["QueueArn"])

    # -- commands ----------------------------------------------------------------------------------

    def _do_queue(self, words: list[str], options: Options) -> list[str]:
        if "archive" in options:
            raise Unsupported
        given = {name: value for name, value in options.items() if name[0].isupper()}
        if "dead-letters-to" in options:
            target = self._arn(options["dead-letters-to"])
            policy = {"deadLetterTargetArn": target, "maxReceiveCount": options.get("max", "1")}
            given["RedrivePolicy"] = json.dumps(policy)
        (name,) = words
        if name in self._urls:
            before = self._given[name]
            reset = {
                each: _DEFAULTS[each] for each in before.keys() - given.keys() if each in _DEFAULTS
            }
            members = {"QueueUrl": self._urls[name], "Attributes": {**reset, **given}}
            answered = self._told("SetQueueAttributes", **members) if reset or given else ["done"]
        else:
            is_fifo = name.endswith(".fifo")
            fixed = {"FifoQueue": "true", "ContentBasedDeduplication": "true"} if is_fifo else {}
            made = {"QueueName": f"{self._prefix}-{name}", "Attributes": {**fixed, **given}}
            self._urls[name] = self._call("CreateQueue", **made)["QueueUrl"]
            answered = ["done"]
        self._given[name] = given
        return answered

    def _do_send(self, words: list[str], options: Options) -> list[str]:
        queue, body = words
        members: Members = {"QueueUrl": self._urls[queue], "MessageBody": body}
        names = {"group": "MessageGroupId", "id": "MessageDeduplicationId"}
        members |= {names[name]: options[name] for name in names if name in options}
        if "delay" in options:
            members["DelaySeconds"] = int(options["delay"])
        return self._told("SendMessage", **members)

    def _do_send_batch(self, words: list[str], options: Options) -> list[str]:
        queue, *bodies = words
        more = {"DelaySeconds": int(options["delay"])} if "delay" in options else {}
        entries = [{"Id": str(n), "MessageBody": body, **more} for n, body in enumerate(bodies)]
        return self._told("SendMessageBatch", QueueUrl=self._urls[queue], Entries=entries)

    def _do_send_groups(self, words: list[str], options: Options) -> list[str]:
        queue, *bodies = words
        entries = [
            {"Id": str(n), "MessageBody": body, "MessageGroupId": body.partition("-")[0]}
            for n, body in enumerate(bodies)
        ]
        answer = self._call("SendMessageBatch", QueueUrl=self._urls[queue], Entries=entries)
        return [str(answer["Failed"])] if answer.get("Failed") else ["done"]

    def _do_receive(self, words: list[str], options: Options) -> list[str]:
        (queue,) = words
        names = {
            "most": "MaxNumberOfMessages",
            "timeout": "VisibilityTimeout",
            "wait": "WaitTimeSeconds",
        }
        members: Members = {names[name]: int(options[name]) for name in names if name in options}
        members |= {"QueueUrl": self._urls[queue], "AttributeNames": ["All"]}
        if "attempt" in options:
            members["ReceiveRequestAttemptId"] = options["attempt"]
        if "as" not in options:
            return self._received(queue, members)
        if self._client.protocol == "query":
            raise Unsupported  # its client supports one call at a time
        poller = options["as"]
        poll = self._threads.submit(self._received, queue, members)
        self._polls[poller] = poll
        self._waits_on[poller] = queue
        time.sleep(_SETTLED_S)
        if not poll.done():
            return [f"{poller} waits"]
        del self._polls[poller]
        return poll.result()

    def _received(self, queue: str, members: Members) -> list[str]:
        lines = []
        try:
            answer = self._call("ReceiveMessage", **members)
        except ClientError as error:
            if "ReceiveRequestAttemptId" not in members:
                raise
            return [f"{_name(error.code)}: {error.message}"]
        for message in answer.get("Messages", []):
            shown = message["Attributes"]
            delivery = f"{message['Body']}/{shown['ApproximateReceiveCount']}"
            self._handles[f"{queue} {delivery}"] = message["ReceiptHandle"]
            source = shown.get("DeadLetterQueueSourceArn", "").rpartition(f"{self._prefix}-")[2]
            lines.append(f"{delivery}, first received" + (f", from {source}" if source else ""))
        return lines or ["nothing"]

    def _handle(self, queue: str, delivery: str) -> str:
        """A handle of that delivery; a move carries along the handles issued before it."""
        if f"{queue} {delivery}" not in self._handles:
            raise Unsupported
        return self._handles[f"{queue} {delivery}"]

    def _do_delete(self, words: list[str], options: Options) -> list[str]:
        queue, *deliveries = words
        handles = [self._handle(queue, delivery) for delivery in deliveries]
        url = self._urls[queue]
        if len(handles) == 1:
            return self._told("DeleteMessage", QueueUrl=url, ReceiptHandle=handles[0])
        entries = [{"Id": str(n), "ReceiptHandle": handle} for n, handle in enumerate(handles)]
        return self._told("DeleteMessageBatch", QueueUrl=url, Entries=entries)

    def _do_change(self, words: list[str], options: Options) -> list[str]:
        queue, delivery, seconds = words
        return self._told(
            "ChangeMessageVisibility",
            QueueUrl=self._urls[queue],
            ReceiptHandle=self._handle(queue, delivery),
            VisibilityTimeout=int(seconds),
        )

    def _do_purge(self, words: list[str], options: Options) -> list[str]:
        return self._told("PurgeQueue", QueueUrl=self._urls[words[0]])

    def _do_count(self, words: list[str], options: Options) -> list[str]:
        names = [f"ApproximateNumberOfMessages{end}" for end in _COUNTERS]
        members = {"QueueUrl": self._urls[words[0]], "AttributeNames": names}
        found = self._call("GetQueueAttributes", **members)["Attributes"]
        visible, hidden, delayed = (found[name] for name in names)
        return [f"{visible} visible, {hidden} in flight, {delayed} delayed"]

    def _do_move(self, words: list[str], options: Options) -> list[str]:
        members: Members = {"SourceArn": self._arn(words[0])}
        if "to" in options:
            members["DestinationArn"] = self._arn(options["to"])
        if "rate" in options:
            members["MaxNumberOfMessagesPerSecond"] = int(options["rate"])
        try:
            self._tasks[words[0]] = self._call("StartMessageMoveTask", **members)["TaskHandle"]
        except ClientError as error:
            return [f"{_name(error.code)}: {error.message}"]
        return ["done"]

    def _do_cancel(self, words: list[str], options: Options) -> list[str]:
        members = {"TaskHandle": self._tasks[words[0]]}
        try:
            answer = self._call("CancelMessageMoveTask", **members)
        except ClientError as error:
            return [f"{_name(error.code)}: {error.message}"]
        return [f"{answer['ApproximateNumberOfMessagesMoved']} moved so far"]

    def _do_tasks(self, words: list[str], options: Options) -> list[str]:
        members = {"SourceArn": self._arn(words[0]), "MaxResults": 10}
        return [
            f"{task['Status']}: {task['ApproximateNumberOfMessagesMoved']} of "
            f"{task['ApproximateNumberOfMessagesToMove']}"
            + (f", {task['FailureReason']}" if "FailureReason" in task else "")
            + (", has a handle" if "TaskHandle" in task else "")
            for task in self._call("ListMessageMoveTasks", **members).get("Results", [])
        ] or ["none"]

    def _do_restart(self, words: list[str], options: Options) -> list[str]:
        """A restart must change nothing, so it is skipped: others use the service too."""
        if self._polls:
            raise Unsupported
        return ["done"]

    def _do_time(self, words: list[str], options: Options) -> list[str]:
        """Wait that long and a little longer; before an edge clearly shorter, and add the rest next
        time."""
        seconds = float(words[0])
        self._waited_s += seconds
        is_too_long = seconds > _STEP_S_MAX or self._waited_s > BUDGET_S
        if self._client.protocol == "query" or is_too_long:
            raise Unsupported
        is_before_edge = seconds % 1 > _EDGE
        owed_s = _BEFORE_S if is_before_edge else -_MARGIN_S
        time.sleep(seconds + self._owed_s - owed_s)
        self._owed_s = max(0.0, owed_s)
        return ["at "]


def _name(code: str) -> str:
    """An error's name in the engine."""
    return code.rpartition(".")[2].removesuffix("Exception")


def _without(pollers: set[str], lines: list[str]) -> list[str]:
    """The lines without the pollers that they are for."""
    parted = [line.partition(": ") for line in _masked(lines)]
    return sorted(rest if name in pollers else name + rest for name, _, rest in parted)


def _masked(lines: list[str]) -> list[str]:
    """Remove the times, which are real here."""
    masked = []
    for line in lines:
        delivery, received, rest = line.partition(", first received")
        source = rest.partition(", from ")[2]
        masked.append("at" if line.startswith("at ") else f"{delivery}{received} {source}".strip())
    return masked
