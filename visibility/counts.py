"""What happened to a queue since the shard was loaded, for metrics. Volatile; changed by `apply.py` only."""

from __future__ import annotations

import msgspec


class Counts(msgspec.Struct):
    """Messages, each time something happened to one. `sent_bytes` is what AWS counts as their size.

    `there`, what came less what left, is how many messages the queue holds.
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
    restored: int = 0
    """How many there were when the shard was loaded."""

    @property
    def there(self) -> int:
        """How many messages the queue must hold."""
        left = self.deleted + self.expired + self.purged + self.moved_out
        return self.restored + self.sent + self.moved_in - left
