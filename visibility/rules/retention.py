"""TooOld: the messages that a decision passes by, since their retention or their time to live is
over although no pulse has removed them yet.

Pulses remove a bounded part in a Turn, and nothing on the time of a clock that is not trusted; a
shard may find many such messages at once, after a failover, a stop or a sleep. A receive counts
both on the time of its Turn, trusted or not.
"""

from __future__ import annotations

from visibility.contract.model import QueueSettings
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

PASSED_MAX = 1_000
"""Messages that one decision passes by, so that it does not hold the loop for long."""


class TooOld:
    """The messages of one queue that are too old, in one decision."""

    __slots__ = ("_goes_on", "_left", "_now_ms", "until_ms")

    def __init__(
        self, shard: ShardState, queue: QueueState, settings: QueueSettings, stamp: Stamp
    ) -> None:
        now_ms = self._now_ms = stamp.now_ms
        self.until_ms = 0
        """Messages retained from then or before are too old; 0 if there are none."""
        self._goes_on = False
        if now_ms >= queue.fresh_until_ms:
            self.until_ms = now_ms - settings.retention_ms
            self._goes_on = queue.queue_id in shard.due or 0 < queue.pulse_at_ms <= now_ms
        self._left = PASSED_MAX

    def passes(self, message: StoredMessage | Lease) -> bool:
        """True if the message is passed by. If it is not known since when it is retained, from a
        lease of a version before 0.2, pulses remove it.

        Above the bound a decision that is made again passes by the others; where no pulse removes
        any, they are handed out rather than to keep what is behind them.
        """
        if not self.until_ms or not self._left:
            return False
        is_too_old = 0 < message.retained_from_ms <= self.until_ms
        if not is_too_old and not 0 < message.expires_ms <= self._now_ms:
            return False
        self._left -= 1
        return True

    @property
    def is_over(self) -> bool:
        """True if the decision is to be made again, since the next pulse removes some."""
        return self._goes_on and not self._left
