"""Bugs in policies of queues that show after a failover or on parts: the simulators of one host, of
three and of a fleet must find them. They are planted into the production code for the time of a
test."""

from __future__ import annotations

import msgspec
import pytest

from cluster.tests.simulation.planting import Plant
from cluster.tests.simulation.priority_planted import forget_levels_at_a_start
from cluster.tests.simulation.simulated_queues import Extra
from visibility.contract.length_tags import limits_of
from visibility.contract.stored_message import Lease
from visibility.rules import room
from visibility.state import advance
from visibility.state.in_flight import hide
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState


def give_again_after_a_failover(patch: pytest.MonkeyPatch) -> None:
    """A new leader takes messages that a receive took for good as in flight for a second."""

    def for_a_second(shard: ShardState, queue: QueueState, lease: Lease, at_ms: int) -> None:
        if lease.is_taken:
            lease = msgspec.structs.replace(lease, visible_at_ms=lease.received_at_ms + 1_000)
        hide(shard, queue, lease, at_ms)

    patch.setattr(advance, "hide", for_a_second)


def give_each_part_the_whole_limit(patch: pytest.MonkeyPatch) -> None:
    """A part has room for as many messages as the queue may hold."""
    patch.setattr(room, "limits_of", lambda own_tags, parts: limits_of(own_tags, 1))


PLANTS: tuple[tuple[Plant, tuple[Extra, ...]], ...] = (
    (give_again_after_a_failover, (Extra.ONCE,)),
    (give_each_part_the_whole_limit, (Extra.PARTS, Extra.FULL)),
)
"""Each with the extras in which it shows."""
CLUSTER_PLANTS = (
    *PLANTS,
    (forget_levels_at_a_start, (Extra.RANKED,)),
)
"""Those that the simulator of three hosts must find."""
FOUND_WITHIN = 10
"""Seeds within which several hosts show each of them."""
