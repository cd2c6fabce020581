"""Records in memory: no change is lost, and none is made twice."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from random import Random

import pytest

from cluster.catalog.host_records import FILE_NAME
from cluster.coordination.coordination import Change, OnChange, Record, Snapshot
from cluster.coordination.etcd_client import Access
from cluster.coordination.records import Draft, Records, View
from cluster.coordination.sqlite_coordination import SqliteCoordination
from cluster.keys.keyring import KeysAway
from cluster.tests.coordinations import Hosts, until
from cluster.tests.memory_coordination import MemoryCoordination
from cluster.tests.simulated_etcd import SimulatedEtcd
from cluster.tests.simulated_wire import SimulatedWire
from cluster.tests.stores import Place, memory_place


@pytest.fixture
async def memory() -> AsyncIterator[Place]:
    async with memory_place() as (place, _):
        yield place


def coordination(place: Place) -> MemoryCoordination:
    assert isinstance(place.records, MemoryCoordination)
    return place.records


async def put(records: Records, key: str, value: bytes | None) -> None:
    await records.change(lambda draft: draft.put(key, value))


def values(records: Records) -> dict[str, bytes]:
    return records.view.below("")


async def test_a_change_is_shown_here_at_once_and_elsewhere_soon(place: Place) -> None:
    one, other = await place.opened(), await place.opened()
    told: list[set[str]] = []
    other.subscribe(lambda view, changed: told.append(set(changed)))

    await put(one, "a", b"1")
    assert values(one) == {"a": b"1"}
    await place.heard(other)
    assert values(other) == {"a": b"1"}
    assert told == [{"a"}]

    await put(other, "a", None)
    await place.heard(one)
    assert values(one) == values(other) == {}
    assert told == [{"a"}] * 2


async def test_hosts_that_count_at_once_issue_each_number_once(place: Place) -> None:
    opened = [await place.opened() for _ in range(3)]

    numbers = await asyncio.gather(
        *[each.change(lambda draft: draft.next_number("n")) for each in opened * 10]
    )

    assert sorted(numbers) == list(range(1, 31))


def take_number(draft: Draft) -> int:
    number = draft.next_number("n")
    draft.put(f"taken/{number}", secrets.token_bytes(8))
    return number


async def test_commands_of_one_host_hinder_each_other_but_lose_nothing(hosts: Hosts) -> None:
    made = [await Records.open(hosts.host(name="a.commands"), KeysAway) for _ in range(3)]

    numbers = await asyncio.gather(*[each.change(take_number) for each in made * 3])

    assert sorted(numbers) == list(range(1, 10))
    for each in made:
        await each.close()


async def test_a_change_is_decided_again_when_what_it_read_has_changed(memory: Place) -> None:
    one, other = await memory.opened(), await memory.opened()
    await put(one, "a", b"1")
    seen: list[bytes | None] = []

    def decide(draft: Draft) -> None:
        seen.append(draft.value("a"))
        draft.put("b", seen[-1])

    coordination(memory).held_back = []
    changed = asyncio.create_task(put(one, "a", b"2"))
    await until(lambda: coordination(memory).revision == 2)
    decided = asyncio.create_task(other.change(decide))
    await asyncio.sleep(0)
    coordination(memory).report()
    await asyncio.gather(changed, decided)

    assert seen[-1] == b"2"
    assert values(other) == {"a": b"2", "b": b"2"}


@pytest.mark.parametrize(
    ("outcome", "happened"),
    [("unavailable", False), ("unknown, not done", False), ("unknown, done", True)],
)
async def test_what_became_of_a_change_is_found_out(
    memory: Place, outcome: str, happened: bool
) -> None:
    records = await memory.opened()
    coordination(memory).next_outcomes = [outcome]

    def change(draft: Draft) -> int:
        draft.put("a", b"1")
        return draft.next_number("n")

    if happened:
        assert await records.change(change) == 1
    else:
        with pytest.raises(KeysAway, match="cannot change"):
            await records.change(change)
    assert values(records) == ({"a": b"1", "ids/n": b"1"} if happened else {})
    await put(records, "b", b"2")
    assert records.view.value("b") == b"2"


async def test_a_number_alone_does_not_tell_whether_it_was_taken(memory: Place) -> None:
    records = await memory.opened()
    coordination(memory).next_outcomes = ["unknown, not done"]
    with pytest.raises(KeysAway, match="cannot change"):
        await records.change(lambda draft: draft.next_number("n"))
    assert await records.change(lambda draft: draft.next_number("n")) == 1


async def test_records_that_were_read_ahead_of_the_watch_stay_as_they_are(memory: Place) -> None:
    one, other = await memory.opened(shown_s=0.001), await memory.opened()
    coordination(memory).held_back = []
    await put(one, "a", b"1")
    assert values(one) == {"a": b"1"}, "it was read, since the watch is late"
    await put(one, "b", b"1")
    await put(one, "a", None)
    assert values(other) == {}
    await other.refresh()
    shown: list[dict[str, bytes]] = []
    other.subscribe(lambda view, changed: shown.append(view.below("")))

    coordination(memory).report()

    assert all(each == {"b": b"1"} for each in shown), "nothing comes back"
    await put(one, "c", b"3")
    assert values(other) == {"b": b"1", "c": b"3"}


async def test_a_host_that_catches_up_knows_what_others_wrote(place: Place) -> None:
    one, other = await place.opened(), await place.opened()
    for number in range(20):
        await put(one, "a", b"%d" % number)
        await other.catch_up()
        assert values(other) == {"a": b"%d" % number}


async def test_catching_up_waits_for_what_others_wrote_before(memory: Place) -> None:
    one, other = await memory.opened(), await memory.opened()
    coordination(memory).held_back = []
    written = asyncio.create_task(put(one, "a", b"1"))
    await until(lambda: coordination(memory).revision == 1)
    caught_up = asyncio.create_task(other.catch_up())
    await until(lambda: coordination(memory).revision == 2)
    assert not caught_up.done()

    coordination(memory).report()

    await caught_up
    assert values(other) == {"a": b"1"}
    await written


async def test_catching_up_fails_while_etcd_is_away(memory: Place) -> None:
    records = await memory.opened()
    coordination(memory).next_outcomes = ["unavailable"]

    with pytest.raises(KeysAway, match="cannot read the records"):
        await records.catch_up()


async def test_an_etcd_that_is_away_is_named_in_one_line(memory: Place) -> None:
    coordination(memory).is_away = True

    with pytest.raises(KeysAway, match="cannot read the records: it is away"):
        await memory.opened()


async def test_an_etcd_that_was_restored_takes_its_records_back() -> None:
    random = Random(3)
    etcd = SimulatedEtcd(random)
    hosts = Hosts(Access(etcd.endpoints), lambda: SimulatedWire(etcd, random))
    records = await Records.open(hosts.host(), KeysAway)
    try:
        await put(records, "a", b"1")
        copy = etcd.copy()
        await put(records, "a", b"2")
        await put(records, "b", b"2")
        etcd.restore(copy)

        await until(lambda: values(records) == {"a": b"1"})
        await put(records, "c", b"3")
        assert values(records) == {"a": b"1", "c": b"3"}
    finally:
        await records.close()
        await hosts.close()


async def test_after_a_restore_a_host_that_had_read_ahead_hears_of_all_changes() -> None:
    random = Random(3)
    etcd = SimulatedEtcd(random)
    hosts = Hosts(Access(etcd.endpoints), lambda: SimulatedWire(etcd, random))
    records, other = [await Records.open(hosts.host(), KeysAway) for _ in range(2)]
    try:
        await put(other, "key", b"enabled")
        copy = etcd.copy()
        for number in range(20):
            await put(other, "late", b"%d" % number)
        await read_ahead(records, other)
        etcd.restore(copy)
        await until(lambda: values(records) == values(other) == {"key": b"enabled"})

        await put(other, "key", b"disabled")

        await until(lambda: values(records) == {"key": b"disabled"})
    finally:
        await records.close()
        await other.close()
        await hosts.close()


async def read_ahead(records: Records, other: Records) -> None:
    """Read what another host wrote before the watch reports it, and hear of it then."""
    reported = 0

    def count(_: View, changed: Collection[str]) -> None:
        nonlocal reported
        reported += bool(changed)

    records.subscribe(count)
    while True:
        before = reported
        writing = asyncio.create_task(put(other, "late", secrets.token_bytes(4)))
        while reported == before:
            await records.refresh()
        is_ahead = records._watched.revision < records.view.revision
        await writing
        if is_ahead:
            break
    await until(lambda: records._watched.revision >= records.view.revision)


class Scripted(MemoryCoordination):
    """Reports what a test says."""

    async def watch(self, after: Snapshot, on_change: OnChange) -> None:
        self.on_change = on_change


async def test_a_difference_that_is_older_than_what_was_read_hides_nothing_later() -> None:
    coordination = Scripted()
    coordination.records["key"] = Record("key", b"enabled", 5)
    coordination.revision = 5
    records = await Records.open(coordination, KeysAway)
    coordination.records["key"] = Record("key", b"disabled", 10)
    coordination.revision = 10
    await records.refresh()

    coordination.on_change(Change(9, {"key": b"enabled"}, {"key": 8}))
    coordination.on_change(Change(10, {"key": b"disabled"}))
    coordination.on_change(Change(11, {"other": b"1"}))

    assert values(records) == {"key": b"disabled", "other": b"1"}
    assert records.view.records["key"].revision == 10


async def test_what_was_read_before_a_restore_does_not_come_back() -> None:
    coordination = Scripted()
    records = await Records.open(coordination, KeysAway)
    coordination.on_change(Change(20, {"key": b"enabled", "late": b"1"}))
    late = Snapshot(25, [Record("key", b"enabled", 20), Record("late", b"2", 25)])
    restored = Snapshot(11, [Record("key", b"disabled", 11)])
    answers = [late, restored]

    async def read_all() -> Snapshot:
        answer = answers.pop(0)
        if answer is late:  # the watch hears first
            coordination.on_change(Change(10, {"key": b"enabled", "late": None}, {"key": 5}))
        return answer

    coordination.read_all = read_all  # type: ignore[method-assign]
    await records.refresh()
    coordination.on_change(Change(11, {"key": b"disabled"}))

    assert values(records) == {"key": b"disabled"}
    assert not answers


async def test_records_of_several_kinds_are_in_one_file(tmp_path: Path) -> None:
    file = await SqliteCoordination.open(tmp_path / FILE_NAME)
    one, other = [await Records.open(file.below(kind), KeysAway) for kind in ("one/", "other/")]
    told: list[set[str]] = []
    other.subscribe(lambda view, changed: told.append(set(changed)))
    await put(one, "a", b"1")
    await put(other, "a", b"2")
    await one.close()
    await put(other, "b", b"3")

    assert (values(one), values(other)) == ({"a": b"1"}, {"a": b"2", "b": b"3"})
    assert told == [{"a"}, {"b"}]
    assert await file.below("one/").read(["a", "b"]) == Snapshot(3, [Record("a", b"1", 1)])
    await other.close()
    await file.close()
