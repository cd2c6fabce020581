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
from visibility.contract.stored_message import Arrival
from visibility.rows.row_values import TARGET_MOVED
from visibility.rules import arrivals, queue_parts, send
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
    patch.setattr(queue_parts, "_waits_for", lambda *given: "")


def send_to_a_closed_part(patch: pytest.MonkeyPatch) -> None:
    """A closed part takes messages of gateways that have not heard of it."""
    patch.setattr(send, "check_open", lambda *given: None)


def restart_sequences(patch: pytest.MonkeyPatch) -> None:
    """Each part issues sequences from 1 on."""
    patch.setattr(ShardState, "_first_sequence", lambda self, queue_id: 1)


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
)
CLUSTER_PLANTS: tuple[Plant, ...] = (drain_with_messages, lose_what_a_closed_part_refused)
"""Those that the simulator of three hosts must find."""
