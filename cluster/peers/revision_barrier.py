"""RevisionBarrier: a change of the queues is answered once every host that can be reached shows it.

    request: the catalog's revision (8); others are those of `queue_news.py`
    answer: empty, once the host shows it

So a client that creates a queue through one host finds it on the others. A host that cannot be
reached, or does not answer in time, is not waited for: its requests carry the version of the queue
that it knows, which the leader notices, and it asks etcd before it refuses one for what it may not
know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from struct import Struct
from typing import Protocol

from cluster.peers.link import Call, ChannelService
from cluster.peers.peer_outcomes import Refusal
from cluster.peers.peer_settings import Channel
from cluster.peers.transport import Transport, ask_all
from cluster.tasks import start_task
from visibility.contract.errors import ServiceUnavailable

_REVISION = Struct(">Q")
_WAIT_S = 3.0
"""Time that a change waits for the slowest host: longer than a silent connection stands."""


class Shown(Protocol):
    """This host's view of the queues."""

    async def shown(self, revision: int) -> None:
        """Wait until it shows this revision. Raises ServiceUnavailable if it does not soon."""


async def spread(transport: Transport, revision: int) -> None:
    """Wait until the other hosts show a revision, for a bounded time."""
    await ask_all(transport, Channel.CATALOG, _REVISION.pack(revision), _WAIT_S)


def _refuse(call: Call) -> None:
    call.refuse(Refusal.UNREADABLE, "no revision")


class RevisionBarrier:
    """Answers other hosts."""

    def __init__(self, view: Shown, tell: Callable[[Call], None] = _refuse) -> None:
        """`tell` answers what is no revision."""
        self._view = view
        self._tell = tell
        self._tasks: set[asyncio.Task[None]] = set()
        self.service = ChannelService(on_request=self._asked)
        """The service of `Channel.CATALOG`."""

    def _asked(self, call: Call) -> None:
        if len(call.body) != _REVISION.size:
            self._tell(call)
            return
        start_task(self._tasks, self._answer(call, *_REVISION.unpack(call.body)))

    async def _answer(self, call: Call, revision: int) -> None:
        try:
            await self._view.shown(revision)
        except ServiceUnavailable:
            call.refuse(Refusal.DEFINITION_UNKNOWN, f"revision {revision} is not shown here")
        else:
            call.answer(b"")
