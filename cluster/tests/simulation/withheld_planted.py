"""Bugs about withheld messages that both simulators must find, planted into the production code for
the time of a test."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from cluster.tests.simulation.planting import Plant, change_operation
from storage.rows.stored_rows import StoredRows
from visibility.contract.model import Request
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rules import withhold
from visibility.rules.decided import Outcome
from visibility.rules.groups import GroupBook
from visibility.rules.withhold import ReleaseMessages
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp


def let_withheld_messages_go(patch: pytest.MonkeyPatch) -> None:
    """A withheld message can be received."""
    made = withhold._withheld

    def withheld(
        shard: ShardState, queue: QueueState, sequence: int, message: StoredMessage
    ) -> Lease:
        lease = made(shard, queue, sequence, message)
        return msgspec.structs.replace(lease, visible_at_ms=1)

    patch.setattr(withhold, "_withheld", withheld)


def release_at_a_failover(patch: pytest.MonkeyPatch) -> None:
    """A shard that loads its rows treats withheld messages as expired leases."""
    leases = StoredRows.leases

    def ended(self: StoredRows, queue_id: int) -> Iterator[Lease]:
        for lease in leases(self, queue_id):
            yield msgspec.structs.replace(lease, visible_at_ms=1) if lease.is_withheld else lease

    patch.setattr(StoredRows, "leases", ended)


def undelete_in_words_only(patch: pytest.MonkeyPatch) -> None:
    """An operator is told that messages are back, and they are deleted all the same."""

    def release(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
        outcome = withhold.decide_release_messages(shard, request, stamp)
        operation = request.operation
        assert isinstance(operation, ReleaseMessages)
        return (outcome[0], ()) if operation.deleting else outcome

    change_operation(patch, ReleaseMessages, decide=release)


def leave_groups_open(patch: pytest.MonkeyPatch) -> None:
    """A FIFO group does not wait for its withheld messages."""
    locking = GroupBook.in_flight_by_group

    def by_consumers(self: GroupBook, group: bytes) -> set[int]:
        return set(locking(self, group)) - self._queue.withheld.keys()

    patch.setattr(GroupBook, "in_flight_by_group", by_consumers)


PLANTS: tuple[Plant, ...] = (
    let_withheld_messages_go,
    release_at_a_failover,
    undelete_in_words_only,
    leave_groups_open,
)
