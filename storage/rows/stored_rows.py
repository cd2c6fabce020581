"""StoredRows: typed reads of one shard's rows over any store, for decisions and for a start."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import cycle, islice

from typing_extensions import override

from storage.rows.damage import UnreadableRows, gap_of, walk_rows
from storage.rows.messages_past_damage import survey_messages, walk_messages
from visibility.contract.limits import DEDUPLICATION_WINDOW_SECONDS
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows.overlay import Overlay, RowReader
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import DamagedRecord, decode_row
from visibility.rows.row_keys import (
    ALIAS,
    DELAYED,
    END_OF_QUEUES,
    GROUP,
    GROUP_LINE,
    HEAD,
    LEASE,
    LEVEL_LINE,
    MESSAGE,
    PAIRS_END,
    REMEMBERED,
    SPAN,
    group_key,
    group_line_key,
    group_name,
    is_between,
    last_number_of,
    message_key,
    message_name,
    number_of,
    pair_key,
    pair_of,
    queue_key,
    queue_of,
    queue_range,
    remembered_key,
    row_key,
    table_range,
)
from visibility.rows.row_values import (
    REMEMBER_BUCKET_MS,
    THE_SHARD,
    GroupRow,
    QueueRow,
    Remembered,
)
from visibility.state.queue_state import Quarantine, QueueState
from visibility.state.rows import DamagedPlace, DelayedSurvey, MessagesMissing, Page, Rows, Survey

CHANGES_MAX = 5_000
"""Row changes at which a Turn stops deciding, so that its Entry stays bounded."""
CHANGED_BYTES_MAX = 4 << 20
"""Bytes of row changes, likewise. One decision changes less: an Entry has at most 8 MiB."""
_DELAYED_PAGE_BYTES = 1 << 20
_REMEMBERED_MS = DEDUPLICATION_WINDOW_SECONDS * 1000
_NO_END = (1 << 64) - 1
_AT_ONCE = 16
"""Messages of a level that are read at once."""
_NOTHING = Quarantine()


class StoredRows(Rows):
    """The rows that a Turn reads, over any store."""

    def __init__(self, base: RowReader, bytes_max: int = CHANGED_BYTES_MAX) -> None:
        """A Turn is full from `bytes_max` of row changes on; less over small segments."""
        self._bytes_max = bytes_max
        self.store = Overlay(base)
        self.changes = Changes()
        """Changes recorded by the running Turn."""
        self.store.layers.append(self.changes)

    # -- writing -----------------------------------------------------------------------------------

    @override
    def is_full(self, part: int = 1) -> bool:
        """So each Entry fits into a segment (rule 5)."""
        changes = self.changes
        rows, size = len(changes.ops) // 2, changes.size
        return size >= self._bytes_max // part or rows >= CHANGES_MAX // part

    def take_changes(self) -> Changes:
        """End a Turn and return its changes, which reads see until `forget` reports them
        applied."""
        changes, self.changes = self.changes, Changes()
        if changes:
            self.store.layers.append(self.changes)
        else:
            self.store.layers[-1] = self.changes
        return changes

    def forget(self, changes: Changes) -> None:
        """Drop the oldest changes under way, which were applied to the rows."""
        assert self.store.layers[0] is changes
        del self.store.layers[0]

    @override
    def place_of(self, error: DamagedRecord) -> DamagedPlace | None:
        if isinstance(error, UnreadableRows):
            return DamagedPlace(queue_of(error.key), *gap_of(error))
        table = error.key[8:9]
        group = group_name(error.key)
        if group is not None:
            return DamagedPlace(group[0], 0, 0, group[1], is_group_row=table == GROUP)
        message = message_name(error.key)
        if message is not None:
            queue_id, sequence = message
            return DamagedPlace(queue_id, sequence, sequence + 1, is_delayed=table == DELAYED)
        return None

    @override
    def queue_of(self, error: DamagedRecord) -> int:
        return queue_of(error.key)

    @override
    def survey(self, queue_id: int, first: int, until: int) -> Survey:
        return survey_messages(self.store, queue_id, first, until)

    @override
    def survey_delayed(self, queue: QueueState) -> DelayedSurvey:
        survey = DelayedSurvey([], [])
        passed_by = queue.quarantined.delayed
        for found in walk_rows(self.store, *table_range(queue.queue_id, DELAYED)):
            if isinstance(found, UnreadableRows):
                survey.damaged.append((found.key[9:], found.until[9:] or PAIRS_END))
            elif not is_between(found[0], passed_by):
                try:
                    survey.groups.append(decode_row(StoredMessage, *found).group)
                except DamagedRecord:
                    survey.damaged.append((found[0][9:], found[0][9:] + b"\0"))
        return survey

    @override
    def groups(self, queue_id: int) -> list[tuple[bytes, GroupRow]]:
        found = []
        for each in walk_rows(self.store, *table_range(queue_id, GROUP)):
            if not isinstance(each, UnreadableRows):
                with suppress(DamagedRecord):
                    found.append((each[0][9:], decode_row(GroupRow, *each)))
        return found

    @override
    def in_groups(self, queue_id: int, group: bytes = b"") -> list[tuple[bytes, int]]:
        begin, end = table_range(queue_id, GROUP_LINE)
        if group:
            begin = group_line_key(queue_id, GROUP_LINE, group, 0)
            end = group_line_key(queue_id, GROUP_LINE, group, _NO_END)
        return [
            (found[0][9:25], last_number_of(found[0]))
            for found in walk_rows(self.store, begin, end)
            if not isinstance(found, UnreadableRows)
        ]

    # -- reading -----------------------------------------------------------------------------------

    @override
    def messages(self, queue_id: int, sequences: list[int]) -> list[StoredMessage | None]:
        keys = [row_key(queue_id, MESSAGE, sequence) for sequence in sequences]
        return self._messages(keys)

    @override
    def unless_quarantined(
        self, queue: QueueState, sequences: list[int]
    ) -> list[tuple[int, StoredMessage]]:
        keys = [
            row_key(queue.queue_id, MESSAGE, sequence)
            for sequence in sequences
            if sequence not in queue.quarantined
        ]
        found = zip(keys, self._messages(keys), strict=True)
        return [(number_of(key), message) for key, message in found if message is not None]

    def _messages(self, keys: list[bytes]) -> list[StoredMessage | None]:
        return [
            None if value is None else decode_row(StoredMessage, key, value)
            for key, value in zip(keys, self.store.get_many(keys), strict=True)
        ]

    @override
    def line(
        self,
        queue_id: int,
        from_sequence: int,
        until_sequence: int,
        *,
        messages: int,
        size: int,
        quarantined: Quarantine | None = None,
        spans: Collection[int] | None = None,
    ) -> Page:
        passed_by = quarantined or _NOTHING
        begin, end = message_key(queue_id, from_sequence), message_key(queue_id, until_sequence)
        found: list[tuple[int, StoredMessage]] = []
        for key, value in walk_messages(self.store, begin, end, passed_by, spans):
            sequence = number_of(key)
            if len(found) == messages or size <= 0:
                return Page(found, sequence)
            if sequence in passed_by:
                continue
            message = decode_row(StoredMessage, key, value)
            found.append((sequence, message))
            size -= len(message.data)
        return Page(found, None)

    @override
    def search_line(
        self, queue: QueueState, from_sequence: int, until_sequence: int, part: bytes
    ) -> Iterator[tuple[int, int, StoredMessage | None]]:
        begin = message_key(queue.queue_id, from_sequence)
        end = message_key(queue.queue_id, until_sequence)
        passed_by = queue.quarantined
        for key, value in walk_messages(self.store, begin, end, passed_by, queue.spans):
            sequence = number_of(key)
            if sequence not in passed_by:
                has_part = part in value
                message = decode_row(StoredMessage, key, value) if has_part else None
                yield sequence, len(value), message

    @override
    def level_line(
        self, queue: QueueState, level: int, from_sequence: int, *, messages: int, size: int
    ) -> Page:
        begin = pair_key(queue.queue_id, LEVEL_LINE, level, from_sequence)
        rows = walk_rows(self.store, begin, pair_key(queue.queue_id, LEVEL_LINE, level, _NO_END))
        sequences: list[int] = []
        for row in islice(rows, messages + 1):
            if isinstance(row, UnreadableRows):
                raise DamagedRecord(begin, "the index of levels cannot be read")
            sequences.append(last_number_of(row[0]))
        found: list[tuple[int, StoredMessage]] = []
        for first in range(0, len(sequences), _AT_ONCE):
            if size <= 0 or first >= messages:
                return Page(found, sequences[first])
            sound = [
                sequence
                for sequence in sequences[first : first + _AT_ONCE]
                if sequence not in queue.quarantined
            ]
            for sequence, message in zip(sound, self.messages(queue.queue_id, sound), strict=True):
                if message is None:
                    raise MessagesMissing(queue.queue_id, sequence)
                found.append((sequence, message))
                size -= len(message.data)
        return Page(found, None)

    @override
    def delayed(
        self,
        queue_id: int,
        limit: int,
        *,
        after: tuple[int, int] = (0, 0),
        quarantined: Quarantine | None = None,
    ) -> list[tuple[int, int, StoredMessage]]:
        begin = pair_key(queue_id, DELAYED, after[0], after[1] + 1)
        end = table_range(queue_id, DELAYED)[1]
        found: list[tuple[int, int, StoredMessage]] = []
        size = _DELAYED_PAGE_BYTES
        passed_by = (quarantined or _NOTHING).delayed
        for each in walk_rows(self.store, begin, end):
            if isinstance(each, UnreadableRows) or is_between(each[0], passed_by):
                continue
            message = decode_row(StoredMessage, *each)
            found.append((*pair_of(each[0]), message))
            size -= len(message.data)
            if len(found) == limit or size <= 0:
                break
        return found

    @override
    def instants(
        self,
        table: bytes,
        queue_id: int,
        limit: int,
        *,
        after: tuple[int, int] = (0, 0),
        quarantined: Quarantine | None = None,
    ) -> list[tuple[int, int]]:
        begin = pair_key(queue_id, table, after[0], after[1] + 1)
        rows = walk_rows(self.store, begin, table_range(queue_id, table)[1])
        pairs = (pair_of(row[0]) for row in rows if not isinstance(row, UnreadableRows))
        passed_by = quarantined or _NOTHING
        return list(islice((pair for pair in pairs if pair[1] not in passed_by), limit))

    @override
    def group(self, queue_id: int, group: bytes) -> GroupRow | None:
        key = group_key(queue_id, GROUP, group)
        value = self.store.get(key)
        return None if value is None else decode_row(GroupRow, key, value)

    @override
    def group_line(
        self, queue_id: int, group: bytes, from_sequence: int, limit: int
    ) -> list[tuple[int, Lease | None]]:
        if limit == 1:  # a line mostly begins right there, and a get is much cheaper than a scan
            key = group_line_key(queue_id, GROUP_LINE, group, from_sequence)
            value = self.store.get(key)
            if value is not None:
                return [(from_sequence, decode_row(Lease, key, value) if value else None)]
        begin = group_line_key(queue_id, GROUP_LINE, group, from_sequence)
        end = group_line_key(queue_id, GROUP_LINE, group, _NO_END)
        return [
            (last_number_of(key), decode_row(Lease, key, value) if value else None)
            for key, value in islice(self.store.scan(begin, end), limit)
        ]

    @override
    def ready_groups(self, queue_id: int, from_order: int, limit: int) -> list[tuple[int, bytes]]:
        begin, end = row_key(queue_id, HEAD, from_order), table_range(queue_id, HEAD)[1]
        return [
            (number_of(key), group) for key, group in islice(self.store.scan(begin, end), limit)
        ]

    @override
    def alias(self, queue_id: int, original_sequence: int) -> int | None:
        key = row_key(queue_id, ALIAS, original_sequence)
        value = self.store.get(key)
        return None if value is None else decode_row(int, key, value)

    @override
    def remembered(
        self, queue_id: int, digests: list[bytes], now_ms: int
    ) -> dict[bytes, Remembered]:
        begin_ms = now_ms - _REMEMBERED_MS + 1
        last_ms = now_ms // REMEMBER_BUCKET_MS * REMEMBER_BUCKET_MS
        first_ms = begin_ms // REMEMBER_BUCKET_MS * REMEMBER_BUCKET_MS
        keys = [
            remembered_key(queue_id, REMEMBERED, bucket_ms, digest)
            for bucket_ms in range(first_ms, last_ms + 1, REMEMBER_BUCKET_MS)
            for digest in digests
        ]
        found: dict[bytes, Remembered] = {}
        values = self.store.get_many(keys)
        if not any(values):
            return found
        for key, digest, value in zip(keys, cycle(digests), values, strict=False):
            if value is not None:
                remembered = decode_row(Remembered, key, value)
                if remembered.at_ms >= begin_ms:
                    found[digest] = remembered
        return found

    # -- a start -----------------------------------------------------------------------------------

    def queues(self) -> Iterator[tuple[int, QueueRow]]:
        """All queues by id with their own rows. Raises DamagedRecord."""
        queue_id = THE_SHARD + 1
        while True:
            first = next(self.store.scan(queue_range(queue_id)[0], END_OF_QUEUES), None)
            if first is None:
                return
            key, value = first
            queue_id = queue_of(key)
            own = queue_key(queue_id)
            if key != own:
                raise DamagedRecord(own, "the queue has messages but no row of its own")
            yield queue_id, decode_row(QueueRow, key, value)
            queue_id += 1

    def leases(self, queue_id: int) -> Iterator[Lease]:
        """The leases of messages in flight or visible again. Raises DamagedRecord."""
        return (decode_row(Lease, k, v) for k, v in self._table(queue_id, LEASE))

    def spans(self, queue_id: int) -> Iterator[tuple[int, int]]:
        """(span, messages in it). Raises DamagedRecord."""
        return ((number_of(k), decode_row(int, k, v)) for k, v in self._table(queue_id, SPAN))

    def _table(self, queue_id: int, table: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self.store.scan(*table_range(queue_id, table))
