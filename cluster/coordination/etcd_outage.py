"""EtcdOutage: one log line when etcd is away, and one when it is back, however many watches see
it."""

from __future__ import annotations

import structlog

_FAILURES = 2
"""Failures in a row: the first may be that of a single member, which another one replaces."""


class EtcdOutage:
    """Shared by the watches of a client. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self.is_logged = True
        """False for further clients of the same process, which see the same."""
        self._failures: dict[object, int] = {}
        """By watch, since it last reported something."""
        self._is_away = False
        self._log = structlog.get_logger("etcd")

    def failed(self, watch: object, reason: str) -> None:
        """A watch ended, and begins anew."""
        count = self._failures[watch] = self._failures.get(watch, 0) + 1
        if count < _FAILURES or self._is_away:
            return
        self._is_away = True
        if not self.is_logged:
            return
        self._log.warning(
            "etcd_away",
            reason=reason,
            means="messages are served on; queues, users and keys cannot be changed, and no other "
            "host can take over a shard",
            action="start etcd's members, or mend the network to them: see `holdfast cluster "
            "status`",
        )

    def answered(self, watch: object) -> None:
        """A watch reports again."""
        if self._failures.pop(watch, 0) and self._is_away and not self._failures:
            self._is_away = False
            if self.is_logged:
                self._log.warning("etcd_back")

    def ended(self, watch: object) -> None:
        """Nobody watches any more."""
        self._failures.pop(watch, None)
