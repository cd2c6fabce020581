"""TurnSample: which queues a shard decides for, from a sample of its Turns.

One Turn of sixteen is looked at, from the moment somebody asks for a sample; before, none is. So a
shard of which nobody asks pays nothing, and another one a comparison a Turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from visibility.contract.operations import (
    Operation,
    SendMessage,
    SendMessageBatch,
    SendMessageBatchRequestEntry,
)
from visibility.state.waiters import Ticket

_EACH = 16
_GROUPS_MAX = 1024
"""Message groups that are told apart between two readings; others count for the queue only."""


class QueueShare(NamedTuple):
    """A queue, or a part, in the Turns that were looked at."""

    seconds: float
    """Time of deciding that its requests took, each as long as the others of its Turn."""
    top_group: float
    """The share of its sends that its busiest message group has; 0 without groups."""


class TurnSample:
    """The sample of one shard."""

    def __init__(self) -> None:
        self._left = _EACH
        self._seconds: dict[int, float] = {}
        self._sends: dict[int, int] = {}
        self._groups: dict[tuple[int, str], int] = {}

    def see(self, tickets: Sequence[Ticket], seconds: float) -> None:
        """A Turn decided these requests; look at it if it is its turn."""
        if not tickets:
            return
        self._left -= 1
        if self._left:
            return
        self._left = _EACH
        share = seconds / len(tickets)
        for ticket in tickets:
            request = ticket.request
            queue_id = request.queue.queue_id
            self._seconds[queue_id] = self._seconds.get(queue_id, 0.0) + share
            if request.queue.settings.fifo:
                self._count_groups(queue_id, request.operation)

    def _count_groups(self, queue_id: int, operation: Operation) -> None:
        sent: Sequence[SendMessage | SendMessageBatchRequestEntry] = ()
        if isinstance(operation, SendMessage):
            sent = (operation,)
        elif isinstance(operation, SendMessageBatch):
            sent = operation.entries or ()
        for message in sent:
            self._sends[queue_id] = self._sends.get(queue_id, 0) + 1
            key = (queue_id, message.message_group_id or "")
            if key in self._groups or len(self._groups) < _GROUPS_MAX:
                self._groups[key] = self._groups.get(key, 0) + 1

    def take(self) -> dict[int, QueueShare]:
        """The shares since the last reading, by queue id."""
        top: dict[int, int] = {}
        for (queue_id, _), count in self._groups.items():
            top[queue_id] = max(top.get(queue_id, 0), count)
        shares = {
            queue_id: QueueShare(
                seconds, top.get(queue_id, 0) / self._sends[queue_id] if queue_id in top else 0.0
            )
            for queue_id, seconds in self._seconds.items()
        }
        self._seconds, self._sends, self._groups = {}, {}, {}
        return shares
