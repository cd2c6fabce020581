"""LeaderKey: the key of a shard, as one replica sees and holds it, and when it tries to take it,
with a higher term (rule 24).

A replica that should not lead lets others go first. One to which the leader handed the shard over
does not wait for silence.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf

from cluster.coordination.coordination import Unavailable
from cluster.replication.contract import Times, Timing
from cluster.replication.leadership import Holder, Leadership, Renewal, Seen


class LeaderKey:
    """Part of a replica."""

    def __init__(
        self,
        leadership: Leadership,
        times: Times,
        timing: Timing,
        reluctance_s: Callable[[], float],
    ) -> None:
        self.held: Holder | None = None
        """The key, from the moment it was taken."""
        self.reluctance_s = reluctance_s
        """Seconds for which a free key is left to others."""
        self._leadership = leadership
        self._now = times.monotonic_s
        self._timing = timing
        self._renewed_at = 0.0
        self._not_before = 0.0
        self._is_reading = False
        self._read_at = 0.0
        self._invited_until = 0.0
        self._free_since: float | None = None
        """When the key was first seen to be free; None while it is held."""
        self._unheld_since: float | None = None
        """The same, although a leader may be heard; None also while the key cannot be read."""

    # -- held --------------------------------------------------------------------------------------

    def hold(self, holder: Holder) -> None:
        """The key is ours."""
        self.held = holder
        self._renewed_at = self._now()
        self._unheld_since = None

    def give_up(self, rest_s: float) -> None:
        """Release it if it is held, and do not try again before `rest_s`."""
        held, self.held = self.held, None
        self._not_before = max(self._not_before, self._now() + rest_s)
        if held is not None:
            self._leadership.release(held)

    def renew(self, on_lost: Callable[[Holder], None]) -> None:
        """Extend its lease if that is due. Without coordination a leader goes on; a key that is
        gone may be another's."""
        held = self.held
        if held is not None and self._now() - self._renewed_at >= self._leadership.renewal_s:
            self._renewed_at = self._now()
            self._leadership.renew(held, partial(self._renewal, held, on_lost))

    def _renewal(self, held: Holder, on_lost: Callable[[Holder], None], renewal: Renewal) -> None:
        if renewal is Renewal.LOST and held == self.held:
            on_lost(held)

    # -- looked at ---------------------------------------------------------------------------------

    def freed(self) -> None:
        """Coordination reported that the key is free: it is due to be read."""
        self._read_at = -inf

    def invite(self) -> None:
        """Let this replica take the key at once, for a moment: the leader left it the shard."""
        self._invited_until = self._now() + self._timing.head_start_s

    @property
    def _is_invited(self) -> bool:
        return self._now() < self._invited_until

    def _is_silent(self, heard_at: float) -> bool:
        return self._now() - heard_at >= self._timing.silence_s

    def is_due(self, heard_at: float) -> bool:
        """True if the key is to be read, where a leader was last heard at that time."""
        now, timing = self._now(), self._timing
        if self._is_reading or now < self._not_before:
            return False
        since_s = now - self._read_at
        if self._is_silent(heard_at):
            fell_silent_at = heard_at + timing.silence_s
            is_due = since_s >= timing.read_s or self._read_at < fell_silent_at
        else:
            is_free = self._unheld_since is not None
            is_due = since_s >= (timing.read_s if is_free else timing.look_s)
        return is_due or self._is_invited

    def read(self, done: Callable[[Seen], None]) -> None:
        """Read it; `done` is not called if coordination is away."""
        self._is_reading = True
        self._read_at = self._now()
        self._leadership.read(partial(self._read, done))

    def _read(self, done: Callable[[Seen], None], seen: Seen | Unavailable) -> None:
        self._is_reading = False
        if isinstance(seen, Unavailable):
            self._unheld_since = None  # coordination may be away from all hosts
        else:
            done(seen)

    def is_wanted(self, seen: Seen, heard_at: float) -> bool:
        """Note the key as it was just read; True if there is no leader to be heard, or if that one
        lost it."""
        if seen.holder is not None:
            self._free_since = self._unheld_since = None
        else:
            if self._unheld_since is None:
                self._unheld_since = self._now()
            if self._free_since is None or self._free_since < heard_at:
                self._free_since = self._now()
        return self._is_silent(heard_at) or self._is_invited or self._is_abandoned

    @property
    def _is_abandoned(self) -> bool:
        """True if the key has been free for long: a leader that is still heard lost it.

        Other hosts send that leader no requests. A new term replaces it without danger, since a
        majority promises the term first.
        """
        if self._unheld_since is None:
            return False
        patience_s = self._timing.unheld_s + self.reluctance_s()
        return self._now() - self._unheld_since >= patience_s

    def is_ours_to_take(self) -> bool:
        """True if the key, which is free, need not be left to others any longer."""
        if self._is_invited or self._is_abandoned:
            return True
        assert self._free_since is not None
        return self._now() - self._free_since >= self.reluctance_s()

    def delete(self, holder: Holder) -> None:
        """It bears our name from a life before this one, or from a transaction of unknown outcome:
        its term is spent. It is read again soon."""
        self._leadership.release(holder)
        self._read_at -= self._timing.read_s
