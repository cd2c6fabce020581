"""Damaged rows of outboxes: each lost message is counted, and the others still cross."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from cluster.tests.driver import Driver
from cluster.tests.shard_pair import ShardPair, in_shard
from cluster.tests.test_damaged_blocks import at, flip_one
from cluster.tests.test_healing import Served
from cluster.tests.world import FragileStore
from storage.checks.consistency import check_queue, check_shard
from storage.checks.missing import count_missing
from storage.checks.readable_rows import ReadableRows
from storage.healing.rebuild import Healed
from storage.healing.salvaged_queue import QueueCopy, Target
from storage.rows.damage import check_rows
from storage.tests.memory_store import MemoryStore
from storage.tests.on_disk import rows_of
from visibility.contract.model import QueueCounters, QueueDefinition
from visibility.rows.row_codec import DamagedRecord
from visibility.rows.row_keys import ARRIVAL, DEPARTURE, message_key
from visibility.rows.row_values import THE_SHARD
from visibility.rules.move_tasks import MoveSelected
from visibility.rules.outbox_tables import salvage_outbox
from visibility.rules.tables import Finding
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

NONE = QueueCounters(0, 0, 0)


@pytest.fixture(params=["", ".fifo"], ids=["standard", "fifo"])
def pair(request: pytest.FixtureRequest) -> ShardPair:
    return ShardPair(request.param)


def departures_of(store: MemoryStore) -> list[bytes]:
    return sorted(key for key in store.rows if key[8:9] == DEPARTURE)


def test_a_refused_message_returns_to_its_place_among_quarantined_ones(
    pair: ShardPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FragileStore(auto_sync=True)
    pair.shards[1] = Driver(pair.queues, store=store, seed=1)
    pair.send("a", "b", "c", to=pair.letters)
    request = prepared.start_move_task(pair.letters, pair.source)
    request = msgspec.structs.replace(request, operation=MoveSelected(sequences=[2]))
    pair.shards[1].submit(request)
    store.unreadable = {message_key(2, 1), message_key(2, 3)}
    monkeypatch.setattr(pair, "check", lambda: None)  # it reads all rows
    pair.restart(1)
    assert pair.receive(pair.letters) == []

    del pair.queues.queues[pair.source.queue_id]
    pair.deliver(1)

    quarantined = pair.shards[1].state.queue(2).quarantined
    if pair.group:  # its group is blocked
        assert (quarantined.lost, quarantined.blocked) == (2, 1)
        assert pair.counters(pair.letters) == NONE
    else:
        assert (quarantined.lost, pair.counters(pair.letters)) == (2, QueueCounters(1, 0, 0))
        assert pair.receive(pair.letters) == ["b"]
    store.unreadable = set()
    monkeypatch.undo()
    pair.check()
    pair.restart(1)
    pair.check()


def test_a_salvage_keeps_outboxes_and_their_locks(pair: ShardPair) -> None:
    pair.spend("a")
    pair.send("b")
    pair.receive(pair.source, 1)
    page = pair.read()
    for shard in pair.shards:
        before = ReadableRows(shard.store)
        copy = MemoryStore()
        target = Target(lambda changes, copy=copy: copy.apply(changes))  # type: ignore[misc]
        for queue_id in (1, 2):
            QueueCopy(before, target, queue_id, fifo=pair.group is not None).run()
        salvage_outbox(before, target.put)
        target.write()
        shard.store = copy
    for number in (0, 1):
        pair.restart(number)
    pair.check()

    assert pair.read().arrivals == page.arrivals
    if pair.group:
        assert pair.receive(pair.source) == []
    pair.deliver()
    if pair.group:
        assert pair.receive(pair.source) == ["b"]
    assert pair.receive(pair.letters) == ["a"]


def _damage(store: MemoryStore, key: bytes) -> None:
    store.rows[key] = store.rows[key][:-1] + b"\1"
    assert [found.key for found in check_rows(store) if isinstance(found, Finding)] == [key]


def _lose(store: MemoryStore, key: bytes) -> None:
    store.write([key, None])


def _healed(store: MemoryStore, known: dict[int, bool]) -> list[Healed]:
    return asyncio.run(store.heal(known))


@pytest.mark.parametrize("damage", [_damage, _lose])
def test_a_lost_message_of_the_outbox_is_counted_in_its_queue(
    pair: ShardPair, damage: Callable[[MemoryStore, bytes], None]
) -> None:
    pair.send("b", group=pair.group and "other")
    pair.spend("a")
    pair.receive(pair.source)
    pair.send("c")
    store = pair.shards[0].store
    arrivals = pair.read().arrivals
    assert len(arrivals) == 2
    damage(store, departures_of(store)[0])
    assert str(count_missing(ReadableRows(store), 1, [])).endswith(
        "1 missing (1 on the way to other shards)"
    )
    with pytest.raises(DamagedRecord):
        pair.restart(0)

    healed = _healed(store, {1: pair.group is not None})

    missing = healed[0].missing
    assert missing is not None
    assert (healed[0].queue_id, missing.missing, missing.is_exact) == (1, 1, True)
    assert all(each.queue_id == THE_SHARD and each.missing is None for each in healed[1:])
    pair.restart(0)
    pair.check()
    assert pair.shards[0].state.queue(1).quarantined.messages == 1
    assert pair.read().arrivals == arrivals[1:]
    pair.deliver()
    assert pair.receive(pair.letters) == [arrivals[1].message.data.decode()]
    assert pair.receive(pair.source) == ["c"], "its group goes on"
    assert _healed(store, {1: pair.group is not None}) == []


def test_a_lost_message_of_a_dropped_queue_is_counted_in_the_shard(pair: ShardPair) -> None:
    pair.spend("a")
    pair.receive(pair.source)
    pair.shards[0].purge(pair.source)
    pair.shards[0].drop(pair.source)
    store = pair.shards[0].store
    _damage(store, departures_of(store)[0])

    (healed,) = _healed(store, {})

    assert healed.queue_id == THE_SHARD
    assert str(healed.missing) == (
        "0 messages can be read, 1 missing (1 on the way to other shards)"
    )
    pair.restart(0)
    pair.check()


def test_a_damaged_name_of_an_arrival_does_not_hold_up_the_others(pair: ShardPair) -> None:
    pair.spend("a", "b")
    pair.receive(pair.source)
    page = pair.read()
    pair.accept(page.arrivals)
    store = pair.shards[1].store
    key = next(key for key in store.rows if key[8:9] == ARRIVAL)
    store.rows[key] = store.rows[key][:-1] + b"\1"

    (healed,) = _healed(store, {2: pair.group is not None})

    assert healed.reason == "checksum does not match"
    pair.restart(1)
    assert len(pair.accept(page.arrivals)) == len(page.arrivals)


# -- a damaged block of a real folder --------------------------------------------------------------

_MESSAGES = 12
_BODY = 1500
"""Bytes of a message: a block has two or three."""


def _definitions() -> tuple[QueueDefinition, QueueDefinition, KnownQueues]:
    letters = in_shard(1, prepared.queue_named("letters", 2))
    source = prepared.queue_named("source", 1, dead_letters_to=letters, VisibilityTimeout="0")
    return source, letters, KnownQueues(source, letters)


async def _with_departures(folder: Path) -> None:
    source, letters, known = _definitions()
    served = Served(folder, known)
    await served.shard.start()
    bodies = [f"{number:02}" * (_BODY // 2) for number in range(_MESSAGES)]
    for some in (bodies[:10], bodies[10:]):
        await served.ask(prepared.send_batch(source, some))
        await served.ask(prepared.receive(source, 10))
        await served.ask(prepared.receive(source, 10, dead_letter_queue=letters))
    assert served.shard.report().outbox == _MESSAGES
    await served.shard.stop()


async def _left(folder: Path) -> tuple[int, int]:
    """Messages in the outbox, and quarantined ones."""
    served = Served(folder, _definitions()[2])
    await served.shard.start()
    (queue,) = served.shard.queues([1])
    found = served.shard.report().outbox, queue.quarantined
    await served.shard.stop()
    return found


def test_messages_of_the_outbox_in_a_damaged_block_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "shard-0"
    at(0, _with_departures(folder))
    (file,) = (each for each in folder.glob("*.sst") if b"05" * 99 in each.read_bytes())
    flip_one(file, file.read_bytes().index(b"05" * 99))

    found = at(1, _left(folder))

    left, quarantined = found
    assert 0 < quarantined < _MESSAGES // 2
    assert left + quarantined == _MESSAGES
    assert at(2, _left(folder)) == found
    with rows_of(folder) as rows:
        assert not [*check_queue(rows, 1), *check_shard(rows)]
