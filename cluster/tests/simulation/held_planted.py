"""Bugs about held messages that both simulators must find, planted into the production code for
the time of a test."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from cluster.tests.simulation.planting import Plant, change_operation
from storage.rows.stored_rows import StoredRows
from visibility.contract.model import Request
from visibility.contract.stored_message import Lease
from visibility.rules import hold_messages
from visibility.rules.decided import Outcome
from visibility.rules.groups import FifoBook
from visibility.rules.hold_messages import ReleaseMessages
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp


def let_held_messages_go(patch: pytest.MonkeyPatch) -> None:
    """A held message can be received."""
    patch.setattr(hold_messages, "HELD_UNTIL_MS", 1)


def release_at_a_failover(patch: pytest.MonkeyPatch) -> None:
    """A shard that loads its rows treats held messages as expired leases."""
    leases = StoredRows.leases

    def ended(self: StoredRows, queue_id: int) -> Iterator[Lease]:
        for lease in leases(self, queue_id):
            yield msgspec.structs.replace(lease, visible_at_ms=1) if lease.is_held else lease

    patch.setattr(StoredRows, "leases", ended)


def undelete_in_words_only(patch: pytest.MonkeyPatch) -> None:
    """An operator is told that messages are back, and they are deleted all the same."""

    def release(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
        outcome = hold_messages.decide_release_messages(shard, request, stamp)
        operation = request.operation
        assert isinstance(operation, ReleaseMessages)
        return (outcome[0], ()) if operation.deleting else outcome

    change_operation(patch, ReleaseMessages, decide=release)


def leave_groups_open(patch: pytest.MonkeyPatch) -> None:
    """A FIFO group does not wait for its held messages."""
    locking = FifoBook.in_flight_by_group

    def by_consumers(self: FifoBook, group: bytes) -> set[int]:
        return set(locking(self, group)) - self._queue.holds.keys()

    patch.setattr(FifoBook, "in_flight_by_group", by_consumers)


PLANTS: tuple[Plant, ...] = (
    let_held_messages_go,
    release_at_a_failover,
    undelete_in_words_only,
    leave_groups_open,
)
