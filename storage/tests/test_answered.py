"""A shard that holds less than answers told of is not opened, wherever it was cut or damaged."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.engines.answered import AnsweredMark
from storage.engines.rocks import Durability, RocksStore
from storage.engines.store import StoreFailed

ROWS = 400


def _open(
    folder: Path, durability: Durability = Durability.FSYNC, *, accepts_loss: bool = False
) -> RocksStore:
    return RocksStore(folder, durability, lambda error: None, accepts_loss=accepts_loss)


async def _commit(store: RocksStore, first: int, count: int) -> None:
    """Rows, each in a commit of its own whose answer went out."""
    for number in range(first, first + count):
        released = asyncio.Event()
        store.batch.put(b"%08d" % number, b"v" * 100)
        store.commit(released.set)
        await released.wait()


def _copy(folder: Path, target: Path) -> Path:
    """The shard as a crash of the process would leave it now."""
    shutil.copytree(folder, target)
    mark = AnsweredMark(folder)
    shutil.copy(mark.file, target.with_name(target.name + ".answered"))
    mark.close()
    return target


def _held(store: RocksStore) -> int:
    return sum(1 for _ in store.scan(b"0", b"9"))


async def _crashed(tmp_path: Path, durability: Durability = Durability.FSYNC) -> Path:
    """A shard with ROWS rows in its log, and a note that all of them were answered."""
    store = _open(tmp_path / "s", durability)
    await _commit(store, 0, ROWS)
    store._write_mark()
    crashed = _copy(tmp_path / "s", tmp_path / "crashed")
    store.close()
    return crashed


def _log(folder: Path) -> Path:
    """The newest log with something in it."""
    return max((file for file in folder.glob("*.log") if file.stat().st_size), key=lambda f: f.name)


async def test_a_crash_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    store = _open(await _crashed(tmp_path))

    assert _held(store) == ROWS
    store.close()


async def test_a_clean_stop_notes_everything(tmp_path: Path) -> None:
    store = _open(tmp_path / "s")
    await _commit(store, 0, 3)
    store.close()
    mark = AnsweredMark(tmp_path / "s")

    again = _open(tmp_path / "s")

    assert mark.read() == again._rows.latest_sequence_number() == 3
    again.close()
    mark.close()


async def test_an_older_copy_is_refused(tmp_path: Path) -> None:
    store = _open(tmp_path / "s")
    await _commit(store, 0, 10)
    shutil.copytree(tmp_path / "s", tmp_path / "older")
    await _commit(store, 10, 10)
    store.close()
    shutil.rmtree(tmp_path / "s")
    (tmp_path / "older").rename(tmp_path / "s")

    with pytest.raises(
        StoreFailed, match="came back shorter: it holds 10 changes, but answers told of 20"
    ):
        _open(tmp_path / "s")
    store = _open(tmp_path / "s", accepts_loss=True)
    assert _held(store) == 10
    store.close()
    _open(tmp_path / "s").close()


def _cut(log: Path) -> None:
    content = log.read_bytes()
    log.write_bytes(content[: len(content) // 2])


def _flip(log: Path) -> None:
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)


def _zero_the_rest(log: Path) -> None:
    content = log.read_bytes()
    half = len(content) // 2
    log.write_bytes(content[:half] + bytes(len(content) - half))


def _lose(log: Path) -> None:
    log.unlink()


@pytest.mark.parametrize("damage", [_cut, _flip, _zero_the_rest, _lose])
async def test_a_damaged_log_is_refused(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    crashed = await _crashed(tmp_path)
    damage(_log(crashed))

    with pytest.raises(StoreFailed):
        _open(crashed)


async def test_a_torn_tail_that_nobody_was_told_of_opens(tmp_path: Path) -> None:
    crashed = await _crashed(tmp_path)
    log = _log(crashed)
    log.write_bytes(log.read_bytes() + b"\x12\x34\x56half a record")

    store = _open(crashed)
    assert _held(store) == ROWS
    store.close()


async def _torn(tmp_path: Path, damage: Callable[[bytes], bytes]) -> Path:
    """A shard that lost its power while it synced a large change: its log is longer, but not all of it was written."""
    store = _open(tmp_path / "s")
    await _commit(store, 0, ROWS)
    store._write_mark()
    answered = _log(tmp_path / "s").stat().st_size
    for number in range(3):
        store.batch.put(b"unanswered %d" % number, bytes([65 + number]) * 30_000)
        store.write()
    torn = _copy(tmp_path / "s", tmp_path / "torn")
    store.close()
    log = _log(torn)
    content = log.read_bytes()
    log.write_bytes(content[:answered] + damage(content[answered:]))
    return torn


@pytest.mark.parametrize("at", [0, 4096, 40_000])
async def test_a_hole_in_what_nobody_was_told_of_opens(tmp_path: Path, at: int) -> None:
    def hole(tail: bytes) -> bytes:
        return tail[:at] + bytes(4096) + tail[at + 4096 :]

    torn = await _torn(tmp_path, hole)

    store = _open(torn)
    assert _held(store) == ROWS
    await _commit(store, ROWS, 10)
    store.close()
    store = _open(torn)
    assert _held(store) == ROWS + 10
    store.close()


async def test_a_hole_that_is_refused_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    crashed = await _crashed(tmp_path)
    _flip(_log(crashed))
    content = _log(crashed).read_bytes()

    for _ in range(2):
        with pytest.raises(StoreFailed):
            _open(crashed)

    assert _log(crashed).read_bytes() == content


async def test_what_a_power_failure_may_take_without_syncs_is_only_reported(tmp_path: Path) -> None:
    crashed = await _crashed(tmp_path, Durability.OS)
    _cut(_log(crashed))

    store = _open(crashed, Durability.OS)

    assert 0 < _held(store) < ROWS
    store.close()


async def test_a_folder_without_a_note_and_one_with_a_damaged_note_open(tmp_path: Path) -> None:
    crashed = await _crashed(tmp_path)
    note = crashed.with_name("crashed.answered")
    for content in (b"", b"x", b"0" * 20 + b" 00000000\n"):
        note.write_bytes(content)
        _open(crashed).close()
    note.unlink()
    _open(crashed).close()


def test_a_note_is_read_as_it_was_written(tmp_path: Path) -> None:
    mark = AnsweredMark(tmp_path / "s")
    assert mark.read() is None
    for number in (0, 7, 10**19):
        mark.write(number)
        assert mark.read() == number
    mark.close()


async def test_a_hole_that_a_power_failure_may_leave_without_syncs_is_only_reported(
    tmp_path: Path,
) -> None:
    crashed = await _crashed(tmp_path, Durability.OS)
    _flip(_log(crashed))

    store = _open(crashed, Durability.OS)

    assert 0 < _held(store) < ROWS
    await _commit(store, ROWS, 10)
    store.close()
    _open(crashed).close()


async def test_a_hole_in_what_was_answered_opens_if_the_loss_is_accepted(tmp_path: Path) -> None:
    crashed = await _crashed(tmp_path)
    _flip(_log(crashed))
    with pytest.raises(StoreFailed, match=r"Its log can be read up to change .* --accept-loss on"):
        _open(crashed)

    store = _open(crashed, accepts_loss=True)

    assert 0 < _held(store) < ROWS
    store.close()
    _open(crashed).close()


async def test_a_hole_in_the_log_is_not_dropped_where_the_note_is_damaged(tmp_path: Path) -> None:
    crashed = await _crashed(tmp_path)
    _flip(_log(crashed))
    crashed.with_name("crashed.answered").write_bytes(b"x")

    with pytest.raises(StoreFailed, match="answered is damaged"):
        _open(crashed)
    store = _open(crashed, accepts_loss=True)
    assert 0 < _held(store) < ROWS
    store.close()
