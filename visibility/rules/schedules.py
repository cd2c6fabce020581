"""Scheduled messages: delayed ones with a clock, the instant from which their retention counts.

They are rows in the order of their time, like all delayed messages, and cost no memory. A restore
keeps their time; an operator may change it, or cancel them. A clock that leapt does not deliver
them until it is trusted, else it would deliver a year's messages at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from typing_extensions import override

from visibility.contract.errors import InvalidParameterValue
from visibility.contract.limits import MOVE_SELECTED_MAX
from visibility.contract.model import Request
from visibility.contract.operations import Operation
from visibility.contract.outcomes import SelectedChanged
from visibility.contract.schedule import check_reschedule
from visibility.contract.stored_message import StoredMessage
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import DELAYED, pair_key
from visibility.rules.archive_batches import DELETED, hand_over, takes_deleted
from visibility.rules.decided import Outcome
from visibility.rules.events import Effects, Event
from visibility.rules.leases import no_lease
from visibility.rules.operation_kinds import OperationKind, Operations, Replay
from visibility.rules.orders import order_of
from visibility.state.places import add_size, join_delayed, leave_delayed
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState
from visibility.state.short_answers import ShortAnswer
from visibility.state.stamp import Stamp

_DOUBTED_MAX = 1_000
"""Messages that one step passes by because of a clock that is not trusted."""
_TRUST_AGAIN_MS = 60_000
"""Interval at which such messages are looked at again."""
_STEP_BYTES = 2 << 20
"""Content that one decision rewrites or archives; one more message may exceed it."""
SHARED_MAX = 10_000_000
"""Delayed messages in a shard of several accounts above which none is scheduled."""
_COUNTED_MS = 1_000
"""Time for which a count of them holds."""


class ChangeSchedule(Operation, frozen=True):
    """Deliver delayed messages, (due_ms, sequence), at another time, or with `at_ms` 0 cancel them;
    answers `outcomes.SelectedChanged`."""

    messages: list[tuple[int, int]] = msgspec.field(default_factory=list)
    at_ms: int = 0


def decide_change_schedule(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Change those that are still delayed; large ones stay in part.

    Raises InvalidParameterValue for a FIFO queue, too many messages, and a time more than a year
    ahead.
    """
    operation, definition = request.operation, request.queue
    assert isinstance(operation, ChangeSchedule)
    if definition.settings.fifo:
        raise InvalidParameterValue("Messages of a FIFO queue have no time of their own.")
    chosen = sorted(set(operation.messages))
    if len(chosen) > MOVE_SELECTED_MAX:
        raise InvalidParameterValue(
            f"Up to {MOVE_SELECTED_MAX} messages are changed at once, not {len(chosen)}."
        )
    check_reschedule(operation.at_ms, stamp.now_ms)
    queue = shard.queue(definition.queue_id)
    found = list(_delayed(shard, queue, chosen))
    answer = SelectedChanged(len(found), len(chosen) - len(found))
    if not found:
        return answer, ()
    if operation.at_ms:
        at_ms = max(operation.at_ms, stamp.now_ms)
        moves = [Reschedule(*each, at_ms, queue.queue_id, each[1]) for each in found]
        return answer, (MessagesRescheduled(queue.queue_id, moves),)
    book = order_of(definition.settings).book(shard, queue)
    for _, _, message in found:
        if message.group:
            book.end_delay(message.group)
    archived: tuple[Event, ...] = ()
    if takes_deleted(shard, definition.settings):
        leases = [no_lease(sequence, message) for _, sequence, message in found]
        messages = {sequence: message for _, sequence, message in found}
        archived = hand_over(
            shard, definition, leases, messages, reason=DELETED, now_ms=stamp.now_ms
        )
    sizes = [message.size for *_, message in found]
    canceled = MessagesCanceled(queue.queue_id, [each[:2] for each in found], sizes)
    return answer, (*archived, *book.events(), canceled)


def _delayed(
    shard: ShardState, queue: QueueState, chosen: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int, StoredMessage]]:
    """Those of the messages that are still delayed, up to a bound of content."""
    size = 0
    for due_ms, sequence in chosen:
        page = shard.rows.delayed(
            queue.queue_id, 1, after=(due_ms, sequence - 1), quarantined=queue.quarantined
        )
        if page and page[0][:2] == (due_ms, sequence):
            yield page[0]
            size += len(page[0][2].data)
            if size >= _STEP_BYTES:
                return


def account_has_room(shard: ShardState, account: str, now_ms: int) -> bool:
    """True if a queue of this account takes one more scheduled message.

    As in the archive, the first half of the room goes to the first that come; of the second half
    each account has the same share. An account without others has all.
    """
    accounts = shard.definitions.accounts
    if accounts <= 1:
        return True
    until_ms, delayed = shard.delayed_by_account
    if not until_ms - _COUNTED_MS <= now_ms < until_ms:
        delayed = _delayed_by_account(shard)
        shard.delayed_by_account = now_ms + _COUNTED_MS, delayed
    total, half = sum(delayed.values()), SHARED_MAX // 2
    if total < half:
        return True
    return total < SHARED_MAX and delayed.get(account, 0) < half // accounts


def _delayed_by_account(shard: ShardState) -> dict[str, int]:
    counts: dict[str, int] = {}
    for queue_id, queue in shard.queues.items():
        if queue.delayed and (definition := shard.definitions.queue_of_id(queue_id)) is not None:
            counts[definition.account] = counts.get(definition.account, 0) + queue.delayed
    return counts


class Doubted:
    """The scheduled messages that one step passes by: they are due by a clock that is not trusted.

    They do not hold up those behind them. Their queue keeps the bounds of what was passed by.
    """

    __slots__ = ("_left", "_queue", "_stamp")

    def __init__(self, queue: QueueState, stamp: Stamp) -> None:
        self._queue = queue
        self._stamp = stamp
        self._left = _DOUBTED_MAX
        if queue.doubted is not None and not stamp.trusted_ms:
            queue.delayed_after = min(queue.delayed_after, queue.doubted[0])
            queue.doubted = None

    @property
    def after(self) -> tuple[int, int]:
        """The place after which the step begins."""
        passed = self._queue.doubted
        return (
            self._queue.delayed_after
            if passed is None
            else max(self._queue.delayed_after, passed[1])
        )

    @property
    def is_full(self) -> bool:
        """True if the step has passed by enough."""
        return not self._left

    def passes(self, place: tuple[int, int], message: StoredMessage) -> bool:
        """True if the due message at this place, (due_ms, sequence), is passed by."""
        due_ms, sequence = place
        waits = message.clock_ms or message.sender_ms
        if not waits or due_ms <= self._stamp.retained_until_ms:
            return False
        passed = self._queue.doubted
        first = (due_ms, sequence - 1) if passed is None else passed[0]
        self._queue.doubted = (first, place)
        self._left -= 1
        return True

    def again_ms(self, again_ms: int | None) -> int | None:
        """The time of the next step; `again_ms` is the one for other messages."""
        if self._queue.doubted is None:
            return again_ms
        later_ms = self._stamp.now_ms + _TRUST_AGAIN_MS
        return later_ms if again_ms is None else min(again_ms, later_ms)


# -- events ----------------------------------------------------------------------------------------


class Reschedule(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A delayed message, its place, and its next one, in its queue or in another of the shard."""

    due_ms: int
    sequence: int
    message: StoredMessage
    target_due_ms: int
    target_queue_id: int
    target_sequence: int


class MessagesRescheduled(Event, frozen=True):
    """Delayed messages are scheduled for another time, or in the queue that takes them over; or
    they stay what they are in another part of their queue (`transfers`)."""

    moves: list[Reschedule]
    transfers: bool = False

    @override
    def apply(self, shard: ShardState) -> None:
        source = shard.queue(self.queue_id)
        for move in self.moves:
            target = shard.queue(move.target_queue_id)
            add_size(source, move.sequence, -move.message.size)
            add_size(target, move.target_sequence, move.message.size)
            if self.transfers:
                leave_delayed(source, move.due_ms, move.sequence)
                source.counts.transferred -= 1
                target.counts.transferred += 1
            else:
                source.delayed -= 1
            if target is not source and not self.transfers:
                source.counts.moved_out += 1
                target.counts.moved_in += 1
            if target is not source:
                target.next_sequence = max(target.next_sequence, move.target_sequence + 1)
            join_delayed(shard, target, move.target_due_ms)

    @override
    def record(self, changes: Changes) -> None:
        for move in self.moves:
            changes.delete(pair_key(self.queue_id, DELAYED, move.due_ms, move.sequence))
            key = pair_key(move.target_queue_id, DELAYED, move.target_due_ms, move.target_sequence)
            message = move.message
            if not self.transfers:
                message = msgspec.structs.replace(message, clock_ms=move.target_due_ms, sender_ms=0)
            changes.put(key, encode_row(message))

    @override
    def tell(self, turn: Effects) -> None:
        for move in self.moves:
            turn.changed[move.target_queue_id] = None

    @property
    @override
    def weight(self) -> int:
        return len(self.moves)


class MessagesCanceled(Event, frozen=True):
    """Delayed messages, (due_ms, sequence), were deleted before their time; `sizes` are theirs."""

    places: list[tuple[int, int]]
    sizes: list[int]

    @override
    def apply(self, shard: ShardState) -> None:
        queue = shard.queue(self.queue_id)
        queue.delayed -= len(self.places)
        queue.counts.deleted += len(self.places)
        for (_, sequence), size in zip(self.places, self.sizes, strict=True):
            add_size(queue, sequence, -size)

    @override
    def record(self, changes: Changes) -> None:
        for due_ms, sequence in self.places:
            changes.delete(pair_key(self.queue_id, DELAYED, due_ms, sequence))


# -- the same answer to a retry --------------------------------------------------------------------


def _short(request: Request, answer: SelectedChanged) -> ShortAnswer:
    return answer.changed


def _again(short: int, shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    assert isinstance(request.operation, ChangeSchedule)
    return SelectedChanged(short, len(set(request.operation.messages)) - short), ()


OPERATIONS: Operations = {
    ChangeSchedule: OperationKind(
        decide_change_schedule, SelectedChanged, Replay(_short, (int,), _again)
    )
}
