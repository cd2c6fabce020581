"""StoredAnswers: the rows of answers that retries may ask for. See `AnswerMemory`.

One row an Entry, dropped by a range delete after ten minutes. Being rows, they are there after a
failover, a restart and a checkpoint. The first retry of a leadership indexes the rows in memory,
later ones index what came since: without retries this costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import msgspec
from typing_extensions import override

from storage.rows.stored_rows import StoredRows
from visibility.rows.row_codec import decode_row, encode_row
from visibility.rows.row_keys import ANSWERS, pair_key, table_range
from visibility.rows.row_values import THE_SHARD
from visibility.state.short_answers import ANSWERS_KEPT_MS, AnswerMemory, ShortAnswer

_FORGET_EVERY_MS = 60_000
_INDEXED_MORE_MS = 10_000
"""The index reaches back so much further than the youngest retry needs."""
_NUMBER_BYTES = 8
"""Bytes of the number in a key, behind the instant."""
_END = table_range(THE_SHARD, ANSWERS)[1]
_decode_answers = msgspec.msgpack.Decoder(list[ShortAnswer]).decode


class _Named(msgspec.Struct, frozen=True, array_like=True):
    """An AnswersRow whose answers are decoded when one of them is wanted."""

    request_ids: list[str]
    answers: msgspec.Raw


class StoredAnswers(AnswerMemory):
    """Belongs to one leadership of a shard."""

    def __init__(self, rows: StoredRows, chance: int) -> None:
        """`chance`, 128 random bits, sets this leader's rows apart from those that another wrote
        at the same instant."""
        self.repeated: dict[str, None] = {}
        self._rows = rows
        self._numbers = count(chance >> 66)
        self._forgotten_ms = 0
        """Rows before this instant were deleted by this leader."""
        self._latest: dict[str, bytes] = {}
        """The key of the latest row with each request, for the rows from `_begin` to `_end`."""
        self._begin = self._end = b""

    @override
    def record(self, now_ms: int, request_ids: list[str], answers: list[ShortAnswer]) -> None:
        changes = self._rows.changes
        key = pair_key(THE_SHARD, ANSWERS, now_ms, next(self._numbers))
        changes.put(key, encode_row((request_ids, answers)))
        if key < self._end:  # another leader's clock was ahead of this one
            self._latest.update(dict.fromkeys(request_ids, key))
        until_ms = now_ms - ANSWERS_KEPT_MS
        if until_ms >= self._forgotten_ms + _FORGET_EVERY_MS:
            begin = pair_key(THE_SHARD, ANSWERS, self._forgotten_ms, 0)
            changes.delete_range(begin, pair_key(THE_SHARD, ANSWERS, until_ms, 0))
            self._forgotten_ms = until_ms

    @override
    def find(self, request_ids: set[str], from_ms: int) -> dict[str, ShortAnswer]:
        self._index(from_ms)
        begin, found = _key(from_ms), dict[str, ShortAnswer]()
        if begin < self._begin:
            for key, row in self._scanned(begin, self._begin):
                found |= _answers(key, row, request_ids)
        indexed = {self._latest[each] for each in request_ids if each in self._latest}
        keys = sorted(key for key in indexed if key >= begin)
        for key, value in zip(keys, self._rows.store.get_many(keys), strict=True):
            if value is not None:
                found |= _answers(key, decode_row(_Named, key, value), request_ids)
        return found

    def _index(self, from_ms: int) -> None:
        """Index what came since the last call, and forget what most retries ask for no more."""
        forgotten = _key(from_ms - _INDEXED_MORE_MS)
        if forgotten > self._begin:
            self._begin = forgotten
            while self._latest and self._latest[first := next(iter(self._latest))] < forgotten:
                del self._latest[first]
        for key, row in self._scanned(max(self._begin, self._end), _END):
            self._end = key[:-_NUMBER_BYTES]  # others may write at this instant
            for request_id in row.request_ids:
                self._latest.pop(request_id, None)
                self._latest[request_id] = key

    def _scanned(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, _Named]]:
        for key, value in self._rows.store.scan(begin, end):
            yield key, decode_row(_Named, key, value)


def _key(from_ms: int) -> bytes:
    return pair_key(THE_SHARD, ANSWERS, max(0, from_ms), 0)


def _answers(key: bytes, row: _Named, request_ids: set[str]) -> dict[str, ShortAnswer]:
    if request_ids.isdisjoint(row.request_ids):
        return {}
    answers = zip(row.request_ids, _decode_answers(row.answers), strict=True)
    return {name: answer for name, answer in answers if name in request_ids}
