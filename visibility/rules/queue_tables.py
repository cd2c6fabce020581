"""The tables of a queue that follow from its messages and leases, and those of the shard's log."""

from __future__ import annotations

from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows.row_keys import (
    ALIAS,
    ANSWERS,
    APPLIED,
    CLOCK,
    DELAYED,
    EXPIRY,
    GROUP,
    GROUP_LINE,
    HEAD,
    LEASE,
    LEVEL_LINE,
    MESSAGE,
    QUEUE,
    SPAN,
    queue_key,
)
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
    own = rows.row(queue_key(queue_id), QueueRow)
    return own.next_sequence if own is not None else 0


def _itself(message: StoredMessage) -> StoredMessage:
    return message


TABLES: Tables = (
    Table(QUEUE, "queue", 9, QueueRow),
    Table(
        MESSAGE, "message", NUMBER_KEY, StoredMessage, next_number=_next_sequence, message=_itself
    ),
    Table(CLOCK, "clock", PAIR_KEY, None, may_be_empty=True),
    Table(EXPIRY, "expiry", PAIR_KEY, None, may_be_empty=True),
    Table(LEVEL_LINE, "level line", PAIR_KEY, None, may_be_empty=True),
    Table(DELAYED, "delayed", PAIR_KEY, StoredMessage, message=_itself),
    Table(GROUP, "group", GROUP_KEY, GroupRow),
    Table(
        GROUP_LINE,
        "group line",
        GROUP_LINE_KEY,
        Lease,
        may_be_empty=True,
        names_itself=has_its_sequence,
    ),
    Table(HEAD, "head", NUMBER_KEY, None),
    Table(
        LEASE,
        "lease",
        NUMBER_KEY,
        Lease,
        names_itself=has_its_sequence,
        next_number=_next_sequence,
    ),
    Table(ALIAS, "alias", NUMBER_KEY, int),
    Table(SPAN, "span", NUMBER_KEY, int, next_number=_next_sequence),
    Table(APPLIED, "applied", NUMBER_KEY, AppliedRow),
    Table(ANSWERS, "answers", PAIR_KEY, AnswersRow),
)
