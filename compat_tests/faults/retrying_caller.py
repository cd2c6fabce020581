"""A caller of the traffic: one connection, reopened when it is lost, and the history it records."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from compat_tests.benchmarks.bench_wire import Connection, Endpoint, Refused, connect
from compat_tests.facade import Members
from compat_tests.faults.evidence import wall
from compat_tests.faults.fault_history import (
    Change,
    Delete,
    Delivery,
    Failure,
    History,
    Outcome,
    Queue,
    Send,
    content_digest,
)
from compat_tests.faults.sdk import SdkConnection

RESTING_S = 0.1
"""After a failed call, while the service is down."""

_SOON_S = 0.5
"""Time for an answer that nothing delays."""
CALL_S = 40.0
_LINES_MAX = 1000
_LATE = (
    "handle has expired|not available for visibility timeout change|not in flight|does not refer"
)
"""Refusals of a handle whose visibility timeout has ended, which a slow consumer must expect."""


class Reply(NamedTuple):
    """The end of a call."""

    outcome: Outcome
    answer: Members
    begun: float
    ended: float


class Letter(NamedTuple):
    """A message to be sent."""

    name: str
    body: str
    attributes: dict[str, Any]
    group: str = ""
    place: int = 0
    delay_s: int = 0
    deduplication_id: str = ""

    def members(self) -> Members:
        """As members of a request or of a batch's entry."""
        given = {
            "MessageBody": self.body,
            "MessageAttributes": self.attributes,
            "MessageGroupId": self.group,
            "MessageDeduplicationId": self.deduplication_id,
            "DelaySeconds": self.delay_s,
        }
        return {name: value for name, value in given.items() if value}


class Received(NamedTuple):
    """A delivery and the handle that came with it."""

    delivery: Delivery
    handle: str


class Caller:
    """Calls over one connection and records them."""

    def __init__(self, endpoint: Endpoint, history: History) -> None:
        self._endpoint = endpoint
        self._history = history
        self._connection: Connection | SdkConnection | None = None
        self._retries = 0
        """Of the last call, by the client itself."""
        self._request_id = ""
        """Of the last answer, where the client tells."""
        self._protocol = endpoint.protocols[history.callers % len(endpoint.protocols)]
        history.callers += 1

    @property
    def is_repeated(self) -> bool:
        """True if the client made the last call again by itself: it may have happened twice."""
        return self._retries > 0

    async def call(self, action: str, expected: str | None = None, **members: Any) -> Reply:
        """Call an action; `expected` is a pattern of acceptable refusals."""
        history = self._history
        begun = time.monotonic()
        history.calls += 1
        try:
            answer = await self._ask(action, json.dumps(members).encode())
        except Refused as refusal:
            queue = _queue_of(members)
            text = f"{action} {queue}: {str(refusal)[:300]}"
            is_refused = str(refusal).startswith("4")
            if not is_refused and not history.may_fail(queue, begun):
                self._note(history.faults, text)
                failure = Failure.FAULT
            elif not is_refused:
                failure = Failure.OUTAGE
            elif expected is not None and re.search(expected, text):
                failure = Failure.EXPECTED
                is_refused = not self._retries
            elif self._retries:
                failure = Failure.REPEATED
                is_refused = False  # perhaps for what the first attempt did
            else:
                self._note(history.refusals, text)
                failure = Failure.REFUSED
            outcome = Outcome.REFUSED if is_refused else Outcome.UNKNOWN
        except OSError as error:
            self.close()
            is_hung = isinstance(error, TimeoutError)
            outcome, failure = Outcome.UNKNOWN, Failure.HUNG if is_hung else Failure.CLOSED
        else:
            return Reply(
                Outcome.DONE, json.loads(answer) if answer else {}, begun, time.monotonic()
            )
        history.failed[failure] += 1
        ended = time.monotonic()
        await asyncio.sleep(RESTING_S)
        return Reply(outcome, {}, begun, ended)

    async def _ask(self, action: str, body: bytes) -> bytes:
        """The answer. Raises Refused, TimeoutError, other OSErrors."""
        if self._endpoint.by_sdk:  # it has limits of its own
            by_sdk = self._connection = SdkConnection(self._endpoint, self._protocol)
            try:
                return await by_sdk.call(action, body)
            finally:
                self._retries, self._request_id = by_sdk.retries, by_sdk.request_id
        if self._connection is None:
            (self._connection,) = await connect(self._endpoint, 1)
        return await asyncio.wait_for(self._connection.call(action, body), CALL_S)

    def _note(self, lines: list[str], text: str) -> None:
        if len(lines) < _LINES_MAX:
            lines.append(f"{wall(time.monotonic())} {text}")

    def close(self) -> None:
        """Close the connection; the next call makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # -- sends -------------------------------------------------------------------------------------

    async def send(self, queue: Queue, letters: list[Letter]) -> bool:
        """Send one message or a batch; True if each was acknowledged."""
        if len(letters) == 1:
            members = letters[0].members()
            reply = await self.call("SendMessage", QueueUrl=queue.url, **members)
            answers = {0: reply.answer} if reply.outcome is Outcome.DONE else {}
        else:
            entries = [{"Id": str(n), **letter.members()} for n, letter in enumerate(letters)]
            reply = await self.call("SendMessageBatch", QueueUrl=queue.url, Entries=entries)
            answers = {int(entry["Id"]): entry for entry in self._successful(queue, reply)}
        if reply.outcome is Outcome.DONE:
            self._history.latencies.append(reply.ended - reply.begun)
        if self._retries and not queue.name.endswith(".fifo"):
            self._history.repeated.update(letter.name for letter in letters)
        for number, letter in enumerate(letters):
            answer = answers.get(number)
            outcome = Outcome.DONE if answer is not None else reply.outcome
            if answer is None and outcome is Outcome.DONE:
                outcome = Outcome.UNKNOWN  # an entry that failed
            send = _send(queue, letter, reply, outcome, answer or {})
            self._history.sends.append(replace(send, request_id=self._request_id))
        return len(answers) == len(letters)

    def _successful(self, queue: Queue, reply: Reply, expected: str | None = None) -> list[Members]:
        """The entries of a batch that succeeded; the others are noted as errors."""
        for failed in reply.answer.get("Failed", []):
            text = f"{queue.name}: {failed}"
            if not failed["SenderFault"]:
                if self._history.may_fail(queue.name, reply.begun):
                    continue
                self._note(self._history.faults, text)
            elif expected is None or not re.search(expected, text):
                self._note(self._history.refusals, text)
        return list(reply.answer.get("Successful", []))

    # -- receives ----------------------------------------------------------------------------------

    async def receive(
        self, queue: Queue, hidden_s: float, *, wait_s: int = 0, most: int = 10
    ) -> list[Received] | None:
        """Receive, hiding the messages for `hidden_s`; None if the outcome is unknown."""
        reply = await self.call(
            "ReceiveMessage",
            QueueUrl=queue.url,
            MaxNumberOfMessages=most,
            WaitTimeSeconds=wait_s,
            VisibilityTimeout=int(hidden_s),
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        )
        self._history.unknown_receives[queue.name] += self._retries
        if reply.outcome is not Outcome.DONE:
            self._history.unknown_receives[queue.name] += reply.outcome is Outcome.UNKNOWN
            return None
        before: list[str] = []
        found = []
        for message in reply.answer.get("Messages", []):
            delivery = _delivery(queue, message, reply, hidden_s, tuple(before))
            before.append(delivery.name)
            self._history.deliveries.append(delivery)
            found.append(Received(delivery, message["ReceiptHandle"]))
        if not found and reply.ended - reply.begun > hidden_s + wait_s + _SOON_S:
            # a host that failed may have received messages, whose timeout was over when another
            # host led: they count as received
            self._history.unknown_receives[queue.name] += 1
        return found

    async def delete(self, queue: Queue, received: list[Received]) -> None:
        """Delete one message or a batch."""
        if len(received) == 1:
            members = {"QueueUrl": queue.url, "ReceiptHandle": received[0].handle}
            reply = await self.call("DeleteMessage", _LATE, **members)
            outcomes = [reply.outcome]
        else:
            reply, outcomes = await self._settle("DeleteMessageBatch", queue, received)
        for (delivery, _), outcome in zip(received, outcomes, strict=True):
            self._history.deletes.append(Delete(delivery, reply.begun, reply.ended, outcome))

    async def change(self, queue: Queue, received: list[Received], timeout_s: int) -> None:
        """Change the visibility timeouts of a batch."""
        action = "ChangeMessageVisibilityBatch"
        reply, outcomes = await self._settle(action, queue, received, VisibilityTimeout=timeout_s)
        for (delivery, _), outcome in zip(received, outcomes, strict=True):
            change = Change(delivery, timeout_s, reply.begun, reply.ended, outcome)
            self._history.changes.append(change)

    async def _settle(
        self, action: str, queue: Queue, received: list[Received], **members: Any
    ) -> tuple[Reply, list[Outcome]]:
        """Call a batch action on received messages; the outcome of each."""
        entries = [
            {"Id": str(number), "ReceiptHandle": each.handle, **members}
            for number, each in enumerate(received)
        ]
        reply = await self.call(action, _LATE, QueueUrl=queue.url, Entries=entries)
        default = Outcome.UNKNOWN if reply.outcome is Outcome.DONE else reply.outcome
        outcomes: list[Outcome] = [default] * len(received)
        for entry in self._successful(queue, reply, _LATE):
            outcomes[int(entry["Id"])] = Outcome.DONE
        for entry in reply.answer.get("Failed", []):
            if entry["SenderFault"] and not self._retries:  # see `call`
                outcomes[int(entry["Id"])] = Outcome.REFUSED
        return reply, outcomes


def _queue_of(members: Members) -> str:
    """The name of the queue that a call is about; empty if there is none."""
    if "TaskHandle" in members:
        return str(json.loads(base64.b64decode(members["TaskHandle"]))["sourceArn"].split(":")[-1])
    for name in ("QueueName", "QueueUrl", "SourceArn"):
        if name in members:
            return str(re.split("[/:]", members[name])[-1])
    return ""


def _send(queue: Queue, letter: Letter, reply: Reply, outcome: Outcome, answer: Members) -> Send:
    return Send(
        letter.name,
        queue.name,
        content_digest(letter.body, letter.attributes, letter.group),
        reply.begun,
        reply.ended,
        outcome,
        answer.get("MessageId", ""),
        letter.group,
        letter.place,
        letter.delay_s,
    )


def _delivery(
    queue: Queue, message: Members, reply: Reply, hidden_s: float, before: tuple[str, ...]
) -> Delivery:
    shown = message["Attributes"]
    attributes = message.get("MessageAttributes", {})
    group = shown.get("MessageGroupId", "")
    return Delivery(
        message["Body"].partition("|")[0],
        queue.name,
        content_digest(message["Body"], attributes, group),
        message["MessageId"],
        int(shown["ApproximateReceiveCount"]),
        reply.begun,
        reply.ended,
        hidden_s,
        before,
    )


@asynccontextmanager
async def caller(endpoint: Endpoint, history: History) -> AsyncIterator[Caller]:
    """A caller that closes its connection in the end."""
    made = Caller(endpoint, history)
    try:
        yield made
    finally:
        made.close()
