"""One request at the gateway until its answer is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from auth.auth_errors import AuthError
from auth.caller import Caller
from sqs_api.gateway.client import Client
from sqs_api.gateway.queue_counts import QueueCounts
from sqs_api.gateway.request_memory import RequestMemory
from sqs_api.protocol.codec import Wire
from sqs_api.protocol.reply import HeaderLines
from visibility.contract.actions import Action
from visibility.contract.errors import Departing, Moved, QueueError
from visibility.contract.model import QueueDefinition
from visibility.contract.operations import Operation, SendMessage, SendMessageBatch
from visibility.contract.outcomes import Answer, Deduplicated, Deliveries
from visibility.contract.results import SendMessageBatchResult
from visibility.state.waiters import Ticket

JSON = Wire.JSON
"""Read for each request: from the class it takes 0.2 µs."""
_TIMES_IN_JSON = 2
"""The factor by which escapes may lengthen a message."""
_TIMES_IN_XML = 6
_SENDS = (SendMessage, SendMessageBatch)


class Receives(Protocol):
    """The gateway's answers to receives."""

    def hand_out(self, exchange: Exchange, ticket: Ticket | None, deliveries: Deliveries) -> None:
        """Answer a receive, which had this ticket."""


class Answerer(Protocol):
    """The gateway, as an exchange needs it."""

    memory: RequestMemory
    counts: QueueCounts

    @property
    def receives(self) -> Receives:
        """Answers receives."""

    def succeed(self, exchange: Exchange, result: Answer) -> object:
        """Answer anything else."""

    def go_on(self, exchange: Exchange, ticket: Ticket) -> None:
        """Take a request that had this ticket to other parts of its queue."""

    def refuse(self, exchange: Exchange, refusal: QueueError | AuthError) -> None:
        """Answer with an error of the client or of the service."""

    def fail(self, exchange: Exchange) -> None:
        """Answer for a bug, which is being handled."""

    def write(
        self,
        exchange: Exchange,
        status: int,
        kind: bytes,
        body: bytes,
        headers: HeaderLines = (),
    ) -> bool:
        """Write an answer; False if the client did not get it."""


class Exchange(msgspec.Struct):
    """One request that waits for its answer. A msgspec Struct since those are made fastest.

    It is the `Room` of its answer, too.

    Its headers and body are not kept, but for the few headers that a receive's permission depends
    on: a long poll waits for seconds.
    """

    gateway: Answerer
    client: Client
    request_id: str
    started_s: float
    bytes_in: int
    wire: Wire = JSON
    action: Action | None = None
    """None until the request is read."""
    answered: bool = False
    operation: Operation | None = None
    queue: QueueDefinition | None = None
    caller: Caller | None = None
    ticket: Ticket | None = None
    refusal: QueueError | AuthError | None = None
    does_not_wait: bool = False
    """A long poll that is answered at once, since too many wait."""
    letting: HeaderLines = ()
    """Headers that let a web page read the answer."""
    held_bytes: int = 0
    """The share of the request memory that a receive's answer has until it is written."""
    changes: int = 0
    """`Access.changes` when a receive was let in."""
    kept_headers: Mapping[bytes, bytes] | None = None
    """See `MayWait`."""
    taken: int = 0
    """Messages of the answer that do not come again."""

    def on_answer(self, answer: Answer | QueueError) -> None:
        """Answer: the shard has released its decision."""
        ticket, self.ticket = self.ticket, None
        gateway, kind = self.gateway, type(answer)
        try:
            if kind is Deliveries:
                if ticket is not None:
                    # A purge may have given the queue another id while it waited.
                    self.queue = ticket.request.queue
                gateway.receives.hand_out(self, ticket, answer)  # type: ignore[arg-type]
            elif kind is Deduplicated:  # the client sees no difference
                assert isinstance(answer, Deduplicated)
                gateway.counts.sent_again(self._queue_id, answer.duplicates)
                gateway.succeed(self, answer.result)
            elif kind in (Moved, Departing) and ticket is not None:
                gateway.go_on(self, ticket)
            elif isinstance(answer, QueueError):
                if type(self.operation) in _SENDS:
                    gateway.counts.not_sent(self._queue_id, self.operation, answer)
                gateway.refuse(self, answer)
            else:
                if isinstance(answer, SendMessageBatchResult) and answer.failed:
                    gateway.counts.not_sent(self._queue_id, self.operation, answer)
                gateway.succeed(self, answer)
        except Exception:
            gateway.fail(self)

    @property
    def _queue_id(self) -> int:
        assert self.queue is not None
        return self.queue.queue_id

    def has(self, size: int, messages: int) -> bool:
        """True if the memory for answers has room for one of this size."""
        return self._has(self._written_size(size), may_exceed=messages == 1)

    def take(self, size: int) -> None:
        """Take that room."""
        self._hold(self._written_size(size))

    def correct(self, size: int) -> bool:
        """Take room for the answer as it is written, in place of the estimate; False without
        any."""
        self.give_back()
        has_room = self._has(size, may_exceed=True)
        if has_room:
            self._hold(size)
        return has_room

    def give_back(self) -> None:
        """Give the room back."""
        self._hold(0)

    def _written_size(self, size: int) -> int:
        return size * (_TIMES_IN_JSON if self.wire is JSON else _TIMES_IN_XML)

    def _has(self, size: int, *, may_exceed: bool) -> bool:
        assert self.caller is not None
        return self.gateway.memory.has_room(self.caller, size, may_exceed=may_exceed)

    def _hold(self, size: int) -> None:
        assert self.caller is not None
        self.gateway.memory.hold(self.caller, size - self.held_bytes)
        self.held_bytes = size
