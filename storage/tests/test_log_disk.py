"""The log on the operating system's files and threads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.log import BEGINNING, AnsweredNote, Log, SystemDisk, open_log, read_answered, read_log
from storage.log.header import HEADER_BYTES
from storage.tests.log_place import closed, synced

SEGMENT_BYTES = 64 << 10


@pytest.fixture
def disk() -> Iterator[SystemDisk]:
    made = SystemDisk()
    yield made
    made.stop()


def _open(disk: SystemDisk, folder: Path) -> Log:
    reading = read_log(disk, folder, BEGINNING)
    return open_log(reading, BEGINNING, new_log_id=lambda: b"i" * 16, segment_bytes=SEGMENT_BYTES)


async def test_a_log_in_files_comes_back(disk: SystemDisk, tmp_path: Path) -> None:
    folder = tmp_path / "shard-0.log"
    log = _open(disk, folder)
    bodies = [bytes([number]) * 7000 for number in range(30)]
    for body in bodies:
        log.append(body, [1])
        assert await synced(log) is None
    await closed(log)

    assert [entry.body for entry in read_log(disk, folder, BEGINNING).entries()] == bodies
    again = _open(disk, folder)
    assert (again.term, again.last_index, again.log_id) == (2, 30, log.log_id)
    assert again.append(b"next") == 31
    await closed(again)


async def test_appends_never_change_the_size_of_a_file(disk: SystemDisk, tmp_path: Path) -> None:
    folder = tmp_path / "shard-0.log"
    log = _open(disk, folder)
    for _ in range(20):
        log.append(bytes(9000))
    await synced(log)
    await closed(log)

    sizes = {file.stat().st_size for file in folder.glob("segment-*")}
    assert sizes == {SEGMENT_BYTES}


async def test_every_descriptor_is_closed(disk: SystemDisk, tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        log = _open(disk, tmp_path / "shard-0.log")
        note = AnsweredNote(disk, log.folder, log.log_id)
        log.append(bytes(SEGMENT_BYTES - 2 * HEADER_BYTES))
        log.append(bytes(SEGMENT_BYTES - 2 * HEADER_BYTES))
        log.release(log.last_index)
        await closed(log)
        note.close()

    assert set(os.listdir("/proc/self/fd")) <= before  # those of earlier tests may close late


async def test_the_note_is_written_in_the_lane_of_syncs(disk: SystemDisk, tmp_path: Path) -> None:
    log = _open(disk, tmp_path / "shard-0.log")
    note = AnsweredNote(disk, log.folder, log.log_id)
    log.append(b"body")
    written: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    note.write(log.last, written.set_result)

    assert await written is None
    found = read_answered(disk, log.folder)
    assert found is not None
    assert found.position == log.last
    note.close()
    await closed(log)


async def test_an_error_of_the_work_reaches_the_loop(disk: SystemDisk, tmp_path: Path) -> None:
    failed: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    disk.run(lambda: disk.open_to_read(tmp_path / "missing"), failed.set_result)
    worked: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    disk.run(lambda: None, worked.set_result)

    assert isinstance(await failed, FileNotFoundError)
    assert await worked is None
