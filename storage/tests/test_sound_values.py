"""Values that are wrong in sound blocks: scrubs and checks of checkpoints find them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from storage.copies.checkpoint_files import check_rows_of
from storage.copies.scrub import Pace
from storage.engines.rocks import RocksRows
from storage.log import Position
from storage.tests.log_place import virtual
from storage.tests.test_scrub import RATE, Stage, in_thread, loop_s
from visibility.rows.row_changes import Ops
from visibility.rows.row_codec import DamagedRecord, encode_row
from visibility.rows.row_keys import (
    BLOCKED,
    CLOCK,
    DELAYED,
    GROUP_LINE,
    HEAD,
    QUARANTINED,
    group_key,
    group_line_key,
    message_key,
    pair_key,
    row_key,
)
from visibility.rows.row_values import NOWHERE, Quarantined

GROUP = b"g" * 16
DELAYED_KEY = pair_key(1, DELAYED, 5, 2)


def wrong_value(kind: str) -> bytes:
    """A value that RocksDB's own checksums cannot tell from a sound one."""
    sound = encode_row("a value")
    return {
        "version": b"\x02" + sound[1:],
        "checksum": sound[:-1] + bytes([sound[-1] ^ 1]),
        "short": sound[:3],
        "empty": b"",
    }[kind]


@pytest.mark.parametrize("kind", ["version", "checksum", "short", "empty"])
@virtual
async def test_a_value_that_is_wrong_in_a_sound_block_is_found(tmp_path: Path, kind: str) -> None:
    with closing(RocksRows(tmp_path)) as rows:
        rows.write([message_key(1, 1), wrong_value(kind)], Position(1, 2, 2))
        rows.flush()
    stage = Stage(tmp_path)

    await stage.scrub.scrub_once()

    assert [damage.place for damage in stage.damages] == ["rows"]
    with pytest.raises(DamagedRecord, match=message_key(1, 1).hex()):
        await check_rows_of(tmp_path, Pace(RATE, loop_s), in_thread)


@virtual
async def test_rows_without_a_checksum_are_sound(tmp_path: Path) -> None:
    ops: Ops = [pair_key(1, CLOCK, 5, 1), b"", row_key(1, HEAD, 1), GROUP]
    ops += [group_line_key(1, GROUP_LINE, GROUP, 1), b""]
    with closing(RocksRows(tmp_path)) as rows:
        rows.write(ops, Position(1, 2, 2))
        rows.flush()
    stage = Stage(tmp_path)

    await stage.scrub.scrub_once()

    assert not stage.damages


@pytest.mark.parametrize(
    ("key", "by", "record"),
    [
        (message_key(1, 2), row_key(1, QUARANTINED, 0), Quarantined(0, 1, 0, [2])),
        (message_key(1, 2), row_key(1, QUARANTINED, 0), Quarantined(0, 1, 0, gaps=[(2, 3)])),
        (
            DELAYED_KEY,
            row_key(1, QUARANTINED, NOWHERE),
            Quarantined(NOWHERE, 1, 0, delayed=[(DELAYED_KEY[9:], DELAYED_KEY[9:] + b"\0")]),
        ),
        (group_line_key(1, GROUP_LINE, GROUP, 2), group_key(1, BLOCKED, GROUP), 5),
    ],
    ids=["damaged", "gap", "delayed", "group"],
)
@virtual
async def test_a_wrong_value_that_is_quarantined_is_no_damage_any_more(
    tmp_path: Path, key: bytes, by: bytes, record: object
) -> None:
    """Its row stays until the quarantine ends: no scrub may have all be fetched again for it."""
    with closing(RocksRows(tmp_path)) as rows:
        rows.write([key, wrong_value("checksum")], Position(1, 2, 2))
        rows.flush()
        stage = Stage(tmp_path)
        await stage.scrub.scrub_once()
        assert len(stage.damages) == 1
        rows.write([by, encode_row(record)], Position(1, 3, 3))
        rows.flush()

        await stage.scrub.scrub_once()
        assert len(stage.damages) == 1

        rows.write([message_key(1, 3), wrong_value("checksum")], Position(1, 4, 4))
        rows.flush()
        await stage.scrub.scrub_once()
        assert len(stage.damages) == 2, "its neighbour is not quarantined"
