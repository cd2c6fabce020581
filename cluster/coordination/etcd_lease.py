"""A lease of etcd, kept alive.

The holder's time is counted from before the request that etcd answered last, on a clock that goes
on while the machine sleeps: so it ends before etcd's does, which begins when the request arrives,
and may begin anew when etcd's leader changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from cluster.coordination.etcd_client import NOT_FOUND, Deadline, EtcdClient, Refused
from cluster.coordination.etcd_messages import RENEW, REVOKE, LeaseAnswer, LeaseNamed, Renewed
from cluster.coordination.etcd_wire import NoAnswer

_RENEWALS = 3
"""Renewals in the time of the lease."""
_LIMIT = 0.9
"""Limit of a renewal, as part of the time between two."""
_PAUSE = 0.1
"""Pause after a failed renewal, as part of the time between two."""
_REVOKE_S = 2.0

Start = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class EtcdLease:
    """A lease of etcd."""

    def __init__(
        self,
        client: EtcdClient,
        lease_id: int,
        monotonic_s: Callable[[], float],
        on_gone: Callable[[], None],
    ) -> None:
        """Begin with `granted`. See `LeasingCoordination.grant`."""
        self.lease_id = lease_id
        self.held_until_s = 0.0
        self._client = client
        self._monotonic_s = monotonic_s
        self._on_gone = on_gone
        self._ttl_s = 0
        self._is_over = False
        self._is_gone = False
        """True once etcd has said so."""
        self._task: asyncio.Task[None] | None = None

    def granted(self, sent_s: float, ttl_s: int, start: Start) -> None:
        """Begin to renew a lease that was asked for at `sent_s`, in a task that `start` makes."""
        self._extend(sent_s, ttl_s)
        self._task = start(self._keep())

    def _extend(self, sent_s: float, ttl_s: int) -> None:
        self._ttl_s = ttl_s
        self.held_until_s = max(self.held_until_s, sent_s + ttl_s)

    def is_held(self) -> bool:
        """True while no other host can have seen it end. Never true again after it was false."""
        self._is_over = self._is_over or self._monotonic_s() >= self.held_until_s
        return not self._is_over

    async def release(self) -> None:
        """End it, and with it the records bound to it."""
        self._is_over = True
        self.stop()
        await self._revoke()

    def stop(self) -> None:
        """Stop renewing, without a word to etcd."""
        if self._task is not None:
            self._task.cancel()

    async def _keep(self) -> None:
        pause_s = self._ttl_s / _RENEWALS
        while True:
            await asyncio.sleep(pause_s)
            answered = await self._renew()
            if self._is_gone:
                break
            pause_s = self._ttl_s / _RENEWALS * (1 if answered else _PAUSE)
        self._on_gone()
        await self._revoke()  # a leader change may have extended it, and others wait for its end

    async def _renew(self) -> bool:
        """Renew once; False if no answer came. An endpoint that fails is not the next one asked."""
        sent_s = self._monotonic_s()
        limit_s = self._ttl_s / _RENEWALS * _LIMIT
        try:
            answer = await self._client.ask_once(RENEW, LeaseNamed(self.lease_id), Renewed, limit_s)
        except NoAnswer:
            return False
        except Refused as error:
            self._note_if_gone(error.code == NOT_FOUND)
            return False
        if answer.result.TTL > 0:
            self._extend(sent_s, answer.result.TTL)
        self._note_if_gone(answer.result.TTL <= 0)
        return True

    def _note_if_gone(self, is_gone: bool) -> None:
        self._is_gone = self._is_gone or is_gone
        self._is_over = self._is_over or is_gone

    async def _revoke(self) -> None:
        """End the lease now, if etcd can be reached; it ends by itself otherwise."""
        try:
            message = LeaseNamed(self.lease_id)
            await self._client.ask(REVOKE, message, LeaseAnswer, Deadline(_REVOKE_S))
        except (NoAnswer, Refused):
            return
