"""Rows are made anew beside damaged ones: what a disk without room and a kill at any step leave."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from storage.checks.consistency import check_queue
from storage.engines.fresh_rows import damaged_of, finish_switch, fresh_of, has_damage
from storage.engines.rocks import RocksRows
from storage.engines.store import StoreFailed
from storage.files.refusing_disk import disk_refusal
from storage.rows.stored_rows import StoredRows
from visibility.contract.stored_message import StoredMessage
from visibility.rows.row_changes import Changes, Ops
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import (
    DELAYED,
    MESSAGE,
    SPAN,
    message_key,
    pair_key,
    queue_key,
    row_key,
    table_range,
)
from visibility.rows.row_values import THE_SHARD
from visibility.rules.quarantine import quarantine_in

QUEUE = 1
MESSAGES, LATE = 2_000, 500
_LAST_OF_BLOCK = row_key(QUEUE, SPAN, 0)


def message(number: int) -> bytes:
    group = group_of(number)
    return encode_row(StoredMessage(str(number), 1, 500, b"%d" % number * 100, group=group))


def group_of(number: int) -> bytes:
    return b"%016d" % (number % 7)


def late_key(number: int) -> bytes:
    return pair_key(QUEUE, DELAYED, 1_000_000 + number, number)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A queue in an old file. A newer one has some of its rows again, all in one damaged block."""
    folder = tmp_path / "shard-0"
    rows, changes = RocksRows(folder), Changes()
    for number in range(1, MESSAGES + 1):
        changes.put(message_key(QUEUE, number), message(number))
    for number in range(MESSAGES + 1, MESSAGES + LATE + 1):
        changes.put(late_key(number), message(number))
    rows.write(changes.ops)
    rows.heal({QUEUE: True})  # makes all that follows from the messages
    shutil.rmtree(damaged_of(folder))
    again: Ops = []
    for key in (queue_key(QUEUE), message_key(QUEUE, 1000), _LAST_OF_BLOCK):
        value = rows.get(key)
        assert value is not None
        again += [key, value]
    rows.write(again)
    rows.flush()
    rows.close()
    newest = max(folder.glob("*.sst"))
    content = bytearray(newest.read_bytes())
    content[content.index(b"1000" * 100)] ^= 1
    newest.write_bytes(content)
    return folder


def sequences(rows: RocksRows, table: bytes) -> list[int]:
    return [int.from_bytes(key[-8:]) for key, _ in rows.scan(*table_range(QUEUE, table))]


def test_all_rows_of_other_files_between_those_of_a_damaged_block_are_kept(damaged: Path) -> None:
    rows = RocksRows(damaged)

    healed, *of_shard = rows.heal({QUEUE: True})

    assert sequences(rows, MESSAGE) == [n for n in range(1, MESSAGES + 1) if n != 1000]
    assert sequences(rows, DELAYED) == [*range(MESSAGES + 1, MESSAGES + LATE + 1)]
    assert {each.queue_id for each in of_shard} == {THE_SHARD}, "its tables may have been there"
    assert (healed.queue_id, str(healed.missing)) == (
        QUEUE,
        f"{MESSAGES + LATE - 1} messages can be read, at least 1 missing",
    )
    quarantine = quarantine_in(StoredRows(rows), QUEUE)
    assert quarantine.lost == 1
    assert [*quarantine.groups] == [group_of(1000)]
    assert [*check_queue(rows, QUEUE)] == []
    rows.close()
    assert damaged_of(damaged).is_dir()
    assert not fresh_of(damaged).exists()


def test_a_queue_in_blocks_of_zeros_is_named(damaged: Path) -> None:
    """RocksDB takes such a block for an empty one if it does not look at its checksum."""
    newest = max(damaged.glob("*.sst"))
    content = newest.read_bytes()
    newest.write_bytes(bytes(1000) + content[1000:])
    rows = RocksRows(damaged)

    assert QUEUE in [each.queue_id for each in rows.heal({QUEUE: True})]

    rows.close()


def test_a_disk_without_room_is_named_and_nothing_is_changed(
    damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = RocksRows(damaged)
    before = sorted(damaged.rglob("*"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 10))

    for ask in (lambda: rows.heal({}), lambda: rows.note_damage(QUEUE, "")):
        with pytest.raises(
            StoreFailed, match=r"its disk has 0 MiB free.*`holdfast salvage"
        ) as said:
            ask()
        assert "\n" not in str(said.value)
        assert disk_refusal(said.value) == f"no space on {damaged.parent}"
    assert sorted(damaged.rglob("*")) == before
    assert not has_damage(damaged)
    assert not fresh_of(damaged).exists()
    rows.write([b"later", b"1"])
    assert rows.get(b"later") == b"1"
    rows.close()


def test_the_rows_of_an_earlier_damage_go_if_their_room_is_needed(
    damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged_of(damaged).mkdir()
    (damaged_of(damaged) / "earlier").write_bytes(b"")
    monkeypatch.setattr(
        shutil,
        "disk_usage",
        lambda _: SimpleNamespace(
            free=0 if (damaged_of(damaged) / "earlier").exists() else 1 << 40
        ),
    )
    rows = RocksRows(damaged)

    assert rows.heal({QUEUE: False})

    rows.close()


def test_a_queue_that_a_request_met_damage_in_is_rebuilt_once(damaged: Path) -> None:
    rows = RocksRows(damaged)
    rows.note_damage(QUEUE, "")
    assert has_damage(damaged)
    assert rows.heal({QUEUE: False})[0].queue_id == QUEUE
    assert not rows.needs_healing
    assert rows.heal({QUEUE: False}) == []
    rows.close()


@pytest.mark.parametrize(
    ("there", "left"),
    [
        (["shard-0", "shard-0.fresh"], "shard-0"),  # killed while rows were written
        (["shard-0.fresh", "shard-0.damaged"], "shard-0.fresh"),  # between the two renames
        (["shard-0", "shard-0.damaged"], "shard-0"),
    ],
)
def test_a_start_after_a_kill_finds_the_rows_that_were_whole(
    tmp_path: Path, there: list[str], left: str
) -> None:
    for name in there:
        (tmp_path / name).mkdir()
        (tmp_path / name / "of").write_text(name)

    finish_switch(tmp_path / "shard-0")

    assert (tmp_path / "shard-0" / "of").read_text() == left
    assert not (tmp_path / "shard-0.fresh").exists()
