"""Counts of a queue's messages since the shard was loaded, for metrics. Changed by events only."""

from __future__ import annotations

from math import log2

import msgspec

BUCKETS_PER_DOUBLING = 8
"""Resolution of durations: the ends of a bucket differ by 9 %."""


def bucket_of(duration_ms: int) -> int:
    """The bucket of a duration in a log-scale histogram; 0 for a millisecond and less."""
    return int(log2(duration_ms) * BUCKETS_PER_DOUBLING) if duration_ms > 1 else 0


class Counts(msgspec.Struct):
    """Messages by what happened to them. `sent_bytes` is their size as AWS counts it.

    `there`, arrivals less departures, is the number of messages in the queue. Volatile.
    """

    sent: int = 0
    sent_bytes: int = 0
    received: int = 0
    deleted: int = 0
    expired: int = 0
    purged: int = 0
    moved_in: int = 0
    moved_out: int = 0
    """Messages moved to another queue, also as dead letters."""
    restored: int = 0
    """Number of messages when the shard was loaded."""
    quarantined: int = 0
    """Messages found damaged."""

    @property
    def there(self) -> int:
        """Number of messages that the queue must hold."""
        left = self.deleted + self.expired + self.purged + self.moved_out + self.quarantined
        return self.restored + self.sent + self.moved_in - left
