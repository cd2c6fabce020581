"""The history of a run by message and queue, as the rules of the judge ask for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from compat_tests.faults.fault_history import (
    Change,
    Delete,
    Delivery,
    History,
    Hold,
    Outcome,
    Removal,
    Send,
)

MARGIN_S = 0.5
"""Tolerance between two clocks, and for a slow machine: leases are treated as this much shorter."""


RECEIVE_MAX = 10
"""Messages that a receive takes at most, and its client may not know of."""

Finding = tuple[str, str]
"""A message or queue, and the finding about it."""


class Evidence:
    """A history by message."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.sends: dict[str, list[Send]] = defaultdict(list)
        self.deliveries: dict[str, list[Delivery]] = defaultdict(list)
        self.changes: dict[Delivery, list[Change]] = defaultdict(list)
        self.deletes: dict[str, list[Delete]] = defaultdict(list)
        self.deleted: dict[str, float] = {}
        """Acknowledgement times of the deletes that count."""
        self._removals: dict[str, list[Removal]] = defaultdict(list)
        self._restorations: dict[str, list[Removal]] = defaultdict(list)
        for send in history.sends:
            self.sends[send.name].append(send)
        for delivery in history.deliveries:
            self.deliveries[delivery.name].append(delivery)
        for change in history.changes:
            if change.outcome is not Outcome.REFUSED:
                self.changes[change.delivery].append(change)
        for removal in history.removals:
            if removal.outcome is not Outcome.REFUSED:
                self._removals[removal.queue].append(removal)
        for restoration in history.restorations:
            if restoration.outcome is not Outcome.REFUSED:
                self._restorations[restoration.queue].append(restoration)
        self.held: dict[str, list[Hold]] = defaultdict(list)
        for hold in history.holds:
            self.held[hold.name].append(hold)
        for delete in history.deletes:
            if delete.outcome is not Outcome.REFUSED:
                self._add_delete(delete)
        self.given_up = frozenset[str]().union(*(each.held for each in history.losses))
        """Names of the messages that were lost with shards that were given up."""
        self.missing = set(self._missing())

    def _add_delete(self, delete: Delete) -> None:
        name = delete.delivery.name
        self.deletes[name].append(delete)
        in_time = delete.ended < self.hidden_until(delete.delivery, delete.ended) - MARGIN_S
        if delete.outcome is Outcome.DONE and in_time:  # a later one may be by an outdated handle
            self.deleted[name] = min(delete.ended, self.deleted.get(name, delete.ended))

    def may_be_forgotten(self, name: str) -> bool:
        """True if shards that were lost may have known of a message what no other one did: that it
        arrived, was received or deleted, or that a send of unknown outcome was done."""
        return any(
            name in loss.coming
            or any(
                send.outcome is Outcome.UNKNOWN and send.begun < loss.ended
                for send in self.sends.get(name, ())
            )
            for loss in self.history.losses
        )

    def is_deleted_for(self, name: str, at: float) -> bool:
        """True if an operator's delete of the message may have come true by then."""
        return any(
            each.deleted_after_s and not each.is_back and each.begun + each.deleted_after_s < at
            for each in self.held.get(name, ())
        )

    def is_too_old(self, send: Send, at: float) -> bool:
        """True if the retention of what was sent may be over by then."""
        return send.begun + self.history.queues[send.queue].retention_s < at

    def hidden_until(self, delivery: Delivery, at: float) -> float:
        """Earliest end of the delivery's visibility timeout, with the changes begun before `at`."""
        end = delivery.begun + delivery.hidden_s
        for change in self.changes.get(delivery, ()):
            if change.begun < at:
                changed = change.begun + change.timeout_s
                is_sure = change.outcome is Outcome.DONE and change.ended <= at
                end = changed if is_sure else min(end, changed)
        return end

    def removal(self, queue: str, since: float, at: float) -> Removal | None:
        """The first purge or deletion of the queue that may have removed a message sent at `since`
        by `at`."""
        for removal in self._removals.get(queue, ()):
            if removal.ended > since and removal.begun < at:
                return removal
        return None

    def is_restored(self, removal: Removal, at: float, *, surely: bool) -> bool:
        """True if the removal may be undone at `at`; with `surely`, only if it must be."""
        return any(
            each.outcome is Outcome.DONE and each.ended <= at if surely else each.begun < at
            for each in self._restorations.get(removal.queue, ())
            if each.begun >= removal.begun
        )

    def _missing(self) -> Iterator[str]:
        """Messages that were acknowledged, never sent for deletion, and missing at the end."""
        begun = self.history.drain_begun
        for name, sends in self.sends.items():
            acknowledged = [send for send in sends if send.outcome is Outcome.DONE]
            if not acknowledged or self.deletes.get(name) or self.is_deleted_for(name, begun):
                continue
            if any(delivery.begun >= begun for delivery in self.deliveries.get(name, ())):
                continue
            if self.is_too_old(sends[0], begun) or self.may_be_taken(sends[0], begun):
                continue
            removal = self.removal(sends[0].queue, sends[0].begun, begun)
            if removal is None or self.is_restored(removal, begun, surely=True):
                yield name

    def may_be_taken(self, send: Send, at: float) -> bool:
        """True if by then a receive took the message for good, or one without a known answer may
        have."""
        if not self.history.queues[send.queue].is_at_most_once:
            return False
        if self.history.unknown_receives[send.queue]:
            return True
        return any(delivery.begun < at for delivery in self.deliveries.get(send.name, ()))
