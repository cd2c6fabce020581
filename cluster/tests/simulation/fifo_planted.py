"""Bugs about parts of FIFO queues that the simulator must find, planted into the production code
for the time of a test."""

from __future__ import annotations

import msgspec
import pytest

from cluster.parts.split_fifo_sends import SplitFifoSends
from cluster.tests.simulation.planting import Plant
from visibility.contract.model import QueueDefinition
from visibility.contract.stored_message import Arrival
from visibility.rows.row_values import Departure
from visibility.rules import earlier_parts, groups
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState


def serve_a_group_at_once(patch: pytest.MonkeyPatch) -> None:
    """A group's messages in a new part do not wait for those in an earlier one."""
    patch.setattr(groups, "must_ask", lambda *given: False)


def answer_without_closing(patch: pytest.MonkeyPatch) -> None:
    """A part says that it has no messages of a group, and takes some later."""
    patch.setattr(earlier_parts, "closing", lambda *given: ())


def ask_the_part_before_only(patch: pytest.MonkeyPatch) -> None:
    """A part that was split twice does not ask the first one."""
    all_earlier = QueueDefinition.earlier_parts
    patch.setattr(
        QueueDefinition, "earlier_parts", lambda self, group: all_earlier(self, group)[-1:]
    )


def ask_for_no_ids(patch: pytest.MonkeyPatch) -> None:
    """Messages that were sent before a split are sent again after it."""

    async def nothing_known(*given: object) -> dict[bytes, tuple[str, int]]:
        return {}

    patch.setattr(SplitFifoSends, "_known", nothing_known)


def count_waiting_messages_only(patch: pytest.MonkeyPatch) -> None:
    """A part says that it has no messages of a group while one is in flight."""

    def has(shard: ShardState, queue: QueueState, group: bytes) -> bool:
        row = queue.groups.get(group) or shard.rows.group(queue.queue_id, group)
        return row is not None and bool(row.count or row.delayed)

    patch.setattr(earlier_parts, "_has", has)


def transfer_under_new_sequences(patch: pytest.MonkeyPatch) -> None:
    """A transferred message comes behind those that were sent to the new part."""
    arrival = Departure.arrival

    def last(self: Departure, number: int) -> Arrival:
        return msgspec.structs.replace(arrival(self, number), sequence=0)

    patch.setattr(Departure, "arrival", last)


PLANTS: tuple[Plant, ...] = (
    serve_a_group_at_once,
    answer_without_closing,
    ask_the_part_before_only,
    ask_for_no_ids,
    count_waiting_messages_only,
    transfer_under_new_sequences,
)
