"""Marks: what happened to the things around the service, such as deploys, so that failures can be
seen beside it.

One record, with the latest MARKS_MAX of them: it is read when somebody looks, and changed under the
condition that nobody else has.
"""

from __future__ import annotations

import msgspec

from cluster.coordination.coordination import (
    Conflict,
    Coordination,
    Done,
    Record,
    Transaction,
    Unavailable,
)
from visibility.contract.errors import ServiceUnavailable

PREFIX = "marks/"
MARKS_MAX = 200
_KEY = "latest"
_TRIES = 30
_REPEATED_MS = 600_000


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A mark. Stored form: only append. `mark_id` is that of the request: one that is sent again
    within ten minutes is the same mark."""

    at_ms: int
    text: str
    by: str
    mark_id: str


class Marks:
    """Reads and adds to the record."""

    def __init__(self, records: Coordination) -> None:
        self._records = records

    async def latest(self) -> list[Mark]:
        """All that are kept, the earliest first. Raises ServiceUnavailable."""
        return _marks(await self._record())

    async def add(self, mark: Mark) -> None:
        """Keep a mark; the earliest goes if there are too many. Raises ServiceUnavailable: then it
        may be kept all the same."""
        for _ in range(_TRIES):
            record = await self._record()
            marks = _marks(record)
            if any(_is_same(each, mark) for each in marks):
                return
            kept = sorted([*marks, mark], key=lambda each: each.at_ms)[-MARKS_MAX:]
            condition = {_KEY: 0 if record is None else record.revision}
            change = {_KEY: msgspec.msgpack.encode(kept)}
            outcome = await self._records.commit(Transaction(condition, change))
            if isinstance(outcome, Done):
                return
            if not isinstance(outcome, Conflict):
                break
        raise ServiceUnavailable()

    async def _record(self) -> Record | None:
        found = await self._records.read([_KEY])
        if isinstance(found, Unavailable):
            raise ServiceUnavailable()
        return next(iter(found.records), None)


def _is_same(one: Mark, other: Mark) -> bool:
    return one.mark_id == other.mark_id and abs(one.at_ms - other.at_ms) < _REPEATED_MS


def _marks(record: Record | None) -> list[Mark]:
    return [] if record is None else msgspec.msgpack.decode(record.value, type=list[Mark])
