"""Scrubbing a shard: damage is found, at a bounded rate, beside a service that writes."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest

from storage.copies.checkpoint_files import check_rows_of, make_checkpoint
from storage.copies.scrub import Pace, Scrub, ScrubbedLog, ScrubDamage, ScrubTimes, read_rows
from storage.engines.file_rows import FileRows
from storage.engines.rocks import RocksRows
from storage.engines.store import StoreFailed
from storage.log import Position, ReplicaLog
from storage.tests.log_place import virtual
from storage.tests.test_replica_log import ReplicaPlace, records, taken
from visibility.rows.row_changes import Ops
from visibility.rows.row_codec import DamagedRecord, encode_row

T = TypeVar("T")
RATE = 1 << 20
ROWS = 3_000
ROW_BYTES = 1_000


def in_thread(work: Callable[[], T], /) -> Awaitable[T]:
    """Without a thread: time is virtual."""

    async def now() -> T:
        return work()

    return now()


def loop_s() -> float:
    return asyncio.get_running_loop().time()


def fill(rows: RocksRows, index: int, count: int = ROWS) -> None:
    ops: Ops = []
    for number in range(count):
        value = encode_row(Random(number).randbytes(ROW_BYTES))
        ops += [b"%08d.%08d" % (index, number), value]
    rows.write(ops, Position(1, index, index))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "shard-0"
    with closing(RocksRows(folder)) as rows:
        fill(rows, 1)
        rows.flush()
    return folder


def table_of(folder: Path) -> Path:
    """Its only table."""
    (file,) = folder.glob("*.sst")
    return file


def flip(folder: Path, part: float) -> None:
    """Flip a bit of the only table, at this part of its bytes."""
    file = table_of(folder)
    content = bytearray(file.read_bytes())
    content[int(len(content) * part)] ^= 1
    file.write_bytes(content)


class Stage:
    """A scrub and what it reports."""

    def __init__(self, folder: Path, log: Callable[[], ScrubbedLog | None] = lambda: None) -> None:
        self.damages: list[ScrubDamage] = []
        self.scrub = Scrub(
            open_rows=lambda: FileRows(folder),
            log=log,
            on_damage=self.damages.append,
            pace=Pace(RATE, loop_s),
            in_thread=in_thread,
            times=ScrubTimes(start_s=10, rest_s=1000),
        )


@virtual
async def test_sound_rows_are_read_at_the_bounded_rate(folder: Path) -> None:
    stage = Stage(folder)
    begun_s = loop_s()

    await stage.scrub.scrub_once()

    assert not stage.damages
    assert loop_s() - begun_s == pytest.approx(ROWS * ROW_BYTES / RATE, rel=0.05)


@virtual
async def test_passes_repeat_after_a_pause(folder: Path) -> None:
    stage = Stage(folder)
    task = asyncio.create_task(stage.scrub.run())

    await asyncio.sleep(9)
    assert stage.scrub.passes == 0
    await asyncio.sleep(10)
    assert stage.scrub.passes == 1
    await asyncio.sleep(1010)
    assert stage.scrub.passes == 2
    task.cancel()


@pytest.mark.parametrize("part", [0.1, 0.5])
@virtual
async def test_a_flipped_bit_is_found_though_the_service_has_the_rows_in_memory(
    folder: Path, part: float
) -> None:
    with closing(RocksRows(folder)) as rows:
        assert len(list(rows.scan(b"", b"\xff"))) == ROWS + 1
        flip(folder, part)
        stage = Stage(folder)

        await stage.scrub.scrub_once()

        (damage,) = stage.damages
        assert damage.place == "rows"
        assert "block checksum mismatch" in damage.reason
        await stage.scrub.scrub_once()
        assert len(stage.damages) == 2, "until it is healed"


@virtual
async def test_a_file_that_is_gone_is_found(folder: Path) -> None:
    with closing(RocksRows(folder)):
        table_of(folder).unlink()
        stage = Stage(folder)

        await stage.scrub.scrub_once()

        assert [damage.place for damage in stage.damages] == ["rows"]


@virtual
async def test_files_that_a_service_adds_and_drops_meanwhile_are_no_damage(folder: Path) -> None:
    with closing(RocksRows(folder)) as rows:
        stage = Stage(folder)
        scrubbing = asyncio.create_task(stage.scrub.scrub_once())
        for index in range(2, 8):
            fill(rows, index, 300)
            rows.write([b"%08d" % (index - 1), [b"%08d" % index]])
            rows.flush()
            await asyncio.sleep(0.3)
        await scrubbing

        assert not stage.damages
        with closing(FileRows(folder)) as read:
            assert read.applied() == Position(1, 7, 7)


@virtual
async def test_all_shards_of_a_disk_share_its_rate(folder: Path) -> None:
    pace = Pace(RATE, loop_s)
    begun_s = loop_s()

    await asyncio.gather(*(check_rows_of(folder, pace, in_thread) for _ in range(3)))

    assert loop_s() - begun_s == pytest.approx(3 * ROWS * ROW_BYTES / RATE, rel=0.05)


# -- the log ---------------------------------------------------------------------------------------


def bodies(count: int) -> list[bytes]:
    return [b"%08d" % number * 10 for number in range(count)]


@virtual
async def test_a_flipped_bit_of_the_log_is_found(folder: Path) -> None:
    place = ReplicaPlace()
    log = place.open_replica()
    entries = await taken(log, records(1, bodies(40), term=1, previous=0))
    stage = Stage(folder, lambda: log)
    await stage.scrub.scrub_once()
    assert not stage.damages

    place.flip(entries[30].body)
    await stage.scrub.scrub_once()

    assert stage.damages == [ScrubDamage("log", "Entry 31 cannot be read")]


@virtual
async def test_a_log_that_is_opened_anew_meanwhile_is_no_damage(folder: Path) -> None:
    place = ReplicaPlace()
    log = place.open_replica()
    entries = await taken(log, records(1, bodies(40), term=1, previous=0))
    place.flip(entries[30].body)
    current: list[ReplicaLog | None] = [log]
    stage = Stage(folder, lambda: current[0])
    task = asyncio.create_task(stage.scrub.scrub_log(log))
    await asyncio.sleep(0)

    current[0] = None
    await task

    assert not stage.damages


@virtual
async def test_entries_that_are_released_meanwhile_are_no_damage(folder: Path) -> None:
    place = ReplicaPlace()
    log = place.open_replica()
    await taken(log, records(1, bodies(200), term=1, previous=0))
    stage = Stage(folder, lambda: log)
    task = asyncio.create_task(stage.scrub.scrub_log(log))
    await asyncio.sleep(0)
    log.release(150)
    assert log.start.index > 0

    await task

    assert not stage.damages


class ChangingLog:
    """Each read of up to 64 Entries of a KiB moves its end."""

    start = Position(1, 0, 1)

    def __init__(self, moves_by: int) -> None:
        self.synced_index = 300
        self._moves_by = moves_by

    def holds(self, index: int) -> bool:
        return 0 < index <= self.synced_index

    def read(self, first: int, bytes_max: int, got: Callable[[list[bytes]], None]) -> None:
        count = min(bytes_max >> 10, self.synced_index - first + 1)
        self.synced_index += self._moves_by
        got([bytes(1 << 10)] * count)


@pytest.mark.parametrize("moves_by", [100, -50], ids=["grows", "is cut"])
@virtual
async def test_the_pass_over_a_log_ends_whatever_becomes_of_its_end(
    folder: Path, moves_by: int
) -> None:
    """The rows are read again only then."""
    log = ChangingLog(moves_by)
    stage = Stage(folder, lambda: log)

    async with asyncio.timeout(60):
        await stage.scrub.scrub_log(log)

    assert not stage.damages


@virtual
async def test_damage_that_a_cancelled_scrub_met_is_no_error_of_the_loop() -> None:
    told: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: told.append(context))

    class Files:
        def applied(self) -> Position:
            raise NotImplementedError

        def read_slice(self, begin: bytes, bytes_max: int) -> tuple[bytes | None, int]:
            raise DamagedRecord(b"key", "it cannot be read")

        def close(self) -> None:
            """Nothing is open."""

    async def slowly(work: Callable[[], T], /) -> T:
        await asyncio.sleep(1)
        return work()

    task = asyncio.create_task(read_rows(Files, Pace(1 << 40, loop_s), slowly))
    await asyncio.sleep(1.5)
    task.cancel()
    await asyncio.wait([task])
    del task
    gc.collect()

    assert told == []


@pytest.mark.parametrize("slow", ["open", "read_slice"])
async def test_a_cancelled_scrub_closes_the_files_once_its_thread_is_done_with_them(
    slow: str,
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    steps: list[str] = []

    def step(name: str) -> None:
        steps.append(name)
        if name == slow:
            begun.set()
            go_on.wait()
            steps.append("went on")

    class Files:
        def __init__(self) -> None:
            step("open")

        def applied(self) -> Position:
            raise NotImplementedError

        def read_slice(self, begin: bytes, bytes_max: int) -> tuple[bytes | None, int]:
            step("read_slice")
            return begin, 0

        def close(self) -> None:
            step("close")

    pace = Pace(1 << 40, loop_s)
    task = asyncio.create_task(read_rows(Files, pace, asyncio.to_thread))
    await asyncio.to_thread(begun.wait)

    task.cancel()
    await asyncio.sleep(0)
    go_on.set()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps[-2:] == ["went on", "close"]


# -- checkpoints -----------------------------------------------------------------------------------


@virtual
async def test_a_checkpoint_tells_the_entry_that_it_is_as_of(folder: Path, tmp_path: Path) -> None:
    with closing(RocksRows(folder)) as rows:
        fill(rows, 2, 10)
        position = make_checkpoint(rows, tmp_path / "made")
        fill(rows, 3, 10)

    assert position == Position(1, 2, 2)
    pace = Pace(RATE, loop_s)
    assert await check_rows_of(tmp_path / "made", pace, in_thread) == position


@pytest.mark.parametrize("part", [0.5, 0.999])
@virtual
async def test_a_damaged_checkpoint_is_refused(folder: Path, part: float) -> None:
    flip(folder, part)

    with pytest.raises((DamagedRecord, StoreFailed)):
        await check_rows_of(folder, Pace(RATE, loop_s), in_thread)


# -- real threads ----------------------------------------------------------------------------------


async def test_threads_read_and_copy_while_the_loop_writes(folder: Path, tmp_path: Path) -> None:
    rows = RocksRows(folder)
    made = tmp_path / "made"
    last = 1
    wrote = asyncio.Event()

    async def write() -> None:
        nonlocal last
        while True:
            fill(rows, last + 1, 3)
            last += 1
            wrote.set()
            await asyncio.sleep(0.001)

    writing = asyncio.create_task(write())
    await wrote.wait()
    damages: list[ScrubDamage] = []
    pace = Pace(1 << 40, asyncio.get_running_loop().time)
    scrub = Scrub(
        open_rows=lambda: FileRows(folder),
        log=lambda: None,
        on_damage=damages.append,
        pace=pace,
        in_thread=asyncio.to_thread,
        times=None,
    )

    position = await asyncio.to_thread(make_checkpoint, rows, made)
    await scrub.scrub_once()
    wrote.clear()
    await wrote.wait()

    writing.cancel()
    assert not damages
    assert 1 < position.index < last
    assert await check_rows_of(made, pace, asyncio.to_thread) == position
    with closing(RocksRows(made)) as copied:
        indexes = {int(key[:8]) for key, _ in copied.scan(b"00000001", b"1")}
    assert indexes == set(range(1, position.index + 1))
    rows.close()
