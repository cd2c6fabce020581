"""Singleton: the one host that does what a cluster does once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from cluster.coordination.coordination import (
    Done,
    Lease,
    LeasingCoordination,
    Transaction,
    Unavailable,
)

TTL_S = 5
"""Nothing that is done once is urgent."""


class Singleton:
    """Belongs to one event loop. `start`, then `stop`.

    It is held for as long as no other host can hold it: work that takes time asks `is_held` again
    before each step, and each step is one that may be done twice.
    """

    def __init__(
        self, coordination: LeasingCoordination, key: str, name: str, *, ttl_s: int = TTL_S
    ) -> None:
        """`name` is the host's, for those who read the record."""
        self.on_gained: list[Callable[[], None]] = []
        self.on_lost: list[Callable[[], None]] = []
        self._coordination = coordination
        self._key = key
        self._name = name
        self._ttl_s = ttl_s
        self._lease: Lease | None = None
        self._task: asyncio.Task[None] | None = None
        self._log = structlog.get_logger("singleton").bind(key=key)

    def is_held(self) -> bool:
        """True if this host is the one."""
        return self._lease is not None and self._lease.is_held()

    def start(self) -> None:
        """Try to become the one, and again whenever it is over."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Let another host become the one at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            lost = asyncio.Event()
            lease = await self._try(lost)
            if lease is None:
                await asyncio.sleep(self._ttl_s / 3)
                continue
            try:
                self._lease = lease
                self._tell("gained", self.on_gained)
                await lost.wait()
            finally:
                self._lease = None
                self._tell("lost", self.on_lost)
                await lease.release()

    async def _try(self, lost: asyncio.Event) -> Lease | None:
        """A lease with the key bound to it, None if another host has that."""
        found = await self._coordination.read([self._key])
        if isinstance(found, Unavailable) or found.records:
            return None
        lease = await self._coordination.grant(self._ttl_s, lost.set)
        if isinstance(lease, Unavailable):
            return None
        transaction = Transaction(
            {self._key: 0}, {self._key: self._name.encode()}, {self._key: lease.lease_id}
        )
        is_held = False
        try:
            outcome = await self._coordination.commit(transaction)
            is_held = isinstance(outcome, Done) and lease.is_held()
        finally:
            if not is_held:
                await lease.release()
        return lease if is_held else None

    def _tell(self, event: str, listeners: list[Callable[[], None]]) -> None:
        self._log.info(event)
        for listener in listeners:
            listener()
