"""Keys that can be made out in a damaged block."""

from __future__ import annotations

from struct import pack

import pytest

from storage.engines.sst_block import keys_in

PUT, DELETION = b"\x01", b"\x00"


def entry(key: bytes, kind: bytes, value: bytes) -> bytes:
    named = key + kind + bytes(7)
    return bytes([0, len(named), len(value)]) + named + value


ENTRIES = entry(b"one", PUT, b"v") + entry(b"two", DELETION, b"")
BLOCK = ENTRIES + pack("<II", 0, 1)


def test_the_rows_and_deletions_of_a_block_are_named() -> None:
    assert [*keys_in(BLOCK)] == [(b"one", True), (b"two", False)]


@pytest.mark.parametrize("lost", [bytes(4096), b"", b"\0\0", ENTRIES + pack("<II", 0, 99)])
def test_a_block_without_readable_restart_points_names_nothing(lost: bytes) -> None:
    assert [*keys_in(lost)] == []
