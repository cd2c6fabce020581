"""Scrub: reads a shard's rows and log in the background, at a bounded rate, to find damage.

A follower serves nothing from its rows, so without this it would find damage when it leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import structlog

from storage.engines.readable import is_damage
from storage.engines.store import StoreFailed
from storage.log.entry import Position
from visibility.rows.row_codec import DamagedRecord

_T = TypeVar("_T")
SLICE_BYTES = 64 << 10
"""Read at a time: the interpreter lock is held for about a millisecond."""


class InThread(Protocol):
    """Runs blocking work in a thread, as `asyncio.to_thread` does."""

    def __call__(self, work: Callable[[], _T], /) -> Awaitable[_T]:
        """The result of the work."""


class RowFiles(Protocol):
    """The files of a shard's rows, read beside the open database: `FileRows`, or its model in the
    simulator."""

    def applied(self) -> Position:
        """The last Entry that they hold. Raises DamagedRecord."""

    def read_slice(self, begin: bytes, bytes_max: int) -> tuple[bytes | None, int]:
        """The beginning of the next slice, and the bytes read. Raises DamagedRecord."""

    def close(self) -> None:
        """Close the files."""


class ScrubbedLog(Protocol):
    """The log of a replica that is open: see `ReplicaLog`."""

    start: Position
    synced_index: int

    def holds(self, index: int) -> bool:
        """True if the log has this Entry."""

    def read(self, first: int, bytes_max: int, got: Callable[[list[bytes]], None]) -> None:
        """Records from `first` on, none if they cannot be read."""


class ScrubDamage(NamedTuple):
    """Damage that a scrub found: the shard is to fetch a checkpoint, and to give up leading."""

    place: str
    """ "rows" or "log"."""
    reason: str


class ScrubTimes(NamedTuple):
    """Times of a scrub."""

    start_s: float = 60.0
    """Pause before the first pass: a start has more urgent reads."""
    rest_s: float = 6 * 3600.0
    """Pause between two passes."""


class Pace:
    """Bounds how much is read in a second; one for all shards of a disk."""

    def __init__(self, bytes_s: float, monotonic_s: Callable[[], float]) -> None:
        self._bytes_s = bytes_s
        self._monotonic_s = monotonic_s
        self._free_at_s = 0.0
        """When all that was read so far has taken its time."""

    async def spend(self, size: int) -> None:
        """Wait for as long as these bytes take at this pace."""
        now_s = self._monotonic_s()
        self._free_at_s = max(self._free_at_s, now_s) + size / self._bytes_s
        await asyncio.sleep(self._free_at_s - now_s)


async def read_rows(open_rows: Callable[[], RowFiles], pace: Pace, in_thread: InThread) -> Position:
    """Read all rows; returns the last Entry in them.

    Raises StoreFailed, DamagedRecord.
    """
    opened: list[RowFiles] = []
    try:
        await to_its_end(in_thread(lambda: opened.append(open_rows())))
        (rows,) = opened
        at: bytes | None = b""
        while at is not None:
            at, size = await to_its_end(in_thread(partial(rows.read_slice, at, SLICE_BYTES)))
            await pace.spend(size)
        return await to_its_end(in_thread(rows.applied))
    finally:
        for rows in opened:
            await to_its_end(in_thread(rows.close))


async def to_its_end(work: Awaitable[_T]) -> _T:
    """The result of work in a thread. Cancelled, it waits for the thread, which still uses the
    files, or opens them."""
    running = asyncio.ensure_future(work)
    try:
        await asyncio.wait([running])
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # known now: else the loop would report it
        raise
    return running.result()


class Scrub:
    """The scrub of one shard: `run` is a task's work, and ends when it is cancelled."""

    def __init__(
        self,
        *,
        open_rows: Callable[[], RowFiles],
        log: Callable[[], ScrubbedLog | None],
        on_damage: Callable[[ScrubDamage], None],
        pace: Pace,
        in_thread: InThread,
        times: ScrubTimes | None,
    ) -> None:
        """`log` gives the open log, None while there is none. `on_damage` is called on the event
        loop, at most once for rows and once for the log in a pass."""
        self._open_rows = open_rows
        self._log = log
        self._on_damage = on_damage
        self._pace = pace
        self._in_thread = in_thread
        self._times = times or ScrubTimes()
        self._logger = structlog.get_logger("scrub")
        self.passes = 0
        """Passes that were finished."""

    async def run(self) -> None:
        """Scrub until cancelled."""
        await asyncio.sleep(self._times.start_s)
        while True:
            await self.scrub_once()
            await asyncio.sleep(self._times.rest_s)

    async def scrub_once(self) -> None:
        """One pass."""
        await self._scrub_rows()
        log = self._log()
        if log is not None:
            await self.scrub_log(log)
        self.passes += 1

    async def _scrub_rows(self) -> None:
        try:
            await read_rows(self._open_rows, self._pace, self._in_thread)
        except DamagedRecord as error:
            self._on_damage(ScrubDamage("rows", error.reason))
        except (StoreFailed, OSError) as error:
            if isinstance(error, StoreFailed) and is_damage(error):
                self._on_damage(ScrubDamage("rows", str(error)))
            else:  # no space for links, or files that changed all the time
                self._logger.warning("rows_not_scrubbed", error=str(error))

    async def scrub_log(self, log: ScrubbedLog) -> None:
        """Read what is durable of a log, unless another one is opened meanwhile."""
        index, last = log.start.index + 1, log.synced_index  # what comes meanwhile is for the next
        while self._log() is log and index <= min(last, log.synced_index):
            if not log.holds(index):  # it was released meanwhile
                index = log.start.index + 1
                continue
            records = await _records(log, index)
            if not records and log.holds(index) and self._log() is log:
                self._on_damage(ScrubDamage("log", f"Entry {index} cannot be read"))
                return
            index += len(records)
            await self._pace.spend(sum(map(len, records)))


async def _records(log: ScrubbedLog, first: int) -> list[bytes]:
    found: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()

    def got(records: list[bytes]) -> None:
        if not found.done():
            found.set_result(records)

    log.read(first, SLICE_BYTES, got)
    return await found
