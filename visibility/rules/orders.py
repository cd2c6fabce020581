"""The orders of queues, and the one that a queue has."""

from __future__ import annotations

from typing import Protocol

from visibility.contract.model import QueueSettings
from visibility.contract.priority import PRIORITY_TAG, STRICT, WEIGHTED
from visibility.rules.fair_order import Fair
from visibility.rules.fifo_order import Fifo
from visibility.rules.order import Order
from visibility.rules.priority_order import ByPriority


class _OfType(Protocol):
    @property
    def fifo(self) -> bool:
        """The type of a queue, in its settings or in what is stored of it."""


_FAIR = Fair()
_FIFO = Fifo()
_BY_PRIORITY = {STRICT: ByPriority(is_strict=True), WEIGHTED: ByPriority(is_strict=False)}


def order_of(queue: _OfType) -> Order:
    """The order of a queue with these settings or this state. Before its first message, the state
    knows that of a standard queue only."""
    return _FIFO if queue.fifo else _FAIR


def receiving_order(settings: QueueSettings) -> Order:
    """The order in which receives get the messages of a queue with these settings."""
    by_priority = None
    if settings.own_tags and not settings.fifo:
        by_priority = _BY_PRIORITY.get(settings.own_tags.get(PRIORITY_TAG, ""))
    return by_priority or order_of(settings)
