"""Healing at a start: rebuilds a damaged queue's state from its readable rows.

A start reads each queue's own row, leases, spans and move tasks. If one of them is damaged, the
queue is rebuilt from its messages in one batch, so that every readable message is served; missing
ones are counted. Messages stay in place; damaged and missing ones are quarantined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

import structlog

from storage.checks.consistency import check_archive, check_queue
from storage.checks.missing import Missing, count_missing
from storage.checks.readable_rows import Damage, ReadableRows, look_through
from storage.healing.salvaged_archive import copy_archive
from storage.healing.salvaged_outbox import OUTBOX_TABLES, copy_outbox
from storage.healing.salvaged_queue import QueueCopy, Target
from storage.rows.damage import Finding, number_from, walk_rows
from storage.rows.stored_rows import StoredRows
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows.outbox_rows import DEPARTED_LOST
from visibility.rows.overlay import RowReader
from visibility.rows.row_changes import Changes, Ops
from visibility.rows.row_codec import DamagedRecord, encode_row
from visibility.rows.row_keys import (
    ALIAS,
    APPLIED_KEY,
    ARCHIVE,
    ARCHIVED,
    BATCH,
    BLOCKED,
    CLOCK,
    DELAYED,
    DEPARTURE,
    END_OF_QUEUES,
    GROUP,
    GROUP_LINE,
    HEAD,
    LEASE,
    MESSAGE,
    MOVE_TASK,
    PAIRS_END,
    QUARANTINED,
    REMEMBERED,
    SPAN,
    WITHHELD,
    group_key,
    last_number_of,
    message_key,
    message_name,
    queue_key,
    queue_of,
    queue_range,
    row_key,
    table_range,
)
from visibility.rows.row_values import NOWHERE, THE_SHARD, Quarantined, QueueRow
from visibility.state.queue_state import SPAN_BITS

_DERIVED = (
    CLOCK,
    GROUP,
    GROUP_LINE,
    HEAD,
    LEASE,
    ALIAS,
    WITHHELD,
    REMEMBERED,
    MOVE_TASK,
    SPAN,
    QUARANTINED,
    BLOCKED,
)
"""Tables that are rewritten."""
_ARCHIVE = (ARCHIVED, BATCH)


class Rows(RowReader, Protocol):
    """Rows that can be changed outside of an Entry."""

    def write(self, ops: Ops) -> None:
        """Apply changes to the rows, all or none. Raises StoreFailed."""


class Healed(NamedTuple):
    """A rebuilt queue (THE_SHARD: the archive or the outbox), and its losses."""

    queue_id: int
    reason: str
    missing: Missing | None


def report_rebuilt(
    healed: Iterable[Healed],
    log: structlog.stdlib.BoundLogger,
    name_of: Callable[[int], str],
) -> None:
    """Name each queue in the log; `name_of` returns an empty name for a queue it does not know."""
    for each in healed:
        log.error(
            "queue_rebuilt",
            queue_id=each.queue_id,
            queue=name_of(each.queue_id),
            reason=each.reason,
            messages=str(each.missing or ""),
        )


class Gone(NamedTuple):
    """Rows that were removed with damaged blocks."""

    stretches: Sequence[tuple[bytes, bytes]] = ()
    """Keys (first, until) among which they were."""
    keys: Sequence[bytes] = ()
    """Those that are known by name."""

    def damages(self, begin: bytes, end: bytes) -> list[Damage]:
        """The stretches with keys from `begin` to before `end`."""
        return [
            Damage(first, until, "rows were in a damaged block")
            for first, until in self.stretches
            if first < end and until > begin
        ]

    def reason(self, queue_id: int) -> str | None:
        """The reason to rebuild a queue; missing messages alone are none, since spans count
        them."""
        begin, end = queue_key(queue_id), queue_range(queue_id)[1]
        messages = [table_range(queue_id, table) for table in (MESSAGE, DELAYED)]
        for damage in self.damages(begin, end):
            if not any(low <= damage.key and damage.until <= high for low, high in messages):
                return damage.reason
        return None

    def reason_of_archive(self) -> str | None:
        """The reason to rebuild the archive."""
        begin, end = row_key(THE_SHARD, ARCHIVED, 0), APPLIED_KEY
        if not any(begin <= key < end for key in self.keys):
            return None
        return "rows were in a damaged block"

    def departures(self) -> int:
        """The messages on their way to other shards that are known by name."""
        begin, end = table_range(THE_SHARD, DEPARTURE)
        return sum(begin <= key < end for key in self.keys)

    def messages(self, queue_id: int) -> int:
        """The messages of a queue that are known by name."""
        return sum((message_name(key) or (None,))[0] == queue_id for key in self.keys)


NOTHING_GONE = Gone()


def heal(rows: Rows, known: Mapping[int, bool], gone: Gone = NOTHING_GONE) -> list[Healed]:
    """Rebuild the queues with a damaged or removed row that a start needs; blocks. The caller
    flushes.

    `known` has the ids of the catalog's queues, true for FIFO queues, including those without
    readable rows.
    """

    departed = ReadableRows(rows).departed

    def reason_of(rows: RowReader, queue_id: int) -> str | None:
        return gone.reason(queue_id) or _damage_of(rows, queue_id, departed)

    def reason_of_archive(rows: RowReader) -> str | None:
        return gone.reason_of_archive() or _damage_of_archive(rows)

    queue_ids = sorted({*known, *queue_ids_of(rows)})
    return _rebuilt(rows, queue_ids, reason_of, reason_of_archive, known, gone)


def make_agree(rows: Rows) -> list[Healed]:
    """Rebuild the queues whose rows disagree because Entries are missing; blocks. O(rows).

    Queues without a row of their own are left to the load.
    """
    return _rebuilt(
        rows, list(queue_ids_of(rows)), _disagreement, _disagreement_of_archive, {}, None
    )


def _rebuilt(
    rows: Rows,
    queue_ids: list[int],
    reason_of: Callable[[RowReader, int], str | None],
    reason_of_archive: Callable[[RowReader], str | None],
    known: Mapping[int, bool],
    gone: Gone | None,
) -> list[Healed]:
    """Rebuild the queues, and the archive, for which there is a reason. Without `gone` the rows of
    a rebuilt queue agree in all; else lost FIFO messages may stay in flight."""
    healed = []
    for queue_id in queue_ids:
        reason = reason_of(rows, queue_id)
        if reason is not None:
            missing = _heal_queue(rows, queue_id, known.get(queue_id), gone)
            healed.append(Healed(queue_id, reason, missing))
    reason = reason_of_archive(rows)
    if reason is not None:
        _heal_archive(rows)
        healed.append(Healed(THE_SHARD, reason, None))
    attributed = sum(each.missing.departed for each in healed if each.missing is not None)
    damage = _damage_of_outbox(rows, gone or NOTHING_GONE, attributed)
    if damage is not None:
        _heal_outbox(rows)
        healed.append(damage)
    return healed


def _disagreement(rows: RowReader, queue_id: int) -> str | None:
    """The first finding of a check. Damaged messages are none, since reads skip them."""
    with suppress(DamagedRecord):
        if rows.get(queue_key(queue_id)) is not None:
            return _first(check_queue(rows, queue_id))
    return None


def _disagreement_of_archive(rows: RowReader) -> str | None:
    with suppress(DamagedRecord):
        return _first(check_archive(rows))
    return None


def _first(findings: Iterator[Finding]) -> str | None:
    return next((found.what for found in findings), None)


def queue_ids_of(rows: RowReader) -> Iterator[int]:
    """Ids of the queues with a readable row."""
    at = queue_range(THE_SHARD + 1)[0]
    while True:
        found = next(
            (each for each in walk_rows(rows, at, END_OF_QUEUES) if isinstance(each, tuple)), None
        )
        if found is None:
            return
        queue_id = queue_of(found[0].ljust(8, b"\0"))
        yield queue_id
        at = queue_range(queue_id)[1]


def _damage_of(rows: RowReader, queue_id: int, departed: Mapping[int, int]) -> str | None:
    """The first damage that a start meets in the queue, None if there is none. `departed`: messages
    in the outbox, by queue."""
    stored = StoredRows(rows)
    try:
        row = stored.queue_row(queue_id)
        if row is not None:
            if row.departed > departed[queue_id]:
                return DEPARTED_LOST
            stored.quarantine(queue_id)
            for table in (stored.leases, stored.spans, stored.move_tasks, stored.withheld):
                for _ in table(queue_id):
                    pass
    except DamagedRecord as damage:
        return damage.reason
    return None


def _damage_of_archive(rows: RowReader) -> str | None:
    try:
        StoredRows(rows).archive()
    except DamagedRecord as damage:
        return damage.reason
    return None


def _damage_of_outbox(rows: RowReader, gone: Gone, attributed: int) -> Healed | None:
    """The damage of the outbox, and its lost messages without those `attributed` to queues: the
    others had left purged queues, which are dropped."""
    tables = [look_through(rows, *table_range(THE_SHARD, table)) for table in OUTBOX_TABLES]
    departures = tables[0]
    lost = gone.departures() + len(departures.damages) - attributed
    reason = next((damage.reason for table in tables for damage in table.damages), None)
    if lost <= 0:
        return None if reason is None else Healed(THE_SHARD, reason, None)
    is_exact = all(damage.is_one_row for damage in departures.damages)
    missing = Missing(departures.rows, lost, is_exact, departed=lost)
    return Healed(THE_SHARD, reason or DEPARTED_LOST, missing)


def _heal_outbox(rows: Rows) -> None:
    """Keep what is readable."""
    derived = Changes()
    for table in OUTBOX_TABLES:
        derived.delete_range(*table_range(THE_SHARD, table))
    copy_outbox(ReadableRows(rows), Target(lambda changes: derived.ops.extend(changes.ops)))
    rows.write(derived.ops)


def _heal_queue(rows: Rows, queue_id: int, fifo: bool | None, gone: Gone | None) -> Missing:
    readable = ReadableRows(rows)
    keeps_leases = gone is not None
    gone = gone or NOTHING_GONE
    bounds = queue_range(queue_id)
    damages = look_through(rows, *bounds).damages
    missing = count_missing(
        readable, queue_id, [*damages, *gone.damages(*bounds)], gone.messages(queue_id)
    )
    derived = Changes()
    for table in _DERIVED:
        derived.delete_range(*table_range(queue_id, table))
    own = readable.row(queue_key(queue_id), QueueRow)
    since_ms = 0 if own is None else own.stamp_ms
    blocked = {key[9:]: at_ms for key, at_ms in readable.table(queue_id, BLOCKED, int)}
    if missing.missing and (fifo if own is None else own.fifo):
        groups = {*_groups_with_losses(rows, readable, queue_id)}
        if not keeps_leases:
            groups |= {*_groups_of_lost_leases(readable, queue_id)}
        blocked = dict.fromkeys(groups, since_ms) | blocked
    copy = QueueCopy(
        readable,
        Target(lambda changes: _take(derived, changes)),
        queue_id,
        fifo=fifo,
        blocked=blocked,
        keeps_leases=keeps_leases and bool(missing.missing),
    )
    copy.run()
    for record in _quarantined(queue_id, damages, max(0, missing.missing - copy.kept), since_ms):
        derived.put(row_key(queue_id, QUARANTINED, record.span), encode_row(record))
    for group, at_ms in blocked.items():
        derived.put(group_key(queue_id, BLOCKED, group), encode_row(at_ms))
    rows.write(derived.ops)
    return missing


def _groups_with_losses(rows: RowReader, readable: ReadableRows, queue_id: int) -> Iterator[bytes]:
    """The FIFO groups with waiting messages that cannot be read, as far as their lines can."""
    for found in walk_rows(rows, *table_range(queue_id, GROUP_LINE)):
        if isinstance(found, tuple):
            key = message_key(queue_id, last_number_of(found[0]))
            if readable.row(key, StoredMessage) is None:
                yield found[0][9:25]


def _groups_of_lost_leases(readable: ReadableRows, queue_id: int) -> Iterator[bytes]:
    """The groups of messages in flight that cannot be read."""
    for _, lease in readable.table(queue_id, LEASE, Lease):
        if readable.row(message_key(queue_id, lease.sequence), StoredMessage) is None:
            yield lease.group


def _quarantined(
    queue_id: int, damages: list[Damage], missing: int, since_ms: int
) -> Iterable[Quarantined]:
    """The missing messages, and the unreadable rows that stay in place."""
    nowhere = Quarantined(NOWHERE, missing, since_ms)
    spans = {NOWHERE: nowhere}
    for damage in damages:
        begin, end = _within(damage, *table_range(queue_id, DELAYED))
        if begin < end:
            nowhere.delayed.append((begin[9:], end[9:] or PAIRS_END))
        begin, end = _within(damage, *table_range(queue_id, MESSAGE))
        first = number_from(begin)
        span = first >> SPAN_BITS
        if begin < end and damage.is_one_row:
            spans.setdefault(span, Quarantined(span, 0, since_ms)).damaged.append(first)
    return [each for each in spans.values() if each.messages or each.damaged or each.delayed]


def _within(damage: Damage, begin: bytes, end: bytes) -> tuple[bytes, bytes]:
    return max(damage.key, begin), min(damage.until, end)


def _take(derived: Changes, changes: Changes) -> None:
    """Leave messages in their places."""
    for place in range(0, len(changes.ops), 2):
        key, change = changes.ops[place], changes.ops[place + 1]
        assert isinstance(key, bytes)
        if key[8:9] not in (MESSAGE, DELAYED):
            derived.ops += (key, change)


def _heal_archive(rows: Rows) -> None:
    derived = Changes()
    derived.delete(row_key(THE_SHARD, ARCHIVE, 0))
    for table in _ARCHIVE:
        derived.delete_range(*table_range(THE_SHARD, table))
    copy_archive(ReadableRows(rows), Target(lambda changes: derived.ops.extend(changes.ops)))
    rows.write(derived.ops)
