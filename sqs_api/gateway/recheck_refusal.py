"""RecheckRefusal: a request is refused for a key, a policy or a queue only once this host knows
what other hosts changed, and not at all for a key that is being made.

A new access key, or session of a browser, is good for the very next request, and a host of a
cluster whose watch of etcd lags does not refuse what its neighbours would answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from auth.auth_errors import AccessDenied, AuthError, InvalidClientTokenId, SessionEnded
from cluster.keys.identity_records import IdentitiesUnreadable
from cluster.keys.keyring import KeysAway
from sqs_api.gateway.queue_actions import QueueActions
from sqs_api.gateway.sealer import Sealer
from visibility.contract.errors import (
    KmsAccessDenied,
    KmsDisabled,
    KmsNotFound,
    QueueDoesNotExist,
    QueueError,
    ServiceUnavailable,
)

_REFUSALS = {
    InvalidClientTokenId,
    SessionEnded,
    AccessDenied,
    QueueDoesNotExist,
    KmsAccessDenied,
    KmsDisabled,
    KmsNotFound,
}
HEAR_PAUSE_S = 0.2
"""Between questions to etcd: callers without a key cause them."""
_HEAR_S = 4.0
"""Time that a request waits for what it may not know."""


class RecheckRefusal:
    """Says which refusals may be lifted, and waits for that."""

    def __init__(
        self, queues: QueueActions, sealer: Sealer, catch_up: Callable[[], Awaitable[None]]
    ) -> None:
        """`catch_up` waits until all changes of users and keys are known here that were made
        before; it may raise IdentitiesUnreadable and KeysAway."""
        self._queues = queues
        self._sealer = sealer
        self._catch_up = catch_up
        self._asking = asyncio.Lock()
        self._asked = self._heard = 0
        """Questions to etcd that were begun, and the latest one that was answered."""
        self._asked_s = -HEAR_PAUSE_S
        self._log = structlog.get_logger("node")

    def may_lift(self, refusal: QueueError | AuthError) -> bool:
        """True if the request should be decided again after `hear`."""
        if type(refusal) is ServiceUnavailable:
            return self._sealer.is_making
        return type(refusal) in _REFUSALS and self._queues.may_lack_queues

    async def hear(self, refusal: QueueError | AuthError) -> None:
        """Wait for what could lift the refusal. Raises ServiceUnavailable if that takes too
        long."""
        try:
            async with asyncio.timeout(_HEAR_S):
                if type(refusal) is ServiceUnavailable:
                    await self._sealer.made()
                elif type(refusal) is not QueueDoesNotExist:
                    await self._hear_once(self._asked)
        except (TimeoutError, IdentitiesUnreadable, KeysAway) as error:
            self._log.warning("changes_not_heard", error=str(error))
            raise ServiceUnavailable() from None
        if type(refusal) not in (InvalidClientTokenId, SessionEnded, ServiceUnavailable):
            await self._queues.learn_all()

    async def _hear_once(self, asked: int) -> None:
        """Pick up all changes that were made before this call, with other requests."""
        async with self._asking:
            if self._heard > asked:
                return
            now_s = asyncio.get_running_loop().time
            await asyncio.sleep(self._asked_s + HEAR_PAUSE_S - now_s())
            self._asked += 1
            self._asked_s = now_s()
            await self._catch_up()
            self._heard = self._asked
