"""The tables of a queue that follow from its messages and leases, and those of the shard's log."""

from __future__ import annotations

from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows import row_keys
from visibility.rows.row_values import AppliedRow, GroupRow, QueueRow
from visibility.rules.tables import (
    GROUP_KEY,
    GROUP_LINE_KEY,
    NUMBER_KEY,
    PAIR_KEY,
    SoundRows,
    Table,
    Tables,
    has_its_sequence,
)
from visibility.state.short_answers import AnswersRow


def _next_sequence(rows: SoundRows, queue_id: int) -> int:
    own = rows.row(row_keys.queue_key(queue_id), QueueRow)
    return own.next_sequence if own is not None else 0


def _itself(message: StoredMessage) -> StoredMessage:
    return message


TABLES: Tables = (
    Table(row_keys.QUEUE, "queue", 9, QueueRow),
    Table(
        row_keys.MESSAGE,
        "message",
        NUMBER_KEY,
        StoredMessage,
        next_number=_next_sequence,
        message=_itself,
    ),
    Table(row_keys.CLOCK, "clock", PAIR_KEY, None, may_be_empty=True),
    Table(row_keys.EXPIRY, "expiry", PAIR_KEY, None, may_be_empty=True),
    Table(row_keys.LEVEL_LINE, "level line", PAIR_KEY, None, may_be_empty=True),
    Table(row_keys.DELAYED, "delayed", PAIR_KEY, StoredMessage, message=_itself),
    Table(row_keys.GROUP, "group", GROUP_KEY, GroupRow),
    Table(
        row_keys.GROUP_LINE,
        "group line",
        GROUP_LINE_KEY,
        Lease,
        may_be_empty=True,
        names_itself=has_its_sequence,
    ),
    Table(row_keys.HEAD, "head", NUMBER_KEY, None),
    Table(
        row_keys.LEASE,
        "lease",
        NUMBER_KEY,
        Lease,
        names_itself=has_its_sequence,
        next_number=_next_sequence,
    ),
    Table(row_keys.ALIAS, "alias", NUMBER_KEY, int),
    Table(row_keys.SPAN, "span", NUMBER_KEY, int, next_number=_next_sequence),
    Table(row_keys.APPLIED, "applied", NUMBER_KEY, AppliedRow),
    Table(row_keys.ANSWERS, "answers", PAIR_KEY, AnswersRow),
)
