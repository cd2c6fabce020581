"""The view of a host that knows one queue, which has several parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from visibility.contract.model import QueueDefinition, Request
from visibility.contract.queue_parts import Part
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues


class SplitView(KnownQueues):
    """A queue whose parts are each in a shard of its own, from shard 0 on."""

    def __init__(self, count: int) -> None:
        home = prepared.queue_named("q", 1)
        parts = tuple(Part(16 * number, 1 + number, number) for number in range(count))
        self.queue = msgspec.structs.replace(home, parts=parts, last_part=parts[-1].number)
        super().__init__(*self.queue.all_parts())

    def find(self, name: object) -> QueueDefinition:
        """See `View`."""
        return self.queue

    def renewed(self, request: Request) -> Request:
        """See `View`."""
        return request

    def when_caught_up(self, then: Callable[[], None]) -> None:
        """See `View`."""
        asyncio.get_running_loop().call_soon(then)
