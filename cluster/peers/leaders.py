"""The parts of a cluster that forwarding needs to know: who leads, and which queues there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from visibility.contract.model import QueueDefinition, Request


class Leaders(Protocol):
    """The leader of each shard, as far as this host knows."""

    def leader_of(self, shard: int) -> str | None:
        """The host that leads it, None while there is none."""

    def subscribe(self, on_change: Callable[[int], None]) -> None:
        """Call back with each shard whose leader changed, on the event loop."""


class View(Protocol):
    """This host's definitions of queues."""

    def queue_of_id(self, queue_id: int) -> QueueDefinition | None:
        """The queue with this id, None if it was deleted."""

    def renewed(self, request: Request) -> Request | None:
        """The same request with the definitions of now; None if its queue is gone."""

    def when_caught_up(self, then: Callable[[], None]) -> None:
        """Call back once, later, when the view shows all that was committed before this call, or
        when that cannot be known in bounded time."""
