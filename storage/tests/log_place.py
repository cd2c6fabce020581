"""A log on a simulated disk for tests that tell one story, on virtual time."""

from __future__ import annotations

import asyncio
import functools
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import async_solipsism

from storage.log import BEGINNING, Answered, Log, LogFailed, Position, Reading, open_log, read_log
from storage.log.scan import find_segments, ranges
from storage.tests.simulated_disk import SimulatedDisk

FOLDER = Path("/data/shard-0.log")
SEGMENT_BYTES = 12 << 10
T = TypeVar("T")


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """Run the work on a loop whose virtual time advances automatically."""
    loop = async_solipsism.EventLoop()
    with warnings.catch_warnings():  # timers may be closer than the clock's resolution
        warnings.simplefilter("ignore", async_solipsism.ResolutionWarning)
        try:
            result: T = loop.run_until_complete(work)
            return result
        finally:
            loop.close()


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test on virtual time."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_virtually(test(*args, **kwargs))

    return run


class LogPlace:
    """A folder with a log; the rows are a position only."""

    def __init__(self, seed: int = 0, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.disk = SimulatedDisk(Random(seed))
        self.applied = BEGINNING
        self.answered: Answered | None = None
        self.segment_bytes = segment_bytes

    def read(self) -> Reading:
        return read_log(self.disk, FOLDER, self.applied, self.answered)

    def bodies(self) -> list[bytes]:
        return [entry.body for entry in self.read().entries()]

    def open(self) -> Log:
        return open_log(
            self.read(),
            self.applied,
            new_log_id=lambda: b"i" * 16,
            segment_bytes=self.segment_bytes,
        )

    def accept_loss(self) -> Log:
        """As a start with --accept-loss does: apply, note the end as applied, flush, open."""
        reading = self.read()
        assert reading.lost
        self.applied = reading.end
        return open_log(
            reading, self.applied, new_log_id=lambda: b"", segment_bytes=self.segment_bytes
        )

    def note_answered(self, log: Log) -> None:
        self.answered = Answered(log.log_id, log.last)

    def segment_of(self, index: int) -> Path:
        """The file that holds an Entry."""
        segments, _ = find_segments(self.disk, FOLDER)
        log_id = next(found.header.log_id for found in segments if found.header)
        for found, header, limit in ranges(segments, log_id):
            if header.first <= index < limit:
                return FOLDER / found.name
        raise AssertionError(index)

    def flip(self, body: bytes, within: int = 0) -> None:
        """Flip a bit in the newest record with this body."""
        self.disk.flip_in(FOLDER, body, within)


async def synced(log: Log) -> LogFailed | None:
    """Sync and wait; returns the failure."""
    future: asyncio.Future[LogFailed | None] = asyncio.get_running_loop().create_future()
    log.sync(future.set_result)
    return await future


async def closed(log: Log) -> None:
    """Close and wait."""
    event = asyncio.Event()
    log.close(event.set)
    await event.wait()


async def appended(log: Log, *bodies: bytes) -> Position:
    """Append and sync each."""
    for number, body in enumerate(bodies):
        log.append(body, [number])
        assert await synced(log) is None
    return log.last
