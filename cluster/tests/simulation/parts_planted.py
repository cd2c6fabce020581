"""Bugs about parts of queues that the simulator must find, planted into the production code for the
time of a test."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cluster.catalog import queue_rules
from cluster.catalog.catalog_records import deleted_key, queue_key
from cluster.catalog.queue_rules import Decision
from cluster.tests.simulation.planting import Plant
from visibility.contract.model import QueueDefinition
from visibility.contract.stored_message import Arrival, Lease, StoredMessage
from visibility.rows import row_places
from visibility.rows.row_values import TARGET_MOVED, Departure
from visibility.rules import (
    acknowledge,
    arrivals,
    closing_parts,
    departures,
    send,
    send_batch,
    transfers,
)
from visibility.state.shard_state import ShardState


def purge_the_home_only(patch: pytest.MonkeyPatch) -> None:
    """The other parts keep what they had."""
    purge = queue_rules.purge

    def half(view: Any, queue: QueueDefinition, *given: Any, **more: Any) -> Decision:
        decision = purge(view, queue, *given, **more)
        key = queue_key((queue.account, queue.region, queue.name))
        purged = decision.entries[key]
        assert isinstance(purged, QueueDefinition)
        parts = (purged.parts[0], *queue.parts[1:])
        decision.entries[key] = msgspec.structs.replace(purged, parts=parts)
        for part in queue.parts[1:]:
            decision.entries.pop(deleted_key(part.queue_id))
        return decision

    patch.setattr(queue_rules, "purge", half)


def drain_with_messages(patch: pytest.MonkeyPatch) -> None:
    """A closed part is said to be empty whatever it has."""
    patch.setattr(closing_parts, "_waits_for", lambda *given: "")


def send_to_a_closed_part(patch: pytest.MonkeyPatch) -> None:
    """A closed part takes messages of gateways that have not heard of it."""
    for module in (send, send_batch):
        patch.setattr(module, "check_open", lambda *given: None)


def restart_sequences(patch: pytest.MonkeyPatch) -> None:
    """Each part issues sequences from 1 on."""
    patch.setattr(ShardState, "_first_sequence", lambda self, queue_id: 1)


def stay_in_both_places(patch: pytest.MonkeyPatch) -> None:
    """A part hands a message over and keeps it."""
    remove = row_places.remove

    def kept(changes: Any, queue_id: int, leases: list[Lease]) -> None:
        remove(changes, queue_id, leases[1:])

    patch.setattr(departures, "remove", kept)


def clear_before_the_arrival(patch: pytest.MonkeyPatch) -> None:
    """The source is told that a transferred message is there, and nothing came."""
    reason = arrivals._Accepting.reason

    def cleared(self: Any, arrival: Arrival) -> str | None:
        return "" if arrival.transfers else reason(self, arrival)

    patch.setattr(arrivals._Accepting, "reason", cleared)


def lose_the_receive_count(patch: pytest.MonkeyPatch) -> None:
    """Receives count from a transfer on."""
    transferred = transfers.transferred

    def unread(message: StoredMessage, lease: Lease | None) -> StoredMessage:
        new = transferred(message, lease)
        return msgspec.structs.replace(new, receive_count=0, received_here=0)

    patch.setattr(transfers, "transferred", unread)


def deliver_the_delayed_at_once(patch: pytest.MonkeyPatch) -> None:
    """A transferred message forgets the end of its delay."""
    arrival = Departure.arrival

    def at_once(self: Departure, number: int) -> Arrival:
        return msgspec.structs.replace(arrival(self, number), due_ms=-1)

    patch.setattr(Departure, "arrival", at_once)


def count_twice(patch: pytest.MonkeyPatch) -> None:
    """A transferred message counts as one that came from another queue, too."""
    apply = arrivals.MessagesArrived.apply

    def twice(self: Any, shard: ShardState) -> None:
        apply(self, shard)
        shard.queue(self.queue_id).counts.moved_in += self.transfers

    patch.setattr(arrivals.MessagesArrived, "apply", twice)


def call_the_travelling_gone(patch: pytest.MonkeyPatch) -> None:
    """A delete of a message that went to another part succeeds at the first one."""
    patch.setattr(acknowledge, "check_here", lambda *given: None)


def lose_what_a_closed_part_refused(patch: pytest.MonkeyPatch) -> None:
    """A message that departed to a part which closed is cleared."""

    def refused(self: Any, arrival: Arrival) -> str | None:
        reason = decided(self, arrival)
        return "" if reason == TARGET_MOVED else reason

    decided = arrivals._Accepting.reason
    patch.setattr(arrivals._Accepting, "reason", refused)


PLANTS: tuple[Plant, ...] = (
    purge_the_home_only,
    drain_with_messages,
    restart_sequences,
    send_to_a_closed_part,
    stay_in_both_places,
    clear_before_the_arrival,
    lose_the_receive_count,
    count_twice,
    call_the_travelling_gone,
)
SCHEDULE_PLANTS: tuple[Plant, ...] = (deliver_the_delayed_at_once,)
"""Those that show where messages are scheduled."""
CLUSTER_PLANTS: tuple[Plant, ...] = (drain_with_messages, lose_what_a_closed_part_refused)
"""Those that the simulator of three hosts must find."""
