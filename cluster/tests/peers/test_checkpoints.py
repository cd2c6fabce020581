"""Giving checkpoints: shared by several hosts, bounded, and removed when no host needs them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cluster.peers import checkpoint_messages
from cluster.peers.peer_outcomes import Outcome, Reason, Refused
from cluster.tests.peers.checkpoint_stage import (
    CHECKPOINTS,
    CHUNK,
    LOG_ID,
    SHARD,
    CheckpointHost,
    hosts,
)
from cluster.tests.virtual_time import virtual
from cluster.tests.world import pass_time
from storage.copies.checkpoint_files import SystemFiles
from storage.copies.replaced_rows import outgoing_of, remove_outgoing
from storage.engines.store import StoreFailed
from storage.log import Position


async def begin(host: CheckpointHost, at: str, at_least: int = 0) -> checkpoint_messages.Manifest:
    outcome = await host.ask(at, checkpoint_messages.Begin(SHARD, LOG_ID, at_least), 60)
    assert isinstance(outcome, bytes)
    return checkpoint_messages.decode_manifest(outcome)


async def read(
    host: CheckpointHost, at: str, manifest: checkpoint_messages.Manifest, **changed: int
) -> Outcome:
    place = max(range(len(manifest.files)), key=lambda each: manifest.files[each].size)
    given = {"number": manifest.number, "file": place, "offset": 0, "size": CHUNK} | changed
    return await host.ask(at, checkpoint_messages.Read(SHARD, **given), 60)


@virtual
async def test_hosts_that_ask_at_about_the_same_time_share_a_checkpoint(tmp_path: Path) -> None:
    async with hosts(tmp_path, "abcd") as (a, b, c, d):
        shard = d.open()
        first, second = await asyncio.gather(begin(a, "d"), begin(b, "d"))
        assert first == second

        shard.write()
        await pass_time(CHECKPOINTS.shared_s + 1)
        third = await begin(c, "d")

        assert third.position.index == first.position.index + 1
        assert shard.made == len(d.outgoing()) == 2
        await a.ask("d", checkpoint_messages.End(SHARD, first.number), 60)
        await pass_time(0.1)
        assert len(d.outgoing()) == 2
        assert isinstance(await read(b, "d", second), bytes)
        await b.ask("d", checkpoint_messages.End(SHARD, first.number), 60)
        await pass_time(0.1)
        assert len(d.outgoing()) == 1


@virtual
async def test_a_host_has_one_checkpoint_of_a_shard_at_a_time(tmp_path: Path) -> None:
    async with hosts(tmp_path, "ab") as (a, b):
        shard = b.open()
        first = await begin(a, "b")
        shard.write()

        second = await begin(a, "b", at_least=first.position.index + 1)
        await pass_time(0.1)

        assert len(b.outgoing()) == 1
        assert isinstance(await read(a, "b", second), bytes)
        assert await read(a, "b", first) == Refused(checkpoint_messages.Refusal.NO_CHECKPOINT)


@virtual
async def test_what_was_not_begun_or_is_too_large_is_refused(tmp_path: Path) -> None:
    async with hosts(tmp_path) as (a, b, c):
        b.open()
        other_log = await a.ask("b", checkpoint_messages.Begin(SHARD, b"o" * 16, 0), 60)
        assert other_log == Refused(Reason.OTHER_LOG)
        older = await a.ask("b", checkpoint_messages.Begin(SHARD, LOG_ID, 6), 60)
        assert older == Refused(checkpoint_messages.Refusal.OLDER, "its rows are of Entry 5")
        elsewhere = await a.ask("c", checkpoint_messages.Begin(SHARD, LOG_ID, 0), 60)
        assert elsewhere == Refused(checkpoint_messages.Refusal.NO_SHARD)
        assert not b.outgoing()
        manifest = await begin(a, "b")

        assert await read(c, "b", manifest) == Refused(checkpoint_messages.Refusal.NO_CHECKPOINT)
        for changed in ({"size": CHUNK + 1}, {"size": 0}, {"file": 99}, {"offset": 1 << 40}):
            outcome = await read(a, "b", manifest, **changed)
            assert outcome == Refused(
                checkpoint_messages.Refusal.UNREADABLE, "there are no such bytes"
            )
        many = await asyncio.gather(*(read(a, "b", manifest) for _ in range(100)))
        refused = [each for each in many if not isinstance(each, bytes)]
        assert set(refused) == {Refused(Reason.BUSY)}
        assert len(many) - len(refused) == 2 * CHECKPOINTS.chunks_max


@virtual
async def test_rows_that_the_others_do_not_go_on_from_are_refused(tmp_path: Path) -> None:
    """The others lost Entries that these rows have: with them one more host would follow no more.
    A host of an older version asks the next host after any refusal."""
    async with hosts(tmp_path, "ab") as (a, b):
        b.open().conflict = "up to 9"

        refused = await a.ask("b", checkpoint_messages.Begin(SHARD, LOG_ID, 0), 60)

        assert refused == Refused(checkpoint_messages.Refusal.CONFLICT, "up to 9")
        assert not b.outgoing()


@virtual
async def test_a_silent_host_loses_its_checkpoint(tmp_path: Path) -> None:
    async with hosts(tmp_path, "ab") as (a, b):
        b.open()
        manifest = await begin(a, "b")
        await pass_time(CHECKPOINTS.silence_s - 5)
        await read(a, "b", manifest)
        await pass_time(CHECKPOINTS.silence_s - 5)
        assert b.outgoing()

        await pass_time(CHECKPOINTS.silence_s)

        assert not b.outgoing()
        assert await read(a, "b", manifest) == Refused(checkpoint_messages.Refusal.NO_CHECKPOINT)


@virtual
async def test_the_log_is_kept_from_the_beginning_on(tmp_path: Path) -> None:
    async with hosts(tmp_path, "ab") as (a, b):
        shard = b.open(5)
        manifest = await begin(a, "b")
        shard.write(5)
        assert shard.holds.limit(10, lambda index: 0) == 5

        await pass_time(50)
        await read(a, "b", manifest)
        await pass_time(50)
        assert shard.holds.limit(10, lambda index: 0) == 5
        await pass_time(20)
        assert shard.holds.limit(10, lambda index: 0) == 10


@virtual
async def test_a_shard_that_is_closed_while_a_checkpoint_is_made_refuses_it(tmp_path: Path) -> None:
    async with hosts(tmp_path, "ab") as (a, b):
        shard = b.open()
        b.work_s = 1.0
        asking = asyncio.create_task(a.ask("b", checkpoint_messages.Begin(SHARD, LOG_ID, 0), 60))
        await pass_time(2.5)
        assert shard.made
        assert not asking.done()

        await b.checkpoints.leave(SHARD)

        assert not b.outgoing()
        assert await asking == Refused(checkpoint_messages.Refusal.NO_CHECKPOINT)


@virtual
async def test_a_checkpoint_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    async with hosts(tmp_path, "ab") as (a, b):
        b.open().is_failing = True

        outcome = await a.ask("b", checkpoint_messages.Begin(SHARD, LOG_ID, 0), 60)

        assert outcome == Refused(checkpoint_messages.Refusal.NOT_MADE, "the disk is full")
        await pass_time(0.1)
        assert not b.outgoing()


async def check(
    host: CheckpointHost, at: str, manifest: checkpoint_messages.Manifest
) -> checkpoint_messages.Checked | Refused:
    """Asked until it is over."""
    while True:
        outcome = await host.ask(at, checkpoint_messages.Check(SHARD, manifest.number), 60)
        if isinstance(outcome, Refused):
            return outcome
        assert isinstance(outcome, bytes)
        checked = checkpoint_messages.decode_checked(outcome)
        if checked.is_over:
            return checked
        await asyncio.sleep(0.1)


@virtual
async def test_a_host_says_if_the_rows_that_it_gave_are_damaged(tmp_path: Path) -> None:
    async with hosts(tmp_path) as (a, b, c):
        b.open()
        c.open().flip()
        sound, damaged = await begin(a, "b"), await begin(a, "c")

        assert await check(a, "b", sound) == checkpoint_messages.Checked(True, "")
        found = await check(a, "c", damaged)

        assert isinstance(found, checkpoint_messages.Checked)
        assert "Corruption" in found.damage
        assert await check(c, "b", sound) == Refused(checkpoint_messages.Refusal.NO_CHECKPOINT)


@virtual
async def test_a_host_that_cannot_read_its_rows_does_not_call_them_damaged(tmp_path: Path) -> None:
    async def fail(folder: Path) -> Position:
        raise StoreFailed("IO error: No space left on device")

    async with hosts(tmp_path, "ab") as (a, b):
        b.open()
        b.check_rows = fail
        manifest = await begin(a, "b")

        outcome = await check(a, "b", manifest)

        assert outcome == Refused(
            checkpoint_messages.Refusal.NOT_CHECKED, "IO error: No space left on device"
        )


@virtual
async def test_rows_that_are_not_needed_any_more_are_read_no_further(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def read_for_long(folder: Path) -> Position:
        begun.set()
        await asyncio.sleep(10_000)
        raise AssertionError("it is cancelled")

    async with hosts(tmp_path, "ab") as (a, b):
        b.open()
        b.check_rows = read_for_long
        manifest = await begin(a, "b")
        checking = asyncio.create_task(check(a, "b", manifest))
        await begun.wait()
        await pass_time(2 * CHECKPOINTS.silence_s)
        assert b.outgoing(), "a host that asks is not silent"

        await a.ask("b", checkpoint_messages.End(SHARD, manifest.number), 60)
        await pass_time(0.2)

        assert not b.outgoing()
        assert await checking == Refused(checkpoint_messages.Refusal.NO_CHECKPOINT)


def test_a_start_removes_what_a_crash_left(tmp_path: Path) -> None:
    folder, other = tmp_path / "shard-1", tmp_path / "shard-10"
    for each in (folder, other, outgoing_of(folder, 7), outgoing_of(other, 7)):
        each.mkdir()
        (each / "000001.sst").touch()

    remove_outgoing(SystemFiles(), folder)

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "shard-1",
        "shard-10",
        "shard-10.outgoing-7",
    ]
