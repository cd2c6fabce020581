"""LostBlocks: blocks of data keys that are gone because etcd was restored from a backup.

The restored etcd does not know the blocks that were made since, and would issue their numbers
again. Messages are sealed under them, so each process that knows such a block puts it back, wrapped
under the newest version of its named key, and raises the counter. Nothing is sealed under it
before.

A block cannot be put back if its named key is gone, too, or if its number was issued again: then
only the processes that have its data keys in memory can open what was sealed under them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import msgspec
import structlog

from auth.envelope import SealBroken, WrappingKey
from cluster.coordination.records import COUNTERS, Draft, Records, View
from cluster.keys.key_owners import NamedKey
from cluster.keys.key_records import (
    BLOCKS,
    DATA,
    KEYS,
    StoredBlock,
    StoredNamedKey,
    data_key_of,
    decoded,
)

Versions = Mapping[int, tuple[NamedKey, WrappingKey]]
_PAGE = 50
"""Blocks that are put back by one transaction."""
_AGAIN_S = 1.0
"""Pause after they could not be put back."""


class Wraps(NamedTuple):
    """Wraps as the keyring does."""

    cipher: Callable[[StoredNamedKey, int], WrappingKey]
    """The key of a version. Raises SealBroken."""
    wrapped: Callable[[WrappingKey, bytes, str], bytes]


class _Lost(NamedTuple):
    """A block as it was, with the versions that it was under."""

    stored: StoredBlock
    versions: Versions

    def secrets(self) -> dict[int, bytes]:
        """Its secrets, by data key if it has several. Raises SealBroken."""
        wrapped = self.stored.keys or {0: (self.stored.version, self.stored.wrapped)}
        return {
            number: self.versions[version][1].unwrap(secret, data_key_of(version))
            for number, (version, secret) in wrapped.items()
        }


class LostBlocks:
    """Puts them in the records."""

    def __init__(self, records: Records, away: type[Exception], wraps: Wraps) -> None:
        """`away` is what the records raise while nothing can be changed."""
        self._records = records
        self._away = away
        self._wraps = wraps
        self._before = records.view
        self._lost: dict[int, _Lost] = {}
        self._gone: set[int] = set()
        """Those that cannot be put back."""
        self._putting: asyncio.Task[None] | None = None
        self._log = structlog.get_logger("keyring")

    def has(self, number: int) -> bool:
        """True for a block that is not among the records any more."""
        return number in self._lost or number in self._gone

    @property
    def highest(self) -> int:
        """The highest number among them, 0 if there are none."""
        return max([*self._lost, *self._gone], default=0)

    def look(self, view: View, changed: Collection[str], versions: Versions) -> list[int]:
        """Find the blocks that a view does not have any more, or that it has otherwise. `versions`
        are those from before."""
        before, self._before = self._before, view
        found = []
        for key in changed:
            value = before.value(key) if key.startswith(DATA) else None
            number = int(key.removeprefix(DATA)) if value is not None else 0
            if value is None or self.has(number) or view.value(key) == value:
                continue
            lost = _lost(value, versions)
            if lost is not None:
                self._lost[number] = lost
                found.append(number)
        return found

    def compare(self, versions: Versions) -> list[int]:
        """Forget the blocks that are there again. Returns those whose numbers were issued again."""
        issued = []
        for number, lost in list(self._lost.items()):
            value = self._before.value(f"{DATA}{number}")
            there = None if value is None else _lost(value, versions)
            if there is None:
                continue
            del self._lost[number]
            if there.secrets() != lost.secrets():
                self._give_up(number, "its number was issued again")
                issued.append(number)
        return issued

    def put_back_soon(self) -> None:
        """Put back what is lost, as soon as that is possible."""
        if self._putting is None and (numbers := self._free()):
            self._log.warning("data_keys_lost", blocks=numbers)
            self._putting = asyncio.create_task(self._put_back())
            self._putting.add_done_callback(self._has_ended)

    def _free(self) -> list[int]:
        """Those that nobody put back yet."""
        return [each for each in sorted(self._lost) if self._before.value(f"{DATA}{each}") is None]

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        self._putting = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("task_failed", exc_info=error)

    async def close(self) -> None:
        """Stop."""
        if self._putting is not None:
            self._putting.cancel()
            await asyncio.wait([self._putting])

    async def _put_back(self) -> None:
        while numbers := self._free()[:_PAGE]:
            try:
                await self._records.change(lambda draft: self._put(draft, numbers))
            except self._away as error:
                self._log.warning("data_keys_not_put_back", reason=str(error))
            if self._free()[:_PAGE] == numbers:
                await asyncio.sleep(_AGAIN_S)

    def _put(self, draft: Draft, numbers: list[int]) -> None:
        """Put back those of these blocks whose numbers are free, and keep others from getting
        them."""
        raise_counter(draft, self.highest)
        for number in numbers:
            lost = self._lost.get(number)
            if lost is None or draft.value(f"{DATA}{number}") is not None:
                continue
            try:
                again = self._wrapped_anew(draft, lost)
            except SealBroken as error:
                del self._lost[number]
                self._give_up(number, str(error))
            else:
                draft.put(f"{DATA}{number}", msgspec.json.encode(again))

    def _wrapped_anew(self, draft: Draft, lost: _Lost) -> StoredBlock:
        """The block under the newest versions of its named keys. Raises SealBroken."""

        def again(version: int, wrapped: bytes) -> tuple[int, bytes]:
            named, old = lost.versions[version]
            value = draft.value(KEYS + named.row)
            stored = None if value is None else decoded(value, StoredNamedKey)
            if stored is None or stored.key_id != named.key_id:
                raise SealBroken(f"its key {named.name} is gone")
            newest = max(stored.versions)
            secret = old.unwrap(wrapped, data_key_of(version))
            cipher = self._wraps.cipher(stored, newest)
            return newest, self._wraps.wrapped(cipher, secret, data_key_of(newest))

        return lost.stored.wrapped_anew(again)

    def _give_up(self, number: int, reason: str) -> None:
        self._gone.add(number)
        self._log.error("data_keys_gone", block=number, reason=reason)


def raise_counter(draft: Draft, number: int) -> None:
    """Let the next block have a higher number than this."""
    if number and int(draft.value(COUNTERS + BLOCKS) or 0) < number:
        draft.put(COUNTERS + BLOCKS, b"%d" % number)


def _lost(value: bytes, versions: Versions) -> _Lost | None:
    """A block as stored, None if it cannot be opened."""
    try:
        stored = decoded(value, StoredBlock)
        lost = _Lost(stored, {version: versions[version] for version in stored.versions()})
        lost.secrets()
    except (SealBroken, KeyError):
        return None
    return lost
