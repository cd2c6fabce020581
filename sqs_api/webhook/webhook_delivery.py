"""WebhookDelivery: signed POSTs to one address, each repeated until it is accepted or given up.

    webhook-id          the same in every repetition
    webhook-timestamp   seconds since 1970 of this attempt
    webhook-signature   v1, and the base64 of HMAC-SHA256 over "ID.TIMESTAMP.BODY"

Source: the specification of Standard Webhooks, so that its libraries verify the signature. Messages
never wait for it: it has tasks of its own, and keeps undelivered events in memory only.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
from collections.abc import Awaitable, Callable, Mapping

import aiohttp
import structlog

from cluster.tasks import start_task

ATTEMPT_S = 15.0
"""Time for the receiver to answer."""
_FIRST_WAIT_S = 2.0
_WAIT_MAX_S = 900.0
_ATTEMPTS = 30
"""They take about five hours."""
_PENDING_MAX = 1000

Post = Callable[[bytes, Mapping[str, str]], Awaitable[int]]
"""Sends a body with headers; returns the status. Raises OSError, TimeoutError, ClientError."""


def signed(secret: bytes, event_id: str, now_s: float, body: bytes) -> dict[str, str]:
    """The headers of an attempt."""
    stamp = str(int(now_s))
    text = b".".join((event_id.encode(), stamp.encode(), body))
    signature = base64.b64encode(hmac.digest(secret, text, "sha256")).decode()
    return {
        "content-type": "application/json",
        "webhook-id": event_id,
        "webhook-timestamp": stamp,
        "webhook-signature": f"v1,{signature}",
    }


class HttpPost:
    """Posts to one address, without following redirects."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url = url
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def __call__(self, body: bytes, headers: Mapping[str, str]) -> int:
        """Post a body; returns the status. Raises OSError, TimeoutError, ClientError."""
        async with (
            aiohttp.ClientSession(timeout=self._timeout) as session,
            session.post(
                self._url, data=body, headers=dict(headers), allow_redirects=False
            ) as answer,
        ):
            return answer.status


class WebhookDelivery:
    """Delivers to one address."""

    def __init__(self, post: Post, secret: bytes, wall_s: Callable[[], float]) -> None:
        self._post = post
        self._secret = secret
        self._wall_s = wall_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = structlog.get_logger("webhook")

    @property
    def pending(self) -> int:
        """Events that the receiver has not accepted yet."""
        return len(self._tasks)

    def deliver(self, event_id: str, body: bytes) -> None:
        """Begin to deliver an event."""
        if len(self._tasks) >= _PENDING_MAX:
            self._log.error("webhook_given_up", webhook_id=event_id, reason="too many are pending")
            return
        start_task(self._tasks, self._deliver(event_id, body))

    async def _deliver(self, event_id: str, body: bytes) -> None:
        wait_s = _FIRST_WAIT_S
        reason = ""
        for _ in range(_ATTEMPTS):
            reason = await self._attempt(event_id, body)
            if not reason:
                return
            self._log.warning("webhook_failed", webhook_id=event_id, reason=reason)
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, _WAIT_MAX_S)
        self._log.error("webhook_given_up", webhook_id=event_id, reason=reason)

    async def _attempt(self, event_id: str, body: bytes) -> str:
        """The reason of a failure; empty once the event is accepted."""
        try:
            status = await self._post(body, signed(self._secret, event_id, self._wall_s(), body))
        except (aiohttp.ClientError, OSError) as error:  # a timeout is an OSError, too
            return str(error) or type(error).__name__
        return "" if 200 <= status < 300 else f"status {status}"

    async def stop(self) -> None:
        """Give up all undelivered events."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
