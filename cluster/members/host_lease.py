"""HostLease: the one lease of this process, to which all records go that end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from cluster.coordination.coordination import Lease, LeasingCoordination, Unavailable

TTL_S = 3
"""A host that stops without a word is missed after about this time."""


class HostLease:
    """Granted when it is first needed, and anew when it is gone.

    It lasts while coordination is away: that must cost no leader its shards, and their terms say
    who succeeds.
    """

    def __init__(
        self,
        coordination: LeasingCoordination,
        ttl_s: int = TTL_S,
        note: Callable[[int], None] | None = None,
    ) -> None:
        """`note` keeps the id of each lease, so that the next process need not wait for its end."""
        self.ttl_s = ttl_s
        self._note = note
        self.on_gone: list[Callable[[], None]] = []
        """Called each time it is gone, and all its records with it."""
        self._coordination = coordination
        self._lease: Lease | None = None
        self._number = 0
        """Counts the leases that were asked for."""
        self._granting = asyncio.Lock()
        self._is_released = False

    async def current(self) -> Lease | Unavailable:
        """The lease to bind a record to. It may be gone without this host having heard of it."""
        async with self._granting:
            if self._is_released:
                return Unavailable("the host is stopping")
            if self._lease is None:
                self._number += 1
                on_gone = partial(self._gone, self._number)
                granted = await self._coordination.grant(self.ttl_s, on_gone)
                if isinstance(granted, Unavailable):
                    return granted
                self._lease = granted
                if self._note is not None:
                    self._note(granted.lease_id)
            return self._lease

    def _gone(self, number: int) -> None:
        if number == self._number and self._lease is not None:
            self._lease = None
            for listener in self.on_gone:
                listener()

    def lasts(self, lease: Lease) -> bool:
        """True while this one is held, as far as is known here."""
        return lease is self._lease and lease.is_held()

    def missing(self, lease: Lease) -> None:
        """Coordination said that there is no such lease."""
        if lease is self._lease:
            self._gone(self._number)

    async def release(self) -> None:
        """End it, and with it all its records: the host is stopping."""
        async with self._granting:
            self._is_released = True
            lease, self._lease = self._lease, None
        if lease is not None:
            await lease.release()
