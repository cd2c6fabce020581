"""Records that synchronous code reads and changes: no change is lost, and none is made twice."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from random import Random
from typing import Any

import pytest

from cluster.coordination.background_loop import BackgroundLoop
from cluster.coordination.coordination import Coordination
from cluster.coordination.etcd_client import Access
from cluster.coordination.shared_records import Draft, SharedRecords
from cluster.keys.keyring import KeysAway
from cluster.tests.coordinations import Hosts
from cluster.tests.shared_stores import KINDS, Memory, SharedHosts, shared_hosts, soon
from cluster.tests.simulated_etcd import SimulatedEtcd
from cluster.tests.simulated_wire import SimulatedWire


@pytest.fixture
def memory() -> Iterator[Memory]:
    with ExitStack() as stack:
        yield Memory(stack)


@pytest.fixture(params=KINDS[1:])
def hosts(request: pytest.FixtureRequest) -> Iterator[SharedHosts]:
    with shared_hosts(request, request.param) as hosts:
        yield hosts


def put(records: SharedRecords, key: str, value: bytes | None) -> None:
    records.change(lambda draft: draft.put(key, value))


def values(records: SharedRecords) -> dict[str, bytes]:
    return records.view.below("")


def test_a_change_is_shown_here_at_once_and_elsewhere_soon(hosts: SharedHosts) -> None:
    with closing(hosts.records()) as one, closing(hosts.records()) as other:
        put(one, "a", b"1")
        assert values(one) == {"a": b"1"}
        assert not one.changed(), "its own changes are no news"
        hosts.wait_for(other)
        assert values(other) == {"a": b"1"}
        assert other.changed()
        assert not other.changed()

        put(other, "a", None)
        hosts.wait_for(one)
        assert values(one) == values(other) == {}


def test_hosts_that_count_at_once_issue_each_number_once(hosts: SharedHosts) -> None:
    with ExitStack() as stack:
        opened = [stack.enter_context(closing(hosts.records())) for _ in range(3)]
        threads = stack.enter_context(ThreadPoolExecutor(6))

        def count(records: SharedRecords) -> int:
            return records.change(lambda draft: draft.next_number("n"))

        numbers = list(threads.map(count, opened * 10))

    assert sorted(numbers) == list(range(1, 31))


def take_number(draft: Draft) -> int:
    number = draft.next_number("n")
    draft.put(f"taken/{number}", secrets.token_bytes(8))
    return number


def test_commands_of_one_host_hinder_each_other_but_lose_nothing(hosts: SharedHosts) -> None:
    async def opened() -> Coordination:
        return hosts.hosts.host(name="a.commands")

    with ExitStack() as stack:
        made = [SharedRecords(hosts.loop, opened, KeysAway) for _ in range(3)]
        for each in made:
            stack.callback(each.close)
        threads = stack.enter_context(ThreadPoolExecutor(3))

        numbers = list(threads.map(lambda each: each.change(take_number), made * 3))

    assert sorted(numbers) == list(range(1, 10))


def test_a_change_is_decided_again_when_what_it_read_has_changed(memory: Memory) -> None:
    one, other = memory.open(), memory.open()
    put(one, "a", b"1")
    seen: list[bytes | None] = []

    def decide(draft: Draft) -> None:
        seen.append(draft.value("a"))
        draft.put("b", seen[-1])

    memory.coordination.held_back = []
    put_soon = ThreadPoolExecutor(1)
    with put_soon:
        changed = put_soon.submit(put, one, "a", b"2")
        soon(lambda: memory.coordination.revision == 2)
        decided = put_soon.submit(other.change, decide)
        memory.report()
        changed.result()
        decided.result()

    assert seen[-1] == b"2"
    assert values(other) == {"a": b"2", "b": b"2"}


@pytest.mark.parametrize(
    ("outcome", "happened"),
    [("unavailable", False), ("unknown, not done", False), ("unknown, done", True)],
)
def test_what_became_of_a_change_is_found_out(memory: Memory, outcome: str, happened: bool) -> None:
    records = memory.open()
    memory.coordination.next_outcomes = [outcome]

    def change(draft: Draft) -> int:
        draft.put("a", b"1")
        return draft.next_number("n")

    if happened:
        assert records.change(change) == 1
    else:
        with pytest.raises(KeysAway, match="cannot change"):
            records.change(change)
    assert values(records) == ({"a": b"1", "ids/n": b"1"} if happened else {})
    put(records, "b", b"2")
    assert records.view.value("b") == b"2"


def test_a_number_alone_does_not_tell_whether_it_was_taken(memory: Memory) -> None:
    records = memory.open()
    memory.coordination.next_outcomes = ["unknown, not done"]
    with pytest.raises(KeysAway, match="cannot change"):
        records.change(lambda draft: draft.next_number("n"))
    assert records.change(lambda draft: draft.next_number("n")) == 1


def test_records_that_were_read_ahead_of_the_watch_stay_as_they_are(memory: Memory) -> None:
    one, other = memory.open(shown_s=0.001), memory.open()
    memory.coordination.held_back = []
    put(one, "a", b"1")
    assert values(one) == {"a": b"1"}, "it was read, since the watch is late"
    put(one, "b", b"1")
    put(one, "a", None)
    assert values(other) == {}
    other.refresh()
    shown: list[dict[str, bytes]] = []
    other.attach(lambda view: shown.append(view.below("")))

    memory.report()

    assert all(each == {"b": b"1"} for each in shown), "nothing comes back"
    put(one, "c", b"3")
    assert values(other) == {"b": b"1", "c": b"3"}


def test_a_host_that_catches_up_knows_what_others_wrote(hosts: SharedHosts) -> None:
    with closing(hosts.records()) as one, closing(hosts.records()) as other:
        for number in range(20):
            put(one, "a", b"%d" % number)
            other.catch_up()
            assert values(other) == {"a": b"%d" % number}
        other.catch_up()
        assert other.changed()
        other.catch_up()
        assert not other.changed(), "there was nothing new"


def test_catching_up_waits_for_what_others_wrote_before(memory: Memory) -> None:
    one, other = memory.open(), memory.open()
    memory.coordination.held_back = []
    with ThreadPoolExecutor(2) as threads:
        written = threads.submit(put, one, "a", b"1")
        soon(lambda: memory.coordination.revision == 1)
        caught_up = threads.submit(other.catch_up)
        soon(lambda: memory.coordination.revision == 2)
        assert not caught_up.done()

        memory.report()

        caught_up.result()
        assert values(other) == {"a": b"1"}
        written.result()


def test_catching_up_fails_while_etcd_is_away(memory: Memory) -> None:
    records = memory.open()
    memory.coordination.next_outcomes = ["unavailable"]

    with pytest.raises(KeysAway, match="cannot read the cluster's records"):
        records.catch_up()


def test_an_etcd_that_is_away_is_named_in_one_line(memory: Memory) -> None:
    memory.coordination.is_away = True

    with pytest.raises(KeysAway, match="cannot read the cluster's records: it is away"):
        memory.open()


def test_an_etcd_that_was_restored_takes_its_records_back() -> None:
    random = Random(3)
    etcd = SimulatedEtcd(random)
    loop = BackgroundLoop("restored")
    hosts = SharedHosts(Hosts(Access(etcd.endpoints), lambda: SimulatedWire(etcd, random)), loop)

    def on_loop(work: Any, *arguments: object) -> Any:
        async def run() -> Any:
            return work(*arguments)

        return loop.run(run())

    try:
        with closing(hosts.records()) as records:
            put(records, "a", b"1")
            copy = on_loop(etcd.copy)
            put(records, "a", b"2")
            put(records, "b", b"2")
            on_loop(etcd.restore, copy)

            soon(lambda: values(records) == {"a": b"1"})
            put(records, "c", b"3")
            assert values(records) == {"a": b"1", "c": b"3"}
    finally:
        loop.run(hosts.hosts.close())
        loop.close()
