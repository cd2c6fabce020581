"""Link: keeps one connection open to one channel of a peer, and sends what it is given over it.

Nothing waits for a connection: without one a message fails at once, with NotSent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count

import structlog

from cluster.clock import Clock, Entropy
from cluster.peers.breaker import Breaker, Pause
from cluster.peers.hello import Hello
from cluster.peers.outgoing import Outgoing
from cluster.peers.peer_log import PeerLog
from cluster.peers.peer_outcomes import NotSent, OnOutcome, Reason
from cluster.peers.settings import PeerSettings
from cluster.peers.wire import Wire


class Link:
    """Belongs to the event loop's thread. `start`, and `stop` in the end."""

    def __init__(
        self,
        *,
        hello: Callable[[], Hello],
        dial: Callable[[Wire], Awaitable[None]],
        on_open: Callable[[], None],
        on_lost: Callable[[], None],
        settings: PeerSettings,
        clock: Clock,
        entropy: Entropy,
        peers: PeerLog,
    ) -> None:
        """`hello` is asked before each attempt; `dial` connects a wire and raises OSError;
        `on_open` is called each time a connection stands, `on_lost` when it has ended."""
        self._hello = hello
        self._dial = dial
        self._settings = settings
        self._clock = clock
        self._pause = Pause(settings.reconnect_s, settings.reconnect_max_s, entropy)
        self.breaker = Breaker(
            settings.breaker_failures,
            Pause(settings.breaker_s, settings.breaker_max_s, entropy),
        )
        self._numbers = count(1)
        self._current: Outgoing | None = None
        self._connections: set[Outgoing] = set()
        """The current one, and those that wait for their last answers."""
        self._task: asyncio.Task[None] | None = None
        self._on_open = on_open
        self._on_lost = on_lost
        self._peers = peers
        self._log = structlog.get_logger("peers")

    @property
    def is_open(self) -> bool:
        """True while requests can be sent."""
        return self._current is not None and self._current.takes_requests

    @property
    def peer(self) -> Hello | None:
        """The other host's word about itself when it was reached last."""
        return None if self._current is None else self._current.peer

    @property
    def version(self) -> int:
        """The version that both sides speak, 0 without a connection."""
        return 0 if self._current is None else self._current.version

    # -- sending -----------------------------------------------------------------------------------

    def message(self, body: bytes) -> NotSent | None:
        """Send what needs no answer. It may get lost with the connection."""
        current = self._current
        return NotSent(Reason.NOT_CONNECTED) if current is None else current.message(body)

    def request(self, body: bytes, on_outcome: OnOutcome, timeout_s: float) -> int | NotSent:
        """Send a request. Returns its number, and `on_outcome` is called exactly once, later; or
        why nothing was sent."""
        current = self._current
        if current is None:
            return NotSent(Reason.NOT_CONNECTED)
        return current.request(body, on_outcome, timeout_s)

    def cancel(self, number: int) -> bool:
        """The answer is not needed any more. True if it was not sent yet: then no outcome comes."""
        for connection in self._connections:
            if connection.awaits(number):
                return connection.cancel(number)
        return False

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect, now and whenever the connection is lost."""
        self._task = asyncio.get_running_loop().create_task(self._keep_connected())

    def renew(self) -> None:
        """Let go of the connection in order; the next one shows new certificates."""
        if self._current is not None and self._current.peer is not None:
            self._current.close()

    async def stop(self) -> None:
        """End the connections, after their last answers."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for connection in list(self._connections):
            connection.close()
        # An event instead of looking would be for a stop only.
        while self._connections:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def _keep_connected(self) -> None:
        while True:
            try:
                await self._connect_once()
            except Exception:
                self._log.exception("link_failed")
            await asyncio.sleep(self._pause.next_s())

    async def _connect_once(self) -> None:
        """Connect, and wait until the connection takes no more requests."""
        hello = self._hello()
        connection = self._current = Outgoing(
            hello,
            numbers=self._numbers,
            settings=self._settings,
            monotonic_s=self._clock.monotonic_s,
            breaker=self.breaker,
            on_end=self._connections.discard,
        )
        failure = await self._connect(connection)
        if failure:
            self._peers.failed(hello.to, failure)
        else:
            self._opened(connection)
            failure = await connection.retired
            self._peers.closed(hello.to, hello.channel, failure)
            self._on_lost()

    async def _connect(self, connection: Outgoing) -> str:
        """Empty if the connection stands, else the reason why not."""
        self._connections.add(connection)
        try:
            async with asyncio.timeout(2 * self._settings.handshake_s):
                await self._dial(connection.wire)
                refusal = await connection.welcomed
        except (OSError, TimeoutError) as error:
            self._give_up(connection)
            return str(error) or type(error).__name__
        except BaseException:
            self._give_up(connection)
            raise
        return "" if refusal is None else f"{refusal.reason}: {refusal.detail}"

    def _give_up(self, connection: Outgoing) -> None:
        self._connections.discard(connection)
        connection.wire.break_off(Reason.NO_HANDSHAKE)

    def _opened(self, connection: Outgoing) -> None:
        hello = connection.peer
        assert hello is not None
        self._pause.reset()
        self._peers.opened(hello.host, hello.channel, connection.version)
        self._on_open()
