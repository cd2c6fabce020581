"""Ages of a queue's oldest messages: instants for metrics, found by a few lookups, never by a scan.

Two of the ages count from the same instant as retention: the first send; in a FIFO dead-letter
queue the move.
Source: CloudWatch's ApproximateAgeOfOldestMessage for the third, which counts from the move in
every dead-letter queue.
"""

from __future__ import annotations

from itertools import chain, islice

import msgspec

from visibility.contract.stored_message import StoredMessage
from visibility.rows.row_keys import CLOCK
from visibility.state.in_flight import OVER_RECEIVED_FROM
from visibility.state.queue_state import Level, QueueState
from visibility.state.shard_state import ShardState

_LOOKED_AT = 16
"""Limit of skipped messages that are in flight or blocked."""
_LOOKED_AT_BYTES = 1 << 20
_WINDOW_LOOKED_AT = 1000
"""Limit of skipped messages in memory that were received often: about ten microseconds."""
_Line = list[tuple[int, StoredMessage]]
_Delayed = list[tuple[int, int, StoredMessage]]


class OldestMessages(msgspec.Struct, frozen=True):
    """Instants from which three ages count, 0 if there is no such message.

    `stored_ms`: the oldest message in any state, the next to expire. Exact, except that of delayed
    messages only the one whose delay ends first counts: another is at most 15 minutes older.

    `receivable_ms`: the first message in line. Standard: the next to be received while no group is
    noisy; messages that went to the back, left a delay or became dead letters have the place where
    they joined. After 16 messages that are in flight since before a restart, it is the last of
    these, which is older. FIFO: the oldest whose group is not blocked; after 16 that are in flight
    or blocked, the oldest of the next group, which may be younger.

    `unspent_ms`: the first message in line, in any state, that was received less than three times
    in this queue; of delayed ones the one whose delay ends first. After 16 that were received more
    often it may be the last one examined, which is older; and in a standard queue a message that is
    not in flight may be found before one that is.
    """

    stored_ms: int
    receivable_ms: int
    unspent_ms: int


def oldest_messages(shard: ShardState, queue: QueueState) -> OldestMessages:
    """The oldest messages of a queue. O(log messages). Raises DamagedRecord."""
    line = _line(shard, queue, queue.floor, 1) if queue.spans else []
    delayed = _first_delayed(shard, queue) if queue.delayed else []
    return OldestMessages(
        _stored_ms(shard, queue, line, delayed),
        receivable_since_ms(shard, queue),
        _unspent_ms(shard, queue, line, delayed),
    )


def receivable_since_ms(shard: ShardState, queue: QueueState) -> int:
    """The `receivable_ms` of `OldestMessages`. Raises DamagedRecord."""
    receivable = _receivable_fifo if queue.fifo else _receivable_standard
    return receivable(shard, queue)


def _stored_ms(shard: ShardState, queue: QueueState, line: _Line, delayed: _Delayed) -> int:
    found = [message.retained_from_ms for _, message in line]
    found += [message.retained_from_ms for _, _, message in delayed]
    if queue.spans:
        # A message with a clock may be behind newer ones, but one without is never older than the
        # first.
        clocks = shard.rows.instants(
            CLOCK, queue.queue_id, 1, after=queue.clocks_after, quarantined=queue.quarantined
        )
        found += [clock_ms for clock_ms, _ in clocks]
    return min(found, default=0)


def _unspent_ms(shard: ShardState, queue: QueueState, line: _Line, delayed: _Delayed) -> int:
    found = [_first_unspent_ms(shard, queue, line)]
    found += [message.joined_at_ms or message.sent_at_ms for _, _, message in delayed]
    return min(filter(None, found), default=0)


def _first_unspent_ms(shard: ShardState, queue: QueueState, line: _Line) -> int:
    if line and _received_here(shard, queue, *line[0]) >= OVER_RECEIVED_FROM:
        line = _line(shard, queue, queue.floor, _LOOKED_AT)
    all_looked_at = len(line) == queue.stored - queue.delayed
    since_ms = 0
    for sequence, message in chain(line, islice(queue.window, _WINDOW_LOOKED_AT)):
        since_ms = message.joined_at_ms or message.retained_from_ms
        if _received_here(shard, queue, sequence, message) < OVER_RECEIVED_FROM:
            return since_ms
    return 0 if all_looked_at else since_ms


def _received_here(
    shard: ShardState, queue: QueueState, sequence: int, message: StoredMessage
) -> int:
    """Number of receives of the message in this queue."""
    entry = queue.entries.get(sequence)
    lease = None if entry is None else entry.lease
    if lease is None and queue.fifo:
        waiting = shard.rows.group_line(queue.queue_id, message.group, sequence, 1)
        lease = next((lease for place, lease in waiting if place == sequence), None)
    return message.received_here if lease is None else lease.receive_count - lease.base_count


def _receivable_standard(shard: ShardState, queue: QueueState) -> int:
    returned = next(queue.visible_again_in_order(), None)
    untouched = _first_untouched(shard, queue)
    if returned is not None and (untouched is None or returned.lease.sequence < untouched[0]):
        (message,) = shard.rows.messages(queue.queue_id, [returned.lease.sequence])
        return 0 if message is None else message.retained_from_ms
    return 0 if untouched is None else untouched[1].retained_from_ms


def _first_untouched(shard: ShardState, queue: QueueState) -> tuple[int, StoredMessage] | None:
    firsts: list[tuple[int, StoredMessage]] = []
    if queue.is_by_level:
        for level in queue.levels.values():
            firsts += _first_of_level(shard, queue, level)
    if queue.window:
        firsts.append(queue.window[0])
    elif queue.backlog > 0:
        page = _line(shard, queue, queue.head, _LOOKED_AT)
        untouched = [numbered for numbered in page if numbered[0] not in queue.entries]
        firsts += (untouched or page[-1:])[:1]
    return min(firsts, key=_sequence, default=None)


def _first_of_level(
    shard: ShardState, queue: QueueState, level: Level
) -> list[tuple[int, StoredMessage]]:
    if level.window:
        return [level.window[0]]
    page = shard.rows.level_line(queue, level.level, level.low_water, messages=1, size=1)
    return page.messages[:1]


def _sequence(numbered: tuple[int, StoredMessage]) -> int:
    return numbered[0]


def _receivable_fifo(shard: ShardState, queue: QueueState) -> int:
    if not queue.ready_groups.total:
        return 0
    for sequence, message in _line(
        shard, queue, queue.floor, _LOOKED_AT if queue.in_flight_by_group else 1
    ):
        held = queue.in_flight_by_group.get(message.group, ())
        may_go = sequence not in queue.entries and message.group not in queue.quarantined.groups
        if may_go and sequence < min(held, default=queue.next_sequence):
            return message.retained_from_ms
    return _first_of_next_group_ms(shard, queue)


def _first_of_next_group_ms(shard: ShardState, queue: QueueState) -> int:
    rows, queue_id = shard.rows, queue.queue_id
    for _, group in queue.ready_groups.in_order(
        lambda order, limit: rows.ready_groups(queue_id, order, limit)
    ):
        row = queue.groups.get(group) or rows.group(queue_id, group)
        line = rows.group_line(queue_id, group, row.first if row else 0, 1)
        for message in rows.messages(queue_id, [sequence for sequence, _ in line]):
            return 0 if message is None else message.retained_from_ms
        return 0
    return 0


def _first_delayed(shard: ShardState, queue: QueueState) -> _Delayed:
    """The first delayed message; none if it is a scheduled one, whose age begins with its time."""
    first = shard.rows.delayed(
        queue.queue_id, 1, after=queue.delayed_after, quarantined=queue.quarantined
    )
    return [each for each in first if queue.fifo or not each[2].clock_ms]


def _line(shard: ShardState, queue: QueueState, first: int, messages: int) -> _Line:
    page = shard.rows.line(
        queue.queue_id,
        first,
        queue.next_sequence,
        messages=messages,
        size=_LOOKED_AT_BYTES,
        quarantined=queue.quarantined,
        spans=queue.spans,
    )
    return page.messages
