"""StoredAnswers: the rows of answers that retries may ask for. See `AnswerMemory`.

One row an Entry, dropped by a range delete after ten minutes. Being rows, they are there after a
failover, a restart and a checkpoint.
"""

from __future__ import annotations

from itertools import count

import msgspec

from storage.rows.codec import decode_row, encode_row
from storage.rows.keys import ANSWERS, pair_key, table_range
from storage.rows.stored_rows import StoredRows
from visibility.state.events import THE_SHARD
from visibility.state.short_answers import ANSWERS_KEPT_MS, ShortAnswer

_FORGET_EVERY_MS = 60_000
_decode_answers = msgspec.msgpack.Decoder(list[ShortAnswer]).decode


class _Named(msgspec.Struct, frozen=True, array_like=True):
    """An AnswersRow whose answers are decoded when one of them is wanted."""

    request_ids: list[str]
    answers: msgspec.Raw


class StoredAnswers:
    """Belongs to one leadership of a shard."""

    def __init__(self, rows: StoredRows, chance: int) -> None:
        """`chance`, 128 random bits, sets this leader's rows apart from those that another wrote
        at the same instant."""
        self.repeated: dict[str, None] = {}
        self._rows = rows
        self._numbers = count(chance >> 66)
        self._forgotten_ms = 0
        """Rows before this instant were deleted by this leader."""

    def record(self, now_ms: int, request_ids: list[str], answers: list[ShortAnswer]) -> None:
        """See `AnswerMemory.record`."""
        changes = self._rows.changes
        key = pair_key(THE_SHARD, ANSWERS, now_ms, next(self._numbers))
        changes.put(key, encode_row((request_ids, answers)))
        until_ms = now_ms - ANSWERS_KEPT_MS
        if until_ms >= self._forgotten_ms + _FORGET_EVERY_MS:
            begin = pair_key(THE_SHARD, ANSWERS, self._forgotten_ms, 0)
            changes.delete_range(begin, pair_key(THE_SHARD, ANSWERS, until_ms, 0))
            self._forgotten_ms = until_ms

    def find(self, request_ids: set[str], from_ms: int) -> dict[str, ShortAnswer]:
        """See `AnswerMemory.find`."""
        found: dict[str, ShortAnswer] = {}
        begin = pair_key(THE_SHARD, ANSWERS, max(0, from_ms), 0)
        for key, value in self._rows.store.scan(begin, table_range(THE_SHARD, ANSWERS)[1]):
            row = decode_row(_Named, key, value)
            if not request_ids.isdisjoint(row.request_ids):
                answers = zip(row.request_ids, _decode_answers(row.answers), strict=True)
                found |= {name: answer for name, answer in answers if name in request_ids}
        return found
