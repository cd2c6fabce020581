"""Number of messages that a damaged queue lacks, according to its readable counters."""

from __future__ import annotations

from typing import NamedTuple

from storage.checks.readable_rows import Damage, ReadableRows
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows.row_keys import (
    DELAYED,
    LEASE,
    MESSAGE,
    QUARANTINED,
    SPAN,
    message_name,
    number_of,
    queue_key,
    table_range,
)
from visibility.rows.row_values import Quarantined, QueueRow


class Missing(NamedTuple):
    """Numbers of one queue's messages."""

    found: int
    """Readable ones, including delayed ones."""
    missing: int
    is_exact: bool = True
    """False if more may be missing, as some counters cannot be read either."""
    too_many: int = 0
    """Messages in excess of the counters: they had been deleted."""
    departed: int = 0
    """Those of the missing ones that were on the way to other shards."""

    def __str__(self) -> str:
        least = "" if self.is_exact else "at least "
        parts = [f"{self.found} messages can be read, {least}{self.missing} missing"]
        if self.departed:
            parts[0] += f" ({self.departed} on the way to other shards)"
        if self.too_many:
            parts.append(f"{self.too_many} that had been deleted are there again")
        return "; ".join(parts)

    def __bool__(self) -> bool:
        return bool(self.missing or self.too_many or not self.is_exact)


def count_missing(rows: ReadableRows, queue_id: int, damages: list[Damage]) -> Missing:
    """Compare readable and quarantined messages with the counters. O(rows of the queue); holds its
    leases in memory."""
    own = rows.row(queue_key(queue_id), QueueRow)
    stored = _missing_in(rows, queue_id, own, damages)
    departed = missing_departed(rows, queue_id)
    return stored._replace(missing=stored.missing + departed, departed=departed)


def missing_departed(rows: ReadableRows, queue_id: int) -> int:
    """The messages on their way to other shards that a queue counts and the outbox does not
    have."""
    own = rows.row(queue_key(queue_id), QueueRow)
    return max(0, own.departed - rows.departed(queue_id)) if own is not None else 0


def _missing_in(
    rows: ReadableRows, queue_id: int, own: QueueRow | None, damages: list[Damage]
) -> Missing:
    """Those of the messages that are stored in the queue."""
    known = sum(row.messages for _, row in rows.table(queue_id, QUARANTINED, Quarantined))
    leases = {lease.sequence for _, lease in rows.table(queue_id, LEASE, Lease)}
    in_flight, found = len(leases), 0
    for key, _ in rows.table(queue_id, MESSAGE, StoredMessage):
        found += 1
        leases.discard(number_of(key))
    found += sum(1 for _ in rows.table(queue_id, DELAYED, StoredMessage))
    if own is not None and not _is_among(damages, *table_range(queue_id, SPAN)):
        counted = sum(count for _, count in rows.table(queue_id, SPAN, int)) + own.delayed + known
        return Missing(found, max(counted - found, 0), True, max(found - counted, 0))
    if not _is_among(damages, table_range(queue_id, MESSAGE)[0], table_range(queue_id, LEASE)[1]):
        return Missing(found, len(leases) + known)
    damaged = sum(
        each.is_one_row and (message_name(each.key) or (0,))[0] == queue_id for each in damages
    )
    counted = own.waiting + in_flight + own.delayed + known if own is not None else 0
    tables = (table_range(queue_id, MESSAGE)[0], table_range(queue_id, DELAYED)[0])
    named = sum(len(rows.lost[table[:9]]) for table in tables)
    missing = max(len(leases), damaged + named, known, counted - found)
    return Missing(found, missing, is_exact=False)


def _is_among(damages: list[Damage], begin: bytes, end: bytes) -> bool:
    return any(each.key < end and each.until > begin for each in damages)
