"""The orders of queues, and the one that a queue has."""

from __future__ import annotations

from typing import Protocol

from visibility.rules.fair_order import Fair
from visibility.rules.fifo_order import Fifo
from visibility.rules.order import Order


class _OfType(Protocol):
    @property
    def fifo(self) -> bool:
        """The type of a queue, in its settings or in what is stored of it."""


_FAIR = Fair()
_FIFO = Fifo()


def order_of(queue: _OfType) -> Order:
    """The order of a queue with these settings or this state. Before its first message, the state
    knows that of a standard queue only."""
    return _FIFO if queue.fifo else _FAIR
