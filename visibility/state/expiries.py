"""The bound below which no message of a queue ends its time to live."""

from __future__ import annotations

from visibility.state.queue_state import NEVER_MS, QueueState
from visibility.state.shard_state import ShardState


def note_expiry(shard: ShardState, queue: QueueState, expires_ms: int) -> None:
    """Look at the queue when this time to live ends, that of a message that joined it; 0 for
    none."""
    if expires_ms:
        queue.expiries_after = min(queue.expiries_after, (expires_ms, 0))
        queue.fresh_until_ms = min(queue.fresh_until_ms, expires_ms)
        shard.plan_pulse(queue, expires_ms)


def look_for_expiries(shard: ShardState, queue: QueueState) -> int:
    """The instant at which the first time to live ends, NEVER_MS if none does. Raises
    DamagedRecord."""
    first = shard.rows.expiries(
        queue.queue_id, 1, after=queue.expiries_after, quarantined=queue.quarantined
    )
    expires_ms, sequence = first[0] if first else (NEVER_MS, 1)
    queue.expiries_after = (expires_ms, sequence - 1)
    return expires_ms
