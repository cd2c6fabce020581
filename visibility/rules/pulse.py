"""TABLE: the effects of time on a queue. Each step decides a bounded part and names its next time.

A pulse runs before the requests of a turn, and decides on events like any others. The end of a
standard lease is not here: it only makes a message visible (`advance.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from typing import TypeVar

import msgspec

from visibility.contract.death import EXPIRED
from visibility.contract.errors import QueueError, ServiceUnavailable
from visibility.contract.limits import MESSAGE_RETENTION_PERIOD
from visibility.contract.model import QueueDefinition
from visibility.contract.priority import joining_level, level_at_the_back
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows.row_keys import CLOCK
from visibility.rules.archive_batches import MessagesDiscarded, hand_over, takes_expired
from visibility.rules.at_most_once import end_taken
from visibility.rules.events import Event
from visibility.rules.group_transfers import advance_group_transfers
from visibility.rules.groups import GroupBook
from visibility.rules.hold_messages import end_holds, needs_release
from visibility.rules.leases import lease_of, no_lease
from visibility.rules.levelling import end_holding_back
from visibility.rules.message_events import MessagesMoved, Move
from visibility.rules.move_steps import advance_move_tasks
from visibility.rules.orders import order_of
from visibility.rules.prepared_deletes import end_prepared
from visibility.rules.quarantine import end_quarantine
from visibility.rules.remembered_ids import forget_ids
from visibility.rules.schedules import Doubted
from visibility.rules.sender_order import SenderOrder
from visibility.rules.time_to_live import end_times_to_live
from visibility.rules.transfers import advance_transfers
from visibility.state.in_flight import OVER_RECEIVED_FROM
from visibility.state.queue_state import NEVER_MS, QueueState
from visibility.state.rows import MessagesMissing
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp
from visibility.state.window import read_again

STEP_MESSAGES = 250
"""Messages that one step handles; the rest follows in the next turn."""
STEP_BYTES = 2 << 20
"""Content that one step rewrites; one more message may exceed it."""
_FIRST_LOOK = 16
_PAGE_BYTES = 4 << 20
_ARCHIVED_BYTES = 128 << 10
"""Approximate content that one step hands over to the archive, which rewrites it."""

Definition = TypeVar("Definition", QueueDefinition, None)
StepOf = Callable[[ShardState, QueueState, Definition, Stamp], tuple[tuple[Event, ...], int | None]]
"""The events of one step, and the time of its next run (None: not until something plans it)."""
Step = StepOf[QueueDefinition]


def _end_leases(
    shard: ShardState, queue: QueueState, definition: QueueDefinition, stamp: Stamp
) -> tuple[tuple[Event, ...], int | None]:
    """FIFO: return messages to their groups at the end of their leases."""
    leases: dict[int, Lease] = {}
    looked_at = list(islice(queue.expired_leases, STEP_MESSAGES))
    for sequence in looked_at:
        entry = queue.entries.get(sequence)
        if entry is not None and entry.lease.receivable_at_ms <= stamp.now_ms:
            leases[sequence] = entry.lease
    order = order_of(definition.settings)
    book = order.book(shard, queue)
    book.settle_all((), leases.values())
    again = _done(queue.expired_leases, len(looked_at), stamp)
    if not leases:
        return (), again
    return (*book.events(), order.ended(queue, list(leases.values()), stamp.now_ms)), again


def _end_delays(
    shard: ShardState, queue: QueueState, definition: QueueDefinition, stamp: Stamp
) -> tuple[tuple[Event, ...], int | None]:
    """Move due delayed messages into the line: standard ones to its end, FIFO ones to their own
    place."""
    if not queue.delayed:
        return (), None
    order = order_of(definition.settings)
    book = order.book(shard, queue)
    moves: list[Move] = []
    size = 0
    again = None
    doubted = Doubted(queue, stamp)
    senders = SenderOrder(shard, queue, definition, stamp)
    after = doubted.after
    wanted = _FIRST_LOOK
    read = partial(shard.rows.delayed, queue.queue_id, quarantined=queue.quarantined)
    while again is None and (page := read(wanted, after=after)):
        for due_ms, sequence, message in page:
            at_ms = order.delay_ends_ms(due_ms, message, definition.settings)
            is_full = len(moves) == STEP_MESSAGES or size >= STEP_BYTES or doubted.is_full
            if at_ms > stamp.now_ms or is_full or senders.is_full:
                again = max(at_ms, stamp.now_ms)
                break
            after = (due_ms, sequence)
            if doubted.passes(after, message):
                continue
            if senders.moves_late(due_ms, sequence, message):
                continue
            ended = _ended_delay(queue, book, due_ms, sequence, message, stamp.now_ms)
            moves.append(_with_level(ended, joining_level, definition))
            size += len(message.data)
        wanted = STEP_MESSAGES
    left = queue.delayed - len(moves) - senders.moved
    if again is None and left > 0 and queue.doubted is None:
        raise MessagesMissing(queue.queue_id, delayed=True)
    again = doubted.again_ms(again)
    if not moves:
        return senders.events(), again
    moved = MessagesMoved(queue.queue_id, stamp.now_ms, moves)
    return (*senders.events(), *book.events(), moved), again


def _ended_delay(
    queue: QueueState,
    book: GroupBook,
    due_ms: int,
    sequence: int,
    message: StoredMessage,
    now_ms: int,
) -> Move:
    to = book.place_after_delay(sequence)
    clock_ms = 0 if to == sequence else now_ms if message.clock_ms else message.sent_at_ms
    if message.group:
        book.end_delay(message.group)
    group = book.group_of(message.group)
    if group:
        book.arrive(group, to)
    moved = msgspec.structs.replace(message, group=group, clock_ms=clock_ms, sender_ms=0)
    return Move(no_lease(sequence, message), due_ms, queue.queue_id, to, moved)


def _send_to_the_back(
    shard: ShardState, queue: QueueState, definition: QueueDefinition, stamp: Stamp
) -> tuple[tuple[Event, ...], int | None]:
    """Standard: move a visible message that was received three times to the back of the queue.

    This is AWS's poison-pill rule. It spares messages that the next receive sends to the
    dead-letter queue.
    """
    if not queue.over_received:
        return (), None
    allowed = _receives_allowed(shard, definition)
    book = order_of(definition.settings).book(shard, queue)
    moves: dict[int, Move] = {}
    looked_at = size = 0
    for sequence in islice(queue.over_received, STEP_MESSAGES):
        if size >= STEP_BYTES:
            break
        looked_at += 1
        entry = queue.entries.get(sequence)
        if entry is None or entry.hidden or sequence in moves:
            continue
        here = entry.lease.receive_count - entry.lease.base_count
        if entry.lease.receive_count < OVER_RECEIVED_FROM or (allowed and here >= allowed):
            continue
        (message,) = shard.rows.messages(queue.queue_id, [sequence])
        if message is not None:
            back = _to_the_back(queue, book, entry.lease, message)
            moves[sequence] = _with_level(back, level_at_the_back, definition)
            size += len(message.data)
    again = _done(queue.over_received, looked_at, stamp)
    if not moves:
        return (), again
    return (
        *book.events(),
        MessagesMoved(queue.queue_id, stamp.now_ms, list(moves.values())),
    ), again


def _receives_allowed(shard: ShardState, queue: QueueDefinition) -> int | None:
    """Receives after which a message becomes a dead letter; None if it never does."""
    policy, target = queue.settings.redrive_policy, shard.definitions.dead_letter_queue(queue)
    if policy is None or target is None:
        return None
    try:
        shard.sealing.check(target)
    except ServiceUnavailable:
        pass  # it becomes one later
    except QueueError:
        return None
    return policy.max_receive_count


def _done(line: deque[int], count: int, stamp: Stamp) -> int | None:
    """Forget the processed items, now that nothing can fail; returns the time for the rest."""
    for _ in range(count):
        line.popleft()
    return stamp.now_ms if line else None


def _to_the_back(queue: QueueState, book: GroupBook, lease: Lease, message: StoredMessage) -> Move:
    to = book.allocate()
    group = book.group_of(lease.group)
    if group:
        book.arrive(group, to)
    moved = msgspec.structs.replace(
        message,
        receive_count=lease.receive_count,
        first_received_at_ms=lease.first_received_at_ms,
        group=group,
        clock_ms=message.retained_from_ms,
        original_sequence=message.original_sequence or lease.sequence,
        received_here=lease.receive_count - lease.base_count,
    )
    return Move(lease, -1, queue.queue_id, to, moved)


def _with_level(
    move: Move, new_level: Callable[[Mapping[str, str], int], int], definition: QueueDefinition
) -> Move:
    """The move, to the line of the level that the message has by the queue's tags."""
    own_tags, message = definition.settings.own_tags, move.message
    if not own_tags:
        return move
    message = msgspec.structs.replace(message, level=new_level(own_tags, message.level))
    return msgspec.structs.replace(move, message=message)


def _expire(
    shard: ShardState, queue: QueueState, definition: QueueDefinition, stamp: Stamp
) -> tuple[tuple[Event, ...], int | None]:
    """Remove messages older than the retention, wherever they are; delayed ones after their
    delay."""
    if not queue.spans:
        return (), None
    retention_ms = definition.settings.retention_ms
    last_ms = stamp.retained_until_ms - retention_ms
    old: dict[int, StoredMessage] = {}
    next_ms: list[int] = []
    size = _ARCHIVED_BYTES if takes_expired(shard, definition.settings) else _PAGE_BYTES
    _old_in_line(shard, queue, last_ms, old, next_ms, size)
    _old_by_clock(shard, queue, last_ms, old, next_ms)
    _leave_for_later(old, next_ms, size)
    _note_fresh(shard, queue, min(next_ms, default=0) + retention_ms, stamp.now_ms)
    again = None
    if next_ms:
        again = max(stamp.now_ms, min(next_ms) + retention_ms)
        if min(next_ms) <= stamp.now_ms - retention_ms and min(next_ms) > last_ms:
            again = stamp.now_ms + _BELIEVE_AGAIN_MS
    elif left := sum(queue.spans.values()) - len(old):
        if left > sum(
            entry.hidden and sequence not in old and not needs_release(queue, entry.lease)
            for sequence, entry in queue.entries.items()
        ):
            raise MessagesMissing(queue.queue_id)
        again = stamp.now_ms + _DAMAGED_AGAIN_MS
    if queue.prepared & old.keys():  # a transaction may be about to delete them
        old = {sequence: old[sequence] for sequence in old if sequence not in queue.prepared}
        again = min(again or NEVER_MS, stamp.now_ms + _PREPARED_AGAIN_MS)
    if not old:
        return (), again
    return _expired(shard, queue, definition, stamp, old, again)


def _expired(
    shard: ShardState,
    queue: QueueState,
    definition: QueueDefinition,
    stamp: Stamp,
    old: dict[int, StoredMessage],
    again: int | None,
) -> tuple[tuple[Event, ...], int | None]:
    """Remove expired messages; if the setting says so, those wait for which the archive has no
    room."""
    leases = [lease_of(queue, sequence, message) for sequence, message in old.items()]
    archived: tuple[Event, ...] = ()
    if takes_expired(shard, definition.settings):
        archived = hand_over(shard, definition, leases, old, reason=EXPIRED, now_ms=stamp.now_ms)
        if shard.archive.retains and any(type(e) is MessagesDiscarded for e in archived):
            again = stamp.now_ms + _NO_ROOM_AGAIN_MS
            _note_fresh(shard, queue, again, stamp.now_ms)  # they may be received
            return (), again
    expired = order_of(definition.settings).expired(shard, queue, leases)
    return (*archived, *expired), again


def _note_fresh(shard: ShardState, queue: QueueState, until_ms: int, now_ms: int) -> None:
    """Let receives look for no expired messages until then, if that is still to come."""
    until_ms = min(until_ms, queue.expiries_after[0])
    queue.fresh_until_ms = until_ms if until_ms > now_ms else 0
    if queue.fresh_until_ms and queue.passed:
        read_again(shard, queue)


_NO_ROOM_AGAIN_MS = 15_000
"""Interval at which expired messages are offered again to an archive that had no room for them."""
_BELIEVE_AGAIN_MS = 60_000
"""Interval at which a queue is checked while the clock is not trusted."""
_PREPARED_AGAIN_MS = 1_000
"""Interval at which a message of a transaction is looked at whose retention is over."""
_DAMAGED_AGAIN_MS = MESSAGE_RETENTION_PERIOD.low * 1000
"""Interval for a queue with only unreadable messages in flight left."""


def _old_in_line(
    shard: ShardState,
    queue: QueueState,
    last_ms: int,
    old: dict[int, StoredMessage],
    next_ms: list[int],
    size: int,
) -> None:
    """Collect old messages at the beginning, where the queue is in order of age."""
    after: int | None = queue.floor
    wanted = _FIRST_LOOK
    while after is not None:
        page = shard.rows.line(
            queue.queue_id,
            after,
            queue.next_sequence,
            messages=wanted,
            size=max(size, 1),
            quarantined=queue.quarantined,
            spans=queue.spans,
        )
        for sequence, message in page.messages:
            if message.retained_from_ms > last_ms or len(old) >= STEP_MESSAGES or size <= 0:
                next_ms.append(message.retained_from_ms)
                return
            old[sequence] = message
            size -= len(message.data)
        after = page.next_sequence
        wanted = STEP_MESSAGES


def _old_by_clock(
    shard: ShardState,
    queue: QueueState,
    last_ms: int,
    old: dict[int, StoredMessage],
    next_ms: list[int],
) -> None:
    """Collect old messages that are not in order of age."""
    clocks = shard.rows.instants(
        CLOCK,
        queue.queue_id,
        STEP_MESSAGES,
        after=queue.clocks_after,
        quarantined=queue.quarantined,
    )
    if clocks:
        queue.clocks_after = (clocks[0][0], clocks[0][1] - 1)
    due = [sequence for clock_ms, sequence in clocks if clock_ms <= last_ms and sequence not in old]
    next_ms += [clock_ms for clock_ms, _ in clocks if clock_ms > last_ms][:1]
    if len(clocks) == STEP_MESSAGES and clocks[-1][0] <= last_ms:
        next_ms.append(clocks[-1][0])
    messages = zip(due, shard.rows.messages(queue.queue_id, due), strict=True)
    old.update({sequence: message for sequence, message in messages if message is not None})


def _leave_for_later(old: dict[int, StoredMessage], next_ms: list[int], size: int) -> None:
    """Limit the content of a step, so that it does not hold the event loop for long."""
    for sequence, message in list(old.items()):
        if size <= 0:
            del old[sequence]
            next_ms.append(message.retained_from_ms)
        size -= len(message.data)


def _wake_for_letters(
    shard: ShardState, queue: QueueState, definition: QueueDefinition, stamp: Stamp
) -> tuple[tuple[Event, ...], int | None]:
    """Have long polls try again to move dead letters that wait for a key."""
    if queue.waits_for_key:
        queue.waits_for_key = False
        shard.to_wake[queue.queue_id] = None
    return (), None


STEPS: tuple[Step, ...] = (
    _end_leases,
    _end_delays,
    _send_to_the_back,
    advance_move_tasks,
    advance_transfers,
    advance_group_transfers,
    end_quarantine,
    end_holds,
    end_taken,
    end_prepared,
    end_times_to_live,
    _expire,
    forget_ids,
    _wake_for_letters,
    end_holding_back,
)
"""The steps in order. One that raises DamagedRecord has changed nothing."""
STEPS_OF_DELETED: tuple[StepOf[None], ...] = (end_prepared,)
"""Those of a deleted queue, and of one whose definition is not here yet."""
