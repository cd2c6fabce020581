"""Bugs about transactions that the simulator must find, planted into the production code for the
time of a test."""

from __future__ import annotations

import pytest

from cluster.tests.simulation.planting import Plant
from visibility.contract.model import Receipt
from visibility.rows.row_changes import Changes
from visibility.rows.row_keys import DEPARTURE, row_key
from visibility.rows.row_values import THE_SHARD
from visibility.rules import departures, transactions
from visibility.rules.acknowledge import Acknowledging
from visibility.rules.departures import DeparturesRenewed


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
    patch.setattr(departures, "_may_be_restored", lambda departure, stamp: False)


def pass_a_missing_message(patch: pytest.MonkeyPatch) -> None:
    """A handle whose message is gone or received again does not cancel: it deletes nothing."""
    delete = Acknowledging.delete

    def delete_as_alone(deletes: Acknowledging, receipt: Receipt) -> None:
        delete(deletes, receipt, "")

    patch.setattr(Acknowledging, "delete_latest", delete_as_alone)


PLANTS: tuple[Plant, ...] = (
    forget_tokens,
    keep_the_outbox_in_memory,
    drop_what_a_deleted_queue_was_sent,
    pass_a_missing_message,
)
