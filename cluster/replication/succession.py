"""Succession: who is to lead next, where several could.

A leader that hands its shard over takes no more Entries, and gives up the key once all that is
under way is committed. The heir then looks at the key without waiting for silence. A replica that
should not lead lets others go first.
"""

from __future__ import annotations

from collections.abc import Callable

from cluster.replication.replica_core import ReplicaCore
from cluster.replication.replica_messages import HandOver


class Succession:
    """Part of a replica."""

    def __init__(self, replica: ReplicaCore) -> None:
        self.reluctance_s: Callable[[], float] = _eager
        """Seconds for which a free key is left to others."""
        self._replica = replica
        self._heir = ""
        self._give_up_at = 0.0
        self._invited_until = 0.0
        self._free_since: float | None = None
        """When the key was first seen to be free; None while it is held."""
        self._unheld_since: float | None = None
        """The same, although a leader may be heard; None also while the key cannot be read."""

    # -- a leader ----------------------------------------------------------------------------------

    @property
    def is_handing_over(self) -> bool:
        """True while this leader takes no more Entries."""
        return bool(self._heir)

    def hand_over(self, to: str) -> None:
        """Let this peer lead next, unless what is under way takes too long."""
        replica = self._replica
        if replica.serving and not self._heir:
            self._heir = to
            self._give_up_at = replica.now() + replica.timing.head_start_s
            replica.logger.info("hands_over", to=to)
            self.tick()

    def tick(self) -> None:
        """Step down once nothing is under way."""
        replica = self._replica
        if not self._heir:
            return
        if not replica.serving or replica.now() >= self._give_up_at:
            self._heir = ""
        elif replica.is_idle:
            heir, self._heir = self._heir, ""
            term = replica.journal.promise.term
            replica.step_down(rest_s=replica.timing.silence_s + replica.timing.head_start_s)
            replica.send(heir, HandOver(term))

    # -- its followers -----------------------------------------------------------------------------

    @property
    def is_invited(self) -> bool:
        """True for a moment after the leader gave this replica the shard."""
        return self._replica.now() < self._invited_until

    def invite(self, message: HandOver) -> None:
        """The leader of this term gave up the key for this replica."""
        replica = self._replica
        if message.term == replica.journal.promise.term and not replica.has_part:
            self._invited_until = replica.now() + replica.timing.head_start_s

    def key_seen(self, *, is_free: bool, heard_at: float) -> None:
        """Note the key as it was just read, and when a leader was last heard."""
        if not is_free:
            self._free_since = self._unheld_since = None
            return
        if self._unheld_since is None:
            self._unheld_since = self._replica.now()
        if self._free_since is None or self._free_since < heard_at:
            self._free_since = self._replica.now()

    def key_not_seen(self) -> None:
        """The key is ours, or cannot be read: coordination may be away from all hosts."""
        self._unheld_since = None

    @property
    def is_unheld(self) -> bool:
        """True if the key was free when it was read last."""
        return self._unheld_since is not None

    @property
    def is_abandoned(self) -> bool:
        """True if the key has been free for long: a leader that is still heard lost it.

        Other hosts send that leader no requests. A new term replaces it without danger, since a
        majority promises the term first.
        """
        replica = self._replica
        if self._unheld_since is None:
            return False
        patience_s = replica.timing.unheld_s + self.reluctance_s()
        return replica.now() - self._unheld_since >= patience_s

    def may_lead(self) -> bool:
        """True if the key, which is free, need not be left to others any longer."""
        if self.is_invited or self.is_abandoned:
            return True
        assert self._free_since is not None
        return self._replica.now() - self._free_since >= self.reluctance_s()


def _eager() -> float:
    return 0.0
