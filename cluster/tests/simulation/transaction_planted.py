"""Bugs about transactions that the simulator must find, planted into the production code for the
time of a test."""

from __future__ import annotations

import pytest
from typing_extensions import override

from cluster.tests.simulation.planting import Plant
from visibility.contract.model import Receipt
from visibility.rows.row_changes import Changes
from visibility.rows.row_keys import DEPARTURE, row_key
from visibility.rows.row_values import THE_SHARD
from visibility.rules import departures, transactions
from visibility.rules.acknowledge import Acknowledging
from visibility.rules.arrivals import ArrivalsAnswered
from visibility.rules.departures import DeparturesRenewed
from visibility.rules.prepared_deletes import MessagesPrepared
from visibility.state.shard_state import ShardState


def forget_tokens(patch: pytest.MonkeyPatch) -> None:
    """A transaction that is repeated is decided again."""
    patch.setattr(transactions, "_remembered", lambda shard, token, now_ms: None)


def keep_the_outbox_in_memory(patch: pytest.MonkeyPatch) -> None:
    """Sends to other shards are lost in a crash."""
    record = DeparturesRenewed.record

    def record_without(event: DeparturesRenewed, changes: Changes) -> None:
        record(event, changes)
        for number in range(event.first_number, event.first_number + len(event.departures)):
            if not event.numbers:
                changes.delete(row_key(THE_SHARD, DEPARTURE, number))

    patch.setattr(DeparturesRenewed, "record", record_without)


def drop_what_a_deleted_queue_was_sent(patch: pytest.MonkeyPatch) -> None:
    """The sends of a transaction do not wait for a queue that is restored."""
    patch.setattr(departures, "_waits", lambda shard, departure: False)


def pass_a_missing_message(patch: pytest.MonkeyPatch) -> None:
    """A handle whose message is gone or received again does not cancel: it deletes nothing."""
    delete = Acknowledging.delete

    def delete_as_alone(deletes: Acknowledging, receipt: Receipt) -> None:
        delete(deletes, receipt, "")

    patch.setattr(Acknowledging, "delete_latest", delete_as_alone)


def accept_what_was_refused(patch: pytest.MonkeyPatch) -> None:
    """A shard that was told no has its messages back, and the transaction is accepted all the
    same."""
    patch.setattr(transactions, "answer_to", lambda rows, origin, number: None)
    patch.setattr(transactions, "floor_of", lambda rows, origin: 0)


def forget_what_was_accepted(patch: pytest.MonkeyPatch) -> None:
    """A shard that asks about an accepted transaction is told no."""
    patch.setattr(transactions, "ArrivalsAnswered", _Unrecorded)


class _Unrecorded(ArrivalsAnswered, frozen=True):
    def apply(self, shard: ShardState) -> None:
        """As the other does."""

    @override
    def record(self, changes: Changes) -> None:
        """No row."""


def let_the_lease_of_a_prepared_message_end(patch: pytest.MonkeyPatch) -> None:
    """A message is received again while its delete is prepared."""
    patch.setattr(transactions, "MessagesPrepared", _Unhidden)


class _Unhidden(MessagesPrepared, frozen=True):
    def apply(self, shard: ShardState) -> None:
        """Leave the lease as it was."""

    @override
    def record(self, changes: Changes) -> None:
        """No row."""


PLANTS: tuple[Plant, ...] = (
    forget_tokens,
    keep_the_outbox_in_memory,
    drop_what_a_deleted_queue_was_sent,
    pass_a_missing_message,
    accept_what_was_refused,
    forget_what_was_accepted,
    let_the_lease_of_a_prepared_message_end,
)
