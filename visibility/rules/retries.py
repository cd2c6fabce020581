"""TABLE: operation to what is remembered of its answer, and how a retry gets that answer again.

A retry is a request whose earlier try may have been decided. Other requests are never looked up.
Operations that are not in the table may be decided twice: reads change nothing, and these have no
request id of their own, since the service makes them:

    ContinueQueue                     does nothing if the successor continues the queue already
    CloseQueue, QueueChanged          derive everything from the present state
    RestoreMessages, DropQueue        a step takes what is still there
    SealArchive                       seals what has come since as a batch of its own
    AcknowledgeArchive                names the last batch; earlier ones stay forgotten
    AcceptMessages, ClearOutbox       name messages, which arrive or leave once

So may requests that changed nothing: nothing was sent or received.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from visibility.contract import limits
from visibility.contract.errors import QueueError, ServiceUnavailable
from visibility.contract.held_messages import HoldMessages, ReleaseMessages
from visibility.contract.model import Content, Receipt, Request
from visibility.contract.operations import (
    CancelMessageMoveTask,
    ChangeMessageVisibility,
    ChangeMessageVisibilityBatch,
    ChangeMoveTask,
    DeleteMessage,
    DeleteMessageBatch,
    DeleteSelected,
    MoveSelected,
    Operation,
    ReceiveMessage,
    ResendMessage,
    ReturnMessages,
    SendMessage,
    SendMessageBatch,
    StartMessageMoveTask,
    UndoReceive,
)
from visibility.contract.outcomes import (
    Answer,
    Deduplicated,
    Deliveries,
    SelectedChanged,
    SelectedDeleted,
    batch_failure,
    failure_of,
)
from visibility.contract.results import (
    BatchResultErrorEntry,
    CancelMessageMoveTaskResult,
    ChangeMessageVisibilityBatchResult,
    ChangeMessageVisibilityBatchResultEntry,
    DeleteMessageBatchResult,
    DeleteMessageBatchResultEntry,
    SendMessageBatchResult,
    SendMessageResult,
    StartMessageMoveTaskResult,
)
from visibility.contract.stored_message import Lease
from visibility.rules.acknowledge import give_back
from visibility.rules.decide import DECIDE, Decide
from visibility.rules.decided import Outcome
from visibility.rules.orders import order_of
from visibility.rules.retention import TooOld
from visibility.rules.send import batch_result
from visibility.state.events import VisibilityChanged
from visibility.state.queue_state import QueueState
from visibility.state.rows import MessagesMissing
from visibility.state.shard_state import ShardState
from visibility.state.short_answers import (
    ANSWERS_KEPT_MS,
    EARLIER_MS,
    AnswerMemory,
    ShortAnswer,
    ShortFailures,
    ShortReceive,
    ShortSends,
)
from visibility.state.stamp import Stamp
from visibility.state.waiters import Ticket

_AGE_MAX_MS = ANSWERS_KEPT_MS - EARLIER_MS
"""Age of a retry from which on its answer may be forgotten."""
_REPEATED_MAX = 10_000
_VISIBILITY_MAX_MS = limits.VISIBILITY_TIMEOUT.high * 1000


class Memorable(NamedTuple):
    """One operation's answer."""

    shorten: Callable[[Request, Any], ShortAnswer]
    """The part to remember."""
    forms: tuple[type, ...]
    """Types of that part. Another one belongs to another operation with the same request id: a
    receive's messages are returned under its id."""
    repeat: Callable[[Any, ShardState, Request, Stamp], Outcome]
    """The decision that gives the remembered answer again."""


class TurnAnswers:
    """The answers of one Turn that are to be remembered, and those that its retries ask for."""

    __slots__ = (
        "_answers",
        "_deferred",
        "_found",
        "_memory",
        "_now_ms",
        "_request_ids",
        "_requests",
    )

    def __init__(
        self, memory: AnswerMemory, now_ms: int, deferred: list[Ticket], requests: list[Ticket]
    ) -> None:
        """`deferred` and `requests` are all that the Turn may decide, except parked receives."""
        self._memory = memory
        self._now_ms = now_ms
        self._deferred = deferred
        self._requests = requests
        self._request_ids: list[str] = []
        self._answers: list[ShortAnswer] = []
        self._found: dict[str, ShortAnswer] | None = None
        """Earlier answers to the Turn's retries, None until the first one is decided."""

    def note(self, request: Request, answer: Answer) -> None:
        """Remember the answer to a request that changed something."""
        row = MEMORABLE.get(type(request.operation))
        if row is not None:
            self._request_ids.append(request.request_id)
            self._answers.append(row.shorten(request, answer))

    def record(self) -> None:
        """Record the answers of the Turn, if there are any."""
        if self._request_ids:
            self._memory.record(self._now_ms, self._request_ids, self._answers)

    def decision(self, ticket: Ticket) -> Decide:
        """The rule for a retry. Raises QueueError, DamagedRecord."""
        operation = type(ticket.request.operation)
        row = MEMORABLE.get(operation)
        if row is None:
            return DECIDE[operation]
        if ticket.age_ms > _AGE_MAX_MS:
            raise ServiceUnavailable
        for short in self._earlier(ticket.request.request_id):
            if isinstance(short, row.forms):
                if operation in (ReceiveMessage, UndoReceive):
                    self._note_repeated(ticket.request.request_id)
                return partial(row.repeat, short)
        if ticket.if_first is not None:
            raise ticket.if_first
        ticket.age_ms = 0  # from here on it is a first try, also if it waits for messages
        return DECIDE[operation]

    def _note_repeated(self, request_id: str) -> None:
        repeated = self._memory.repeated
        repeated[request_id] = None
        if len(repeated) > _REPEATED_MAX:
            del repeated[next(iter(repeated))]

    def _earlier(self, request_id: str) -> Iterator[ShortAnswer]:
        """The latest answer to a request, if there is one."""
        for place in range(len(self._request_ids) - 1, -1, -1):
            if self._request_ids[place] == request_id:
                yield self._answers[place]
                return
        if self._found is None:
            self._found = self._find()
        if request_id in self._found:
            yield self._found[request_id]

    def _find(self) -> dict[str, ShortAnswer]:
        """Look for all retries of the Turn at once."""
        retries = [ticket for ticket in chain(self._deferred, self._requests) if ticket.age_ms]
        age_ms = min(_AGE_MAX_MS, max(ticket.age_ms for ticket in retries))
        request_ids = {ticket.request.request_id for ticket in retries}
        return self._memory.find(request_ids, self._now_ms - age_ms - EARLIER_MS)


# -- sends -----------------------------------------------------------------------------------------


def _short_send(request: Request, answer: SendMessageResult) -> ShortAnswer:
    number = answer.sequence_number
    return answer.message_id if number is None else ShortSends([(answer.message_id, number)])


def _send_again(
    short: str | ShortSends, shard: ShardState, request: Request, stamp: Stamp
) -> Outcome:
    message_id, number = (short, None) if isinstance(short, str) else short.messages[0]
    content = request.parts[0]
    assert isinstance(content, Content)
    return SendMessageResult(
        content.md5_of_message_body,
        message_id,
        content.md5_of_message_attributes,
        content.md5_of_message_system_attributes,
        number,
    ), ()


def _short_send_batch(
    request: Request, answer: SendMessageBatchResult | Deduplicated
) -> ShortAnswer:
    duplicates = 0
    if isinstance(answer, Deduplicated):
        duplicates, result = answer.duplicates, answer.result
        assert isinstance(result, SendMessageBatchResult)
        answer = result
    sent = answer.successful or ()
    return ShortSends([(each.message_id, each.sequence_number) for each in sent], duplicates)


def _send_batch_again(
    short: ShortSends, shard: ShardState, request: Request, stamp: Stamp
) -> Outcome:
    operation = request.operation
    assert isinstance(operation, SendMessageBatch)
    messages = iter(short.messages)
    result = batch_result(operation.entries or (), request.parts, lambda *_: next(messages))
    return Deduplicated(result, short.duplicates) if short.duplicates else result, ()


# -- receives --------------------------------------------------------------------------------------


def _short_receive(request: Request, answer: Deliveries) -> ShortAnswer:
    deliveries = [(lease.sequence, lease.receive_count) for lease in answer.leases]
    return ShortReceive(request.queue.queue_id, deliveries)


def _receive_again(
    short: ShortReceive, shard: ShardState, request: Request, stamp: Stamp
) -> Outcome:
    """Give the messages whose lease still stands, hidden for their full time from now on.

    The others count as received: their client's connection was too slow. After a purge that is
    all of them.
    """
    operation = request.operation
    assert isinstance(operation, ReceiveMessage)
    now_ms, queue = stamp.now_ms, shard.queue(request.queue.queue_id)
    hidden_s = operation.visibility_timeout
    hide_ms = request.queue.settings.visibility_timeout_ms if hidden_s is None else hidden_s * 1000
    too_old = TooOld(shard, queue, request.queue.settings, stamp)
    leases = [
        msgspec.structs.replace(
            lease,
            visible_at_ms=max(
                lease.visible_at_ms,
                min(now_ms + hide_ms, lease.received_at_ms + _VISIBILITY_MAX_MS),
            ),
        )
        for lease in _standing(queue, short, now_ms)
        if not too_old.passes(lease.retained_from_ms)
    ]
    if not leases:
        return Deliveries([], []), ()
    found = shard.rows.messages(queue.queue_id, [lease.sequence for lease in leases])
    messages = [message for message in found if message is not None]
    if len(messages) < len(leases):
        raise MessagesMissing(queue.queue_id, leases[found.index(None)].sequence)
    changed = VisibilityChanged(queue.queue_id, now_ms, leases)
    attempt = order_of(request.queue.settings).attempt(queue, operation, leases, now_ms)
    return Deliveries(leases, messages), (changed, *attempt)


def _standing(queue: QueueState, short: ShortReceive, now_ms: int) -> list[Lease]:
    """The leases of a receive that are not over."""
    if short.queue_id != queue.queue_id:
        return []
    found = [
        (entry.lease, receive_count)
        for sequence, receive_count in short.deliveries
        if (entry := queue.entries.get(sequence)) is not None and sequence not in queue.quarantined
    ]
    return [
        lease
        for lease, receive_count in found
        if lease.receive_count == receive_count
        and lease.visible_at_ms > now_ms
        and not lease.is_held
    ]


def _undo_receive(
    short: ShortReceive, shard: ShardState, request: Request, stamp: Stamp
) -> Outcome:
    """Give back what the receive got, unless a purge or another receive has it since."""
    is_purged = short.queue_id != request.queue.queue_id
    receipts = () if is_purged else (Receipt(*delivery) for delivery in short.deliveries)
    return give_back(shard, request, stamp, receipts)


# -- deletes and changes ---------------------------------------------------------------------------


def _short_nothing(request: Request, answer: None) -> ShortAnswer:
    return None


def _nothing_again(short: None, shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    return None, ()


def _short_batch(
    request: Request, answer: DeleteMessageBatchResult | ChangeMessageVisibilityBatchResult
) -> ShortAnswer:
    refused = {id_ for id_, _ in _refused(request)}
    failed = [each for each in answer.failed or () if each.id not in refused]
    return ShortFailures([(each.id, each.code, each.message) for each in failed])


def _refused(request: Request) -> Iterator[tuple[str, QueueError]]:
    """The entries of a batch that were refused before it was decided."""
    operation = request.operation
    assert isinstance(operation, DeleteMessageBatch | ChangeMessageVisibilityBatch)
    for entry, part in zip(operation.entries or (), request.parts, strict=True):
        if isinstance(part, QueueError):
            yield entry.id or "", part


def _all_failures(short: ShortFailures, request: Request) -> dict[str, BatchResultErrorEntry]:
    failures = {id_: batch_failure(id_, error) for id_, error in _refused(request)}
    return failures | {id_: failure_of(id_, code, message) for id_, code, message in short.failed}


def _delete_batch_again(
    short: ShortFailures, shard: ShardState, request: Request, stamp: Stamp
) -> Outcome:
    successful, failed = _both(short, request)
    done = [DeleteMessageBatchResultEntry(id_) for id_ in successful]
    return DeleteMessageBatchResult(done or None, failed or None), ()


def _change_batch_again(
    short: ShortFailures, shard: ShardState, request: Request, stamp: Stamp
) -> Outcome:
    successful, failed = _both(short, request)
    done = [ChangeMessageVisibilityBatchResultEntry(id_) for id_ in successful]
    return ChangeMessageVisibilityBatchResult(done or None, failed or None), ()


def _both(short: ShortFailures, request: Request) -> tuple[list[str], list[BatchResultErrorEntry]]:
    """The ids of a batch's entries that succeeded, and the failures of the others, in order."""
    operation = request.operation
    assert isinstance(operation, DeleteMessageBatch | ChangeMessageVisibilityBatch)
    failures = _all_failures(short, request)
    ids = [entry.id or "" for entry in operation.entries or ()]
    return [id_ for id_ in ids if id_ not in failures], [
        failures[id_] for id_ in ids if id_ in failures
    ]


# -- move tasks ------------------------------------------------------------------------------------


def _short_start(request: Request, answer: StartMessageMoveTaskResult) -> ShortAnswer:
    return answer.task_handle


def _start_again(short: str, shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    return StartMessageMoveTaskResult(short), ()


def _short_cancel(request: Request, answer: CancelMessageMoveTaskResult) -> ShortAnswer:
    return answer.approximate_number_of_messages_moved


def _cancel_again(short: int, shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    return CancelMessageMoveTaskResult(short), ()


# -- selected messages -----------------------------------------------------------------------------


def _short_selected(request: Request, answer: SelectedDeleted) -> ShortAnswer:
    return answer.deleted


def _selected_again(short: int, shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    assert isinstance(request.operation, DeleteSelected)
    return SelectedDeleted(short, len(set(request.operation.sequences)) - short), ()


def _short_changed(request: Request, answer: SelectedChanged) -> ShortAnswer:
    return answer.changed


def _changed_again(short: int, shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    assert isinstance(request.operation, HoldMessages | ReleaseMessages)
    return SelectedChanged(short, len(set(request.operation.sequences)) - short), ()


_SEND = Memorable(_short_send, (str, ShortSends), _send_again)
_NOTHING = Memorable(_short_nothing, (type(None),), _nothing_again)
_CHANGED = Memorable(_short_changed, (int,), _changed_again)
_START = Memorable(_short_start, (str,), _start_again)

MEMORABLE: dict[type[Operation], Memorable] = {
    SendMessage: _SEND,
    SendMessageBatch: Memorable(_short_send_batch, (ShortSends,), _send_batch_again),
    ResendMessage: _SEND,
    ReceiveMessage: Memorable(_short_receive, (ShortReceive,), _receive_again),
    ReturnMessages: _NOTHING,
    UndoReceive: Memorable(_short_nothing, (ShortReceive,), _undo_receive),
    DeleteMessage: _NOTHING,
    DeleteMessageBatch: Memorable(_short_batch, (ShortFailures,), _delete_batch_again),
    ChangeMessageVisibility: _NOTHING,
    ChangeMessageVisibilityBatch: Memorable(_short_batch, (ShortFailures,), _change_batch_again),
    StartMessageMoveTask: _START,
    MoveSelected: _START,
    ChangeMoveTask: _NOTHING,
    HoldMessages: _CHANGED,
    ReleaseMessages: _CHANGED,
    DeleteSelected: Memorable(_short_selected, (int,), _selected_again),
    CancelMessageMoveTask: Memorable(_short_cancel, (int,), _cancel_again),
}
"""Operations of clients that change a shard."""
