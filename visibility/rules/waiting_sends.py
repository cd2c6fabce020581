"""Sends of transactions that wait for a queue which was deleted, and may be restored.

They stay in the outbox for as long as that is possible, which may be days. So they have a room of
their own there: other transactions, and parts that are emptied, go on beside them.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from visibility.state.outbox import OUTBOX_BYTES_MAX, OUTBOX_MESSAGES_MAX
from visibility.state.shard_state import ShardState

WAITING_SHARE = 4
"""Part of an outbox for those that wait; more of them take the room of others."""
WAITING_BEHIND_MAX = 2 * OUTBOX_MESSAGES_MAX
"""Numbers behind which one that waits gets a new number: the other shard remembers all that came
after the oldest one. What waits for a deleted queue is delivered for that, and refused."""


class Load(NamedTuple):
    """Messages of an outbox."""

    messages: int
    size: int
    """Bytes of their content."""


def queues_away(shard: ShardState) -> Set[str]:
    """The ARNs of the deleted queues for which sends wait. O(queues that are sent to)."""
    definitions = shard.definitions
    return {
        arn
        for arn in shard.outbox.sends
        if definitions.queue_of_arn(arn) is None and definitions.keeps(arn)
    }


def _waiting(shard: ShardState) -> Load:
    """The sends that wait."""
    away = [shard.outbox.sends[arn] for arn in queues_away(shard)]
    return Load(sum(each.messages for each in away), sum(each.size for each in away))


def waiting_messages(shard: ShardState) -> int:
    """The number of sends that wait."""
    return _waiting(shard).messages


def waiting_share(shard: ShardState) -> float:
    """The part of their own room that those take which wait; above 1 they take that of others."""
    waiting = _waiting(shard)
    return WAITING_SHARE * max(
        waiting.messages / OUTBOX_MESSAGES_MAX, waiting.size / OUTBOX_BYTES_MAX
    )


def moving_since_ms(shard: ShardState) -> int:
    """When the oldest message departed that does not wait for a deleted queue, 0 for none."""
    away = queues_away(shard)
    moving = (
        each
        for each in shard.outbox.departures.values()
        if each.sent is None or each.target_arn not in away
    )
    return next((each.departed_at_ms for each in moving), 0)


def load_beside_waiting(shard: ShardState) -> Load:
    """The outbox without those that wait, as far as their own room reaches."""
    outbox, waiting = shard.outbox, _waiting(shard)
    return Load(
        len(outbox.departures) - min(waiting.messages, OUTBOX_MESSAGES_MAX // WAITING_SHARE),
        outbox.size - min(waiting.size, OUTBOX_BYTES_MAX // WAITING_SHARE),
    )
