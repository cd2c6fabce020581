"""Noisy groups of a standard queue: they take so large a share of its consumers that others wait.

A group is noisy once it has more than a tenth of the messages in flight and at least 30, or took
more than a tenth of the recent processing time of all. It stays noisy until its backlog is gone or
nothing was sent to it for five minutes, and becomes noisy again at its next receive if it still has
that many in flight. All of this is an estimate, and reset by a restart; events record what
decisions made of it.
Source: SQS developer guide, how fair queues work.
"""

from __future__ import annotations

import msgspec

from visibility.content.id_digests import UNGROUPED

IN_FLIGHT_SHARE = 0.1
IN_FLIGHT_MIN = 30  # messages of the group
BUSY_SHARE = 0.1
FINISHED_MIN = 30.0  # messages of the group finished recently; with fewer, the share means nothing
QUIET_AFTER_MS = 300_000
_HALF_LIFE_MS = 60_000.0
TENANTS_MAX = 10_000


class _Tenant(msgspec.Struct, gc=False):
    """Processing time of a group, halved every minute."""

    busy_ms: float = 0.0
    finished: float = 0.0
    at_ms: int = 0

    def fade(self, now_ms: int) -> None:
        factor = 0.5 ** ((now_ms - self.at_ms) / _HALF_LIFE_MS)
        self.busy_ms *= factor
        self.finished *= factor
        self.at_ms = now_ms


class Fairness:
    """The noisy groups of one queue."""

    __slots__ = ("_all", "_tenants", "noisy")

    def __init__(self) -> None:
        self.noisy: dict[bytes, int] = {}
        """Noisy groups with the time of their latest send, or at which they became noisy."""
        self._tenants: dict[bytes, _Tenant] = {}
        self._all = _Tenant()

    def received(self, group: bytes, held: int, in_flight: int, now_ms: int) -> None:
        """Note that the group has `held` of `in_flight` messages in flight."""
        if held >= IN_FLIGHT_MIN and held > in_flight * IN_FLIGHT_SHARE and group != UNGROUPED:
            self.noisy.setdefault(group, now_ms)

    def finished(self, group: bytes, busy_ms: int, now_ms: int) -> None:
        """Note that a message of the group was deleted `busy_ms` after it was received."""
        tenant = self._tenants.get(group)
        if tenant is None:
            if len(self._tenants) >= TENANTS_MAX:
                self._tenants.clear()
            tenant = self._tenants[group] = _Tenant(at_ms=now_ms)
        for part in (tenant, self._all):
            part.fade(now_ms)
            part.busy_ms += busy_ms
            part.finished += 1.0
        if (
            tenant.finished >= FINISHED_MIN
            and tenant.busy_ms > self._all.busy_ms * BUSY_SHARE
            and group != UNGROUPED
        ):
            self.noisy.setdefault(group, now_ms)

    def sent(self, group: bytes, now_ms: int) -> None:
        """Note that a message was sent to the group."""
        if group in self.noisy:
            self.noisy[group] = now_ms

    def drained(self, group: bytes) -> None:
        """Note that the group has no more waiting messages."""
        self.noisy.pop(group, None)

    def noisy_now(self, now_ms: int) -> dict[bytes, int]:
        """The noisy groups, without those that got no message for long."""
        if any(at_ms + QUIET_AFTER_MS <= now_ms for at_ms in self.noisy.values()):
            self.noisy = {
                group: at_ms
                for group, at_ms in self.noisy.items()
                if at_ms + QUIET_AFTER_MS > now_ms
            }
        return self.noisy
