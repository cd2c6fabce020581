"""Rebuild: writes all readable rows of a shard anew, and makes damaged queues agree again.

Queues without damage are copied as they are. One with a damaged or missing row is derived from its
messages, so that every readable message is served; what it lacks is counted and quarantined.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

import structlog

from storage.checks.consistency import check_queue
from storage.checks.missing import Missing, count_missing
from storage.checks.readable_rows import Contents, Damage, ReadableRows, look_through
from storage.healing.salvaged_queue import QueueCopy, Target
from storage.rows.damage import UnreadableRows, walk_rows
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows import row_keys
from visibility.rows.overlay import RowReader
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import DamagedRecord, encode_row
from visibility.rows.row_values import NOWHERE, THE_SHARD, Quarantined, QueueRow
from visibility.rows.state_rows import DEPARTED_LOST
from visibility.rules.features import SHARD_TABLES
from visibility.rules.tables import GROUP_LINE_KEY, Finding, ShardTables


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


def rebuild(
    rows: RowReader,
    write: Callable[[Changes], None],
    known: Mapping[int, bool],
    *,
    noted: Collection[int] = (),
    agree: bool = False,
) -> list[Healed]:
    """Write all readable rows in batches, those of damaged queues derived from their messages;
    returns these queues. O(rows); holds leases, groups and spans of one such queue in memory.
    Raises DamagedRecord if the row of the applied Entry cannot be read.

    `known` has the ids of the catalog's queues, true for FIFO queues, including those without
    readable rows. Queues that are `noted` are derived, too. With `agree`, as after a loss of
    Entries, so are those whose rows disagree, and nothing that is lost stays in flight.
    """
    return _Rebuild(rows, write, known, noted, agree=agree).run()


class _Rebuild:
    def __init__(
        self,
        rows: RowReader,
        write: Callable[[Changes], None],
        known: Mapping[int, bool],
        noted: Collection[int],
        *,
        agree: bool,
    ) -> None:
        self._rows = rows
        self._readable = ReadableRows(rows)
        self._target = Target(write)
        self._known = known
        self._noted = noted
        self._agree = agree

    def run(self) -> list[Healed]:
        queue_ids = sorted({*self._known, *queue_ids_of(self._rows)})
        healed = [each for each in map(self._queue, queue_ids) if each is not None]
        for each in SHARD_TABLES:
            if (found := self._of_shard(each, healed)) is not None:
                healed.append(found)
        self._copy(*row_keys.table_range(THE_SHARD, row_keys.ANSWERS))
        applied = self._rows.get(
            row_keys.APPLIED_KEY
        )  # not by a scan, which may not pass damage before it
        if applied is not None:
            self._target.put(row_keys.APPLIED_KEY, applied)
        self._target.write()
        return healed

    def _copy(self, begin: bytes, end: bytes) -> None:
        for found in walk_rows(self._rows, begin, end):
            if not isinstance(found, UnreadableRows):
                self._target.put(*found)

    # -- queues ------------------------------------------------------------------------------------

    def _queue(self, queue_id: int) -> Healed | None:
        bounds = row_keys.queue_range(queue_id)
        contents = look_through(self._rows, *bounds)
        reason = self._reason(queue_id, contents)
        if reason is None:
            self._copy(*bounds)
            return None
        return Healed(queue_id, reason, self._derive(queue_id, contents.damages))

    def _reason(self, queue_id: int, contents: Contents) -> str | None:
        """The reason to derive the queue's rows, None if they are sound."""
        if contents.damages:
            return contents.damages[0].reason
        if not contents.rows:
            return None
        own = self._readable.row(row_keys.queue_key(queue_id), QueueRow)
        if own is None:
            return "the queue has messages but no row of its own"
        if own.departed > self._readable.departed(queue_id):
            return DEPARTED_LOST
        if queue_id in self._noted:
            return "a request met damage in it"
        return disagreement(self._rows, queue_id) if self._agree else None

    def _derive(self, queue_id: int, damages: list[Damage]) -> Missing:
        readable, fifo = self._readable, self._known.get(queue_id)
        missing = count_missing(readable, queue_id, damages)
        own = readable.row(row_keys.queue_key(queue_id), QueueRow)
        since_ms = 0 if own is None else own.stamp_ms
        blocked = {key[9:]: at_ms for key, at_ms in readable.table(queue_id, row_keys.BLOCKED, int)}
        if missing.missing and (fifo if own is None else own.fifo):
            groups = {*self._groups_with_losses(queue_id)}
            if self._agree:
                groups |= {*self._groups_of_lost_leases(queue_id)}
            blocked = dict.fromkeys(groups, since_ms) | blocked
        copy = QueueCopy(
            readable,
            self._target,
            queue_id,
            fifo=fifo,
            blocked=blocked,
            keeps_leases=not self._agree and bool(missing.missing),
        )
        copy.run()
        lost = missing.missing - copy.kept
        if lost > 0:
            record = Quarantined(NOWHERE, lost, since_ms)
            self._target.put(
                row_keys.row_key(queue_id, row_keys.QUARANTINED, NOWHERE), encode_row(record)
            )
        for group, at_ms in blocked.items():
            self._target.put(
                row_keys.group_key(queue_id, row_keys.BLOCKED, group), encode_row(at_ms)
            )
        return missing

    def _groups_with_losses(self, queue_id: int) -> Iterator[bytes]:
        """The FIFO groups with waiting messages that cannot be read, as far as their lines have
        names."""
        lines = (key for key, _ in self._readable.stored(queue_id, row_keys.GROUP_LINE))
        lost = self._readable.lost[row_keys.table_range(queue_id, row_keys.GROUP_LINE)[0][:9]]
        for line in chain(lines, lost):
            key = row_keys.message_key(queue_id, row_keys.last_number_of(line))
            if len(line) == GROUP_LINE_KEY and self._readable.row(key, StoredMessage) is None:
                yield line[9:25]

    def _groups_of_lost_leases(self, queue_id: int) -> Iterator[bytes]:
        """The groups of messages in flight that cannot be read."""
        for _, lease in self._readable.table(queue_id, row_keys.LEASE, Lease):
            if (
                self._readable.row(row_keys.message_key(queue_id, lease.sequence), StoredMessage)
                is None
            ):
                yield lease.group

    # -- the shard's own rows ----------------------------------------------------------------------

    def _of_shard(self, own: ShardTables, healed: list[Healed]) -> Healed | None:
        ranges = [row_keys.table_range(THE_SHARD, table.prefix) for table in own.tables]
        found = [look_through(self._rows, *each) for each in ranges]
        reason = next((damage.reason for each in found for damage in each.damages), None)
        if self._agree:
            reason = reason or _disagreement_of(own, self._rows)
        if reason is None:
            for each in ranges:
                self._copy(*each)
            return None
        own.salvage(self._readable, self._target.put)
        contents = {table.prefix: each for table, each in zip(own.tables, found, strict=True)}
        departed = contents.get(row_keys.DEPARTURE)
        missing = self._missing_departures(departed, healed) if departed is not None else None
        return Healed(THE_SHARD, reason, missing)

    def _missing_departures(self, departures: Contents, healed: list[Healed]) -> Missing | None:
        """Messages on their way that no queue counts: the others had left purged queues, which are
        dropped."""
        lost = sum(damage.is_one_row for damage in departures.damages)
        is_exact = lost == len(departures.damages)
        lost += len(self._readable.lost[row_keys.table_range(THE_SHARD, row_keys.DEPARTURE)[0]])
        lost -= sum(each.missing.departed for each in healed if each.missing is not None)
        return Missing(departures.rows, lost, is_exact, departed=lost) if lost > 0 else None


# -- reasons ---------------------------------------------------------------------------------------


def disagreements(rows: RowReader) -> bool:
    """True if rows disagree, as after a loss of Entries. O(rows).

    Queues without a row of their own are left to the load.
    """
    queues = any(disagreement(rows, queue_id) for queue_id in queue_ids_of(rows))
    return queues or any(_disagreement_of(each, rows) is not None for each in SHARD_TABLES)


def disagreement(rows: RowReader, queue_id: int) -> str | None:
    """The first finding of a check. Damaged messages are none, since reads skip them."""
    with suppress(DamagedRecord):
        if rows.get(row_keys.queue_key(queue_id)) is not None:
            return _first(check_queue(rows, queue_id))
    return None


def _disagreement_of(own: ShardTables, rows: RowReader) -> str | None:
    with suppress(DamagedRecord):
        return _first(own.check(rows))
    return None


def _first(findings: Iterator[Finding]) -> str | None:
    return next((found.what for found in findings), None)


def queue_ids_of(rows: RowReader) -> Iterator[int]:
    """Ids of the queues with a readable row."""
    at = row_keys.queue_range(THE_SHARD + 1)[0]
    while True:
        found = next(
            (
                each
                for each in walk_rows(rows, at, row_keys.END_OF_QUEUES)
                if isinstance(each, tuple)
            ),
            None,
        )
        if found is None:
            return
        queue_id = row_keys.queue_of(found[0].ljust(8, b"\0"))
        yield queue_id
        at = row_keys.queue_range(queue_id)[1]
