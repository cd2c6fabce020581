"""What happened to a queue since the shard was loaded, for metrics. Volatile; changed by `apply.py` only."""

from __future__ import annotations

import msgspec


class Counts(msgspec.Struct):
    """Messages, each time something happened to one. `sent_bytes` is what AWS counts as their size.

    Invariant, from an empty queue on: sent + moved_in - moved_out - deleted - expired - purged = messages in the queue.
    """

    sent: int = 0
    sent_bytes: int = 0
    received: int = 0
    deleted: int = 0
    expired: int = 0
    purged: int = 0
    moved_in: int = 0
    moved_out: int = 0
    """To another queue, also as dead letters."""
