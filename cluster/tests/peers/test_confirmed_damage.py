"""Rows that a host cannot read are damaged at the host that gave them only if that host says so.

Rule 20: a host that believes that no other has a good copy removes messages from all copies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from cluster.peers.checkpoint_fetch import NoGoodCopy
from cluster.peers.checkpoint_messages import Begin, Check, End, Keep, Read
from cluster.peers.link import Call
from cluster.peers.peer_settings import Channel
from cluster.tests.peers.checkpoint_stage import CheckpointHost, hosts, read_all, rows_of
from cluster.tests.virtual_time import virtual
from cluster.tests.world import pass_time
from storage.copies.replaced_rows import incoming_of
from storage.engines.store import StoreFailed
from storage.log import Position
from visibility.rows.row_codec import DamagedRecord

_decode_as_before = msgspec.msgpack.Decoder(Begin | Read | Keep | End).decode
"""Of a version that does not know `Check`."""


async def _flipping(folder: Path) -> Position:
    """This host's disk gives back another bit than was written."""
    _flip(folder)
    return await read_all(folder)


def _flip(folder: Path) -> None:
    file = max(folder.glob("*.sst"), key=lambda each: each.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


async def _without_space(folder: Path) -> Position:
    raise StoreFailed(f"cannot open {folder}: IO error: No space left on device")


async def _now_and_then(folder: Path) -> Position:
    """A disk that gives wrong bits to some reads only."""
    raise DamagedRecord(b"key", "a block behind it cannot be read: Corruption: block checksum")


@pytest.mark.parametrize("read", [_flipping, _without_space])
@virtual
async def test_a_fault_of_the_own_disk_is_waited_for(
    tmp_path: Path, read: Callable[[Path], Awaitable[Position]]
) -> None:
    async with hosts(tmp_path) as (a, b, c):
        before = rows_of(b.open())
        c.open()
        a.check_rows = read
        fetching = asyncio.create_task(a.fetch("b", "c").run())
        with capture_logs() as logs:
            await pass_time(20)
        assert not fetching.done()
        assert set(a.begun()) == {"b"}, "another host would not help"
        assert not _checks(a), "and no host is suspected"
        assert "checkpoint_not_written" in {line["event"] for line in logs}
        assert not incoming_of(a.folder).exists()

        a.check_rows = read_all
        replaced = await fetching

        assert a.no_good_copies == 0
        assert a.fetched(replaced) == before


@pytest.mark.slow
@virtual
async def test_rows_that_are_sound_where_they_come_from_are_not_called_damaged(
    tmp_path: Path,
) -> None:
    async with hosts(tmp_path) as (a, b, c):
        b.open()
        before = rows_of(c.open())
        a.check_rows = _now_and_then
        fetching = asyncio.create_task(a.fetch("b", "c").run())
        with capture_logs() as logs:
            await pass_time(20)
        assert not fetching.done()
        assert set(_checks(a)) == {"b", "c"}
        failed = [line for line in logs if line["event"] == "checkpoint_not_fetched"]
        assert [line["host"] for line in failed] == ["b", "c"], "once each"
        assert {line["reason"] for line in failed} == {
            "its rows are sound there, but cannot be read here"
        }

        b.files.wrong_reads = 1 << 30
        a.check_rows = read_all
        replaced = await fetching

        assert a.no_good_copies == 0
        assert a.fetched(replaced) == before


@pytest.mark.slow
@virtual
async def test_a_host_that_cannot_confirm_the_damage_may_have_a_good_copy(tmp_path: Path) -> None:
    async with hosts(tmp_path) as (a, b, c):
        b.open().flip()
        c.open().flip()
        b.check_rows = _without_space
        fetching = asyncio.create_task(a.fetch("b", "c").run())
        await pass_time(100)
        assert a.no_good_copies == 0
        assert not fetching.done()

        b.check_rows = read_all
        with pytest.raises(NoGoodCopy):
            await fetching

        assert a.no_good_copies == 1


@pytest.mark.slow
@virtual
async def test_an_older_host_that_does_not_know_the_question_is_not_called_damaged(
    tmp_path: Path,
) -> None:
    async with hosts(tmp_path) as (a, b, c):
        b.open().flip()
        c.open().flip()
        service = b.peer.transport._services[Channel.CHECKPOINTS]
        service.on_request = partial(_as_before, b)
        fetching = asyncio.create_task(a.fetch("b", "c").run())
        with capture_logs() as logs:
            await pass_time(100)
        assert a.no_good_copies == 0
        assert not fetching.done()
        refused = [line for line in logs if line["event"] == "request_failed"]
        assert len(refused) == _checks(a).count("b"), "it is asked once each time"
        assert len(refused) == a.begun().count("b")

        service.on_request = b.checkpoints._received
        with pytest.raises(NoGoodCopy):
            await fetching


def _as_before(host: CheckpointHost, call: Call) -> None:
    _decode_as_before(call.body)
    host.checkpoints._received(call)


def _checks(host: CheckpointHost) -> list[str]:
    """The hosts that were asked to read what they gave."""
    return [asked for asked, request in host.asked if isinstance(request, Check)]
