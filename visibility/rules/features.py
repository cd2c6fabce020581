"""LIST: the features of a shard. Each has its operations, events and tables in its own file."""

from __future__ import annotations

from typing import Any

from visibility.contract.actions import ACTIONS, AnsweredBy
from visibility.contract.operations import Operation
from visibility.rules import (
    acknowledge,
    archive_batches,
    arrivals,
    at_most_once,
    browse,
    closing_parts,
    departures,
    earlier_parts,
    failure_notes,
    group_locks,
    hold_messages,
    kept_queues,
    move_plans,
    move_tasks,
    noted_parts,
    on_delete,
    prepared_deletes,
    quarantine,
    queue_tables,
    queues,
    receive,
    remembered_ids,
    resend,
    schedules,
    selected,
    send,
    send_batch,
    shared_moves,
    transactions,
)
from visibility.rules.archive_tables import ARCHIVE_TABLES
from visibility.rules.operation_kinds import Operations
from visibility.rules.outbox_tables import OUTBOX_TABLES
from visibility.rules.tables import Table, Tables


def _combined(*features: Operations) -> Operations:
    """All operations. Raises TypeError for one in two features, or in none."""
    combined: Operations = {}
    for operations in features:
        for twice in combined.keys() & operations.keys():
            raise TypeError(f"two features decide {twice.__name__}")
        combined |= operations
    elsewhere = {row.request for row in ACTIONS.values() if row.answered_by is not AnsweredBy.SHARD}
    for operation in Operation.__subclasses__():
        is_ours = operation.__module__.startswith("visibility.")
        if is_ours and operation not in combined and operation not in elsewhere:
            raise TypeError(f"no feature decides {operation.__name__}")
    return combined


OPERATIONS = _combined(
    send.OPERATIONS,
    send_batch.OPERATIONS,
    receive.OPERATIONS,
    acknowledge.OPERATIONS,
    at_most_once.OPERATIONS,
    move_tasks.OPERATIONS,
    shared_moves.OPERATIONS,
    move_plans.OPERATIONS,
    browse.OPERATIONS,
    failure_notes.OPERATIONS,
    selected.OPERATIONS,
    resend.OPERATIONS,
    schedules.OPERATIONS,
    hold_messages.OPERATIONS,
    queues.OPERATIONS,
    closing_parts.OPERATIONS,
    noted_parts.OPERATIONS,
    earlier_parts.OPERATIONS,
    kept_queues.OPERATIONS,
    on_delete.OPERATIONS,
    archive_batches.OPERATIONS,
    departures.OPERATIONS,
    arrivals.OPERATIONS,
    transactions.OPERATIONS,
    prepared_deletes.OPERATIONS,
)


def tables_by_prefix(*features: Tables) -> dict[bytes, Table[Any]]:
    """All tables. Raises TypeError for two with the same prefix."""
    tables: dict[bytes, Table[Any]] = {}
    for table in (table for feature in features for table in feature):
        if (other := tables.setdefault(table.prefix, table)) is not table:
            raise TypeError(f"{other.name} and {table.name} have the prefix {table.prefix.hex()}")
    return tables


SHARD_TABLES = (
    ARCHIVE_TABLES,
    OUTBOX_TABLES,
    closing_parts.CLOSED_PARTS,
    noted_parts.NOTED,
    transactions.TRANSACTIONS,
)
TABLES = tables_by_prefix(
    queue_tables.TABLES,
    hold_messages.TABLES,
    failure_notes.TABLES,
    remembered_ids.TABLES,
    move_tasks.TABLES,
    quarantine.TABLES,
    group_locks.TABLES,
    *(each.tables for each in SHARD_TABLES),
)
