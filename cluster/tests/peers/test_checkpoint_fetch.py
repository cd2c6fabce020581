"""Fetching a checkpoint: the rows are those of the source, through lost connections and damage."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cluster.peers.checkpoint_fetch import NoGoodCopy
from cluster.peers.checkpoint_messages import Keep, Read, Request
from cluster.peers.peer_outcomes import Outcome
from cluster.tests.peers.checkpoint_stage import (
    CHECKPOINTS,
    CHUNK,
    LOG_ID,
    SourceShard,
    hosts,
    loop_s,
    rows_of,
)
from cluster.tests.virtual_time import virtual
from cluster.tests.world import pass_time
from storage.copies.replaced_rows import incoming_of, replace_rows
from storage.log import Position


@virtual
async def test_the_rows_are_those_of_the_source_at_its_position(tmp_path: Path) -> None:
    async with hosts(tmp_path) as (a, b, _):
        shard = b.open()
        before = rows_of(shard)
        a.write_s = 0.01
        fetching = asyncio.create_task(a.fetch("b", leader="b").run())
        await pass_time(0.01)
        assert shard.made
        for _ in range(20):
            await pass_time(0.01)
            shard.write()
            shard.rows.flush()

        replaced = await fetching

        assert (replaced.log_id, replaced.position) == (LOG_ID, Position(1, 5, 5))
        assert a.fetched(replaced) == before
        assert shard.applied_index() == 25
        assert not b.outgoing()


@virtual
async def test_the_rows_take_the_place_of_the_own_ones_and_change_from_there(
    tmp_path: Path,
) -> None:
    async with hosts(tmp_path) as (a, b, _):
        source = b.open(10)
        own = SourceShard(a.folder)
        own.write(3)
        own.rows.flush()
        replaced = await a.fetch("b", at_least=3).run()
        own.rows.close()

        replace_rows(a.files, a.folder, replaced)

        a.shard = SourceShard(a.folder)
        assert rows_of(a.shard) == rows_of(source)
        for shard in (a.shard, source):
            shard.write(2)
            shard.rows.flush()
        assert rows_of(a.shard) == rows_of(source)
        assert a.shard.applied_index() == 12


@virtual
async def test_a_slow_disk_slows_the_source_down(tmp_path: Path) -> None:
    async with hosts(tmp_path) as (a, b, _):
        b.open(20)
        a.write_s = 0.1

        await a.fetch("b").run()

        reads = [request for _, request in a.asked if isinstance(request, Read)]
        assert len(reads) > 100
        assert a.under_way_max == CHECKPOINTS.chunks_max
        assert max(read.size for read in reads) == CHUNK
        assert loop_s() > len(reads) / CHECKPOINTS.chunks_max * a.write_s


@virtual
async def test_a_lost_connection_is_waited_for(tmp_path: Path) -> None:
    async with hosts(tmp_path) as (a, b, c):
        before = rows_of(b.open(20))
        c.open(20)
        a.write_s = 0.01
        fetching = asyncio.create_task(a.fetch("b", "c").run())
        await pass_time(0.3)
        for end in a.peer.network.whole.open_ends("a", "b"):
            end.abort()
        await pass_time(0.3)

        replaced = await fetching

        assert a.fetched(replaced) == before
        assert a.begun() == ["b"]


@virtual
async def test_a_source_that_is_gone_is_replaced_by_another(tmp_path: Path) -> None:
    async with hosts(tmp_path) as (a, b, c):
        b.open(20)
        before = rows_of(c.open(21))
        a.write_s = 0.01
        fetching = asyncio.create_task(a.fetch("b", "c").run())
        await pass_time(0.3)
        assert any(request for _, request in a.asked if isinstance(request, Read))
        network = a.peer.network.whole
        network.cut("a", "b")
        network.cut("b", "a")

        replaced = await fetching

        assert a.fetched(replaced) == before
        assert set(a.begun()) == {"b", "c"}


@pytest.mark.parametrize("wrong", [1, 2])
@virtual
async def test_a_file_that_is_wrong_twice_is_fetched_elsewhere(tmp_path: Path, wrong: int) -> None:
    async with hosts(tmp_path) as (a, b, c):
        for host in (b, c):
            host.open(1)
        assert b.shard is not None
        b.files.wrong_reads = wrong

        with capture_logs() as logs:
            replaced = await a.fetch("b", "c").run()

        events = [line["event"] for line in logs]
        assert events.count("checkpoint_file_damaged") == 1
        assert a.begun() == ["b"]
        b.files.wrong_reads = 1 << 30
        with capture_logs() as logs:
            replaced = await a.fetch("b", "c").run()
        events = [line["event"] for line in logs]
        assert events.count("checkpoint_file_damaged") == 2
        assert a.begun() == ["b", "b", "c"]
        assert c.shard is not None
        assert a.fetched(replaced) == rows_of(c.shard)
        b.files.wrong_reads = 0


@virtual
async def test_rows_that_are_damaged_at_the_source_are_fetched_elsewhere(tmp_path: Path) -> None:
    async with hosts(tmp_path) as (a, b, c):
        b.open().flip()
        sound = c.open()

        with capture_logs() as logs:
            replaced = await a.fetch("b", "c").run()

        assert a.begun() == ["b", "c"]
        (failed,) = [line for line in logs if line["event"] == "checkpoint_not_fetched"]
        assert failed["host"] == "b"
        assert "its rows are damaged" in failed["reason"]
        assert a.fetched(replaced) == rows_of(sound)


@virtual
async def test_if_all_other_hosts_have_damaged_rows_there_is_no_good_copy(tmp_path: Path) -> None:
    async with hosts(tmp_path) as (a, b, c):
        b.open().flip()
        damaged = c.open()
        damaged.flip()
        damaged.is_failing = True
        fetching = asyncio.create_task(a.fetch("b", "c").run())
        await pass_time(30.0)
        before = a.no_good_copies  # c may have a good one
        damaged.is_failing = False

        with pytest.raises(NoGoodCopy):
            await fetching

        assert (before, a.no_good_copies) == (0, 1)


@virtual
async def test_a_source_without_the_shard_or_with_a_failing_disk_is_passed_by(
    tmp_path: Path,
) -> None:
    async with hosts(tmp_path, "abcd") as (a, _, c, d):
        c.open().is_failing = True
        sound = d.open()

        replaced = await a.fetch("b", "c", "d").run()

        assert a.begun() == ["b", "c", "d"]
        assert a.fetched(replaced) == rows_of(sound)


@virtual
async def test_a_full_disk_is_tried_again_and_holds_nothing_meanwhile(tmp_path: Path) -> None:
    async with hosts(tmp_path) as (a, b, _):
        shard = b.open()
        a.files.is_full = True
        fetching = asyncio.create_task(a.fetch("b", "c").run())
        await pass_time(20)
        assert not fetching.done()
        assert 3 <= len(a.begun()) <= 10
        assert not incoming_of(a.folder).exists()
        assert set(a.begun()) == {"b"}, "another host would not help"

        a.files.is_full = False
        replaced = await fetching

        assert a.fetched(replaced) == rows_of(shard)


@virtual
async def test_a_checkpoint_that_would_fill_the_disk_is_not_begun_to_be_written(
    tmp_path: Path,
) -> None:
    async with hosts(tmp_path) as (a, b, _):
        b.open()
        a.files.freed = CHECKPOINTS.reserve_bytes + 1000
        fetching = asyncio.create_task(a.fetch("b").run())
        await pass_time(5)
        assert not [request for _, request in a.asked if isinstance(request, Read)]

        a.files.freed = None

        await fetching


@virtual
async def test_a_fetch_that_is_cancelled_leaves_no_checkpoint_at_the_source(tmp_path: Path) -> None:
    async with hosts(tmp_path) as (a, b, _):
        b.open(20)
        a.write_s = 0.1
        fetching = asyncio.create_task(a.fetch("b").run())
        await pass_time(1)
        assert b.outgoing()

        fetching.cancel()
        await asyncio.wait([fetching])
        await pass_time(1)

        assert fetching.cancelled()
        assert not b.outgoing()


# -- the leader's log ------------------------------------------------------------------------------


@pytest.mark.slow
@virtual
async def test_the_leader_keeps_its_log_while_a_follower_gives_the_rows(tmp_path: Path) -> None:
    async with hosts(tmp_path) as (a, b, c):
        b.open(20)
        leader = c.open(30)
        a.write_s = 5.0

        fetching = asyncio.create_task(a.fetch("b", "c", leader="c").run())
        await pass_time(100)

        assert not fetching.done()
        assert leader.holds.limit(30, lambda index: 0) == 20
        assert [host for host, request in a.asked if isinstance(request, Keep)][:2] == ["c", "c"]
        fetching.cancel()
        await asyncio.wait([fetching])
        await pass_time(70)
        assert leader.holds.limit(30, lambda index: 0) == 30


@virtual
async def test_rows_before_the_leaders_log_are_fetched_from_a_host_with_later_ones(
    tmp_path: Path,
) -> None:
    async with hosts(tmp_path) as (a, b, c):
        b.open(3)
        leader = c.open(10)
        leader.start = 5

        replaced = await a.fetch("b", "c", leader="c").run()

        assert a.begun() == ["b", "c"]
        assert replaced.position.index == 10
        assert not [host for host, request in a.asked if isinstance(request, Read) and host == "b"]


@virtual
async def test_an_unreadable_answer_of_the_leader_does_not_end_the_fetch(tmp_path: Path) -> None:
    async with hosts(tmp_path) as (a, b, c):
        b.open(5)
        c.open(5)
        over_transport = a.ask_transport

        async def ask(host: str, request: Request, timeout_s: float, /) -> Outcome:
            if isinstance(request, Keep):
                return b"\xc1"
            return await over_transport(host, request, timeout_s)

        a.ask_transport = ask
        replaced = await a.fetch("b", leader="c").run()
        assert replaced.position.index == 5


@virtual
async def test_a_change_of_leaders_does_not_end_the_fetch(tmp_path: Path) -> None:
    async with hosts(tmp_path) as (a, b, c):
        b.open(20)
        later = c.open(20)
        a.write_s = 1.0
        fetching = asyncio.create_task(a.fetch("b", "c", leader="b").run())
        await pass_time(20)

        a.known_leader = "c"
        replaced = await fetching

        assert a.begun() == ["b"]
        assert later.holds.limit(30, lambda index: 0) == replaced.position.index == 20


@virtual
async def test_only_rows_that_reach_up_to_the_own_log_are_taken(tmp_path: Path) -> None:
    async with hosts(tmp_path) as (a, b, c):
        b.open(4)
        c.open(6)

        replaced = await a.fetch("b", "c", at_least=5).run()

        assert replaced.position.index == 6
        assert a.begun() == ["b", "c"]
