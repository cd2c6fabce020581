"""Entries of a later version: a version that does not know them refuses, and forgets nothing."""

from __future__ import annotations

import pytest

from storage.engines.rocks import RocksRows
from storage.engines.rocks_view import RocksView
from storage.engines.store import StoreFailed
from storage.engines.store_options import log_folder
from storage.log import BEGINNING, NewerFormat, NotNext, Position, entry
from storage.log.entry import encode_entry, read_entry
from storage.tests.durable_stores import SMALL, Open, fill
from storage.tests.log_place import closed, synced, virtual
from storage.tests.test_replica_log import ReplicaPlace

SEED = 77


def _record(written_as: int) -> bytes:
    return encode_entry(
        b"body", (), SEED, term=1, index=1, previous=0, synced=0, written_as=written_as
    )[0]


def test_a_record_of_a_later_format_is_none_that_was_torn() -> None:
    with pytest.raises(NewerFormat, match="Entry 1 has format 2; this version of holdfast knows 1"):
        read_entry(_record(2), 0, SEED)


def test_a_record_of_a_later_format_is_damaged_if_a_bit_flipped() -> None:
    damaged = bytearray(_record(2))
    damaged[20] ^= 1

    assert isinstance(read_entry(bytes(damaged), 0, SEED), entry.Misfit)


@virtual
async def test_a_replica_s_log_is_refused_and_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = ReplicaPlace()
    log = place.open_replica()
    log.append_own(b"old", [1], term=1, committed=0, written_as=1)
    log.append_own(b"new", [1], term=1, committed=1, written_as=2)
    assert await synced(log) is None
    await closed(log)
    for _ in range(2):
        with pytest.raises(NewerFormat, match="Entry 2 has format 2"):
            place.open_replica()

    monkeypatch.setattr(entry, "NEWEST_FORMAT", 2)
    for _ in range(2):  # an opening copies Entries as they are
        place.open_replica()
        assert [(each.body, each.format) for each in place.read().entries()] == [
            (b"old", 1),
            (b"new", 2),
        ]
        place.disk.kill()


@virtual
async def test_a_replica_takes_no_entry_that_it_cannot_read() -> None:
    leader, follower = ReplicaPlace(), ReplicaPlace(1)
    sent = leader.open_replica().append_own(b"new", [], term=1, committed=0, written_as=2)
    log = follower.open_replica()

    with pytest.raises(NotNext, match="Entry 1 has format 2"):
        log.append_record(sent)

    assert log.last == BEGINNING


@virtual
async def test_a_log_begins_over_restored_rows() -> None:
    """They are as of an Entry that no log has."""
    place = ReplicaPlace()
    place.applied = Position(0, 1, 0xABCD)
    log = place.open_replica()
    assert (log.start, log.last) == (place.applied, place.applied)
    log.append_own(b"first", [], term=5, committed=0, written_as=1)
    assert await synced(log) is None
    last = log.last
    place.disk.kill()

    again = place.open_replica()

    assert (again.start, again.last) == (place.applied, last)
    assert last.index == 2


async def test_a_service_and_readers_refuse_the_folder(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as later:
        later.setattr(entry, "NEWEST_FORMAT", 2)
        later.setattr("storage.log.log.encode_entry", _encode_newer)
        store = opened()
        await fill(store, 1, 3)
        await store.abandon()
    folder = store.folder
    before = {file.name: file.read_bytes() for file in log_folder(folder).iterdir()}

    for accepts_loss in (False, True):
        with pytest.raises(StoreFailed, match=r"has format 2; .* Start a version that knows it"):
            opened(SMALL._replace(accepts_loss=accepts_loss))
    with pytest.raises((StoreFailed, OSError), match="has format 2"):
        RocksView(folder)

    assert {file.name: file.read_bytes() for file in log_folder(folder).iterdir()} == before
    RocksRows(folder).close()


def _encode_newer(*arguments: object, **named: object) -> tuple[bytes, int]:
    return encode_entry(*arguments, **{**named, "written_as": 2})  # type: ignore[arg-type]
