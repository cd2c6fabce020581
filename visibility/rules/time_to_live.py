"""The end of messages' time to live: no receive gets them from then on, and pulses remove them.

A receive compares the time itself, on the time of its Turn; pulses remove messages on the time that
is trusted, so that a clock that leapt removes none. A message in flight stays its consumer's until
its lease ends. One that cannot go where it should waits in its place and is not received: in a FIFO
queue its group goes on without it, and its retention ends it.
"""

from __future__ import annotations

from visibility.contract.death import EXPIRED, is_at_end
from visibility.contract.model import QueueDefinition
from visibility.contract.stored_message import StoredMessage
from visibility.contract.time_to_live_tags import EXPIRED_TAG, TO_ARCHIVE, TO_DEAD_LETTERS
from visibility.rows.row_keys import EXPIRY
from visibility.rules.archive_batches import MessagesDiscarded, hand_over
from visibility.rules.dead_letters import DeadLetters
from visibility.rules.events import Event
from visibility.rules.leases import lease_of
from visibility.rules.orders import order_of
from visibility.state.queue_state import NEVER_MS, QueueState
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

_STEP_MESSAGES = 250
"""Messages that one step handles; the rest follows in the next Turn."""
_STEP_BYTES = 128 << 10
"""Content that one step moves or hands over; one more message may exceed it."""
_LOOKED_AT_MAX = 2_000
"""Messages that one step looks at, since those in flight are passed by."""
_NEXT_MS = 1_000
"""Pause before the next messages are looked at, if the first ones stay that moved too often."""
_AGAIN_MS = 15_000
"""Interval at which messages are looked at again that cannot go where they should, or whose
time is over by a clock that is not trusted."""


def end_times_to_live(
    shard: ShardState, queue: QueueState, definition: QueueDefinition, stamp: Stamp
) -> tuple[tuple[Event, ...], int | None]:
    """Remove messages whose time to live is over: a step of pulses."""
    expires_ms, now_ms = queue.expiries_after[0], stamp.now_ms
    if expires_ms <= now_ms:
        expires_ms = _first_expiry_ms(shard, queue)
    if expires_ms > now_ms:
        return (), expires_ms if expires_ms < NEVER_MS else None
    due, lease_ends_ms = _due(shard, queue, stamp)
    if not due:
        queue.expiries_passed = (0, 0)
        return (), min(now_ms + _AGAIN_MS, max(now_ms + 1, lease_ends_ms))
    fate = definition.settings.own_tags.get(EXPIRED_TAG)
    if fate == TO_DEAD_LETTERS:
        events = _to_dead_letters(shard, queue, definition, stamp, due)
        if not events and all(is_at_end(message.death, EXPIRED) for message in due.values()):
            queue.expiries_passed = max((due[each].expires_ms, each) for each in due)
            return (), now_ms + _NEXT_MS
    else:
        is_archived = fate == TO_ARCHIVE
        events = _removed(shard, queue, definition, stamp, due, is_archived=is_archived)
    return events, now_ms if events else now_ms + _AGAIN_MS


def _expiries(
    shard: ShardState, queue: QueueState, limit: int, after: tuple[int, int]
) -> list[tuple[int, int]]:
    return shard.rows.instants(
        EXPIRY,
        queue.queue_id,
        limit,
        after=after,
        quarantined=queue.quarantined,
    )


def _first_expiry_ms(shard: ShardState, queue: QueueState) -> int:
    """The instant at which the first time to live ends, NEVER_MS if none does. Raises
    DamagedRecord."""
    first = _expiries(shard, queue, 1, queue.expiries_after)
    expires_ms, sequence = first[0] if first else (NEVER_MS, 1)
    queue.expiries_after = (expires_ms, sequence - 1)
    return expires_ms


def _due(
    shard: ShardState, queue: QueueState, stamp: Stamp
) -> tuple[dict[int, StoredMessage], int]:
    """The next messages to remove, and the end of the first lease of those in flight."""
    sequences: list[int] = []
    lease_ends_ms = NEVER_MS
    after = max(queue.expiries_after, queue.expiries_passed)
    for expires_ms, sequence in _expiries(shard, queue, _LOOKED_AT_MAX, after):
        if expires_ms > stamp.retained_until_ms or len(sequences) == _STEP_MESSAGES:
            break
        entry = queue.entries.get(sequence)
        if entry is None or not entry.hidden:
            sequences.append(sequence)
        else:
            lease_ends_ms = min(lease_ends_ms, entry.lease.receivable_at_ms)
    due: dict[int, StoredMessage] = {}
    size = 0
    for sequence, message in shard.rows.unless_quarantined(queue, sequences):
        if message.group not in queue.quarantined.groups:
            due[sequence] = message
            size += len(message.data)
        if size >= _STEP_BYTES:
            break
    return due, lease_ends_ms


def _removed(
    shard: ShardState,
    queue: QueueState,
    definition: QueueDefinition,
    stamp: Stamp,
    due: dict[int, StoredMessage],
    *,
    is_archived: bool,
) -> tuple[Event, ...]:
    """Discard them, or hand them to the archive; while there is none, or no room in it, they
    wait."""
    leases, now_ms = [lease_of(queue, *each) for each in due.items()], stamp.now_ms
    archived: tuple[Event, ...] = ()
    if is_archived:
        if not shard.archive.is_on:
            return ()
        archived = hand_over(shard, definition, leases, due, reason=EXPIRED, now_ms=now_ms)
        if any(type(event) is MessagesDiscarded for event in archived):
            return ()
    expired = order_of(definition.settings).expired(shard, queue, leases)
    return (*archived, *expired)


def _to_dead_letters(
    shard: ShardState,
    queue: QueueState,
    definition: QueueDefinition,
    stamp: Stamp,
    due: dict[int, StoredMessage],
) -> tuple[Event, ...]:
    """Move them to the dead-letter queue; while there is none, or no room, they wait."""
    target = shard.definitions.dead_letter_queue(definition)
    letters = DeadLetters(shard, definition, target, stamp, EXPIRED)
    if not letters.has_target:
        return ()
    order, groups = order_of(definition.settings), set[bytes]()
    for sequence, message in due.items():
        if letters.is_full:
            break
        if letters.locks(message.group):
            continue
        lease = order.lease_of(shard.rows, queue, sequence, message)
        if letters.move(lease, message, waits=sequence not in queue.entries):
            groups.add(message.group)
    if not letters.moved:
        return ()
    for group in filter(None, groups):
        letters.source_book.settle(group, (), [])
    return letters.events()
