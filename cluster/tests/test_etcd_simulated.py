"""The client of etcd on a model of it, in virtual time: hosts that compete through losses, cuts,
elections, compactions and a replaced etcd."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from random import Random

import pytest

from cluster.coordination.coordination import (
    EMPTY,
    Change,
    Conflict,
    Done,
    Lease,
    Snapshot,
    Transaction,
    Unavailable,
    Unknown,
)
from cluster.coordination.etcd_client import Access
from cluster.coordination.etcd_coordination import EtcdCoordination
from cluster.coordination.etcd_messages import RANGE
from cluster.coordination.etcd_wire import NoAnswer, Reply
from cluster.tests.coordinations import Hosts
from cluster.tests.etcd_world import Host, World
from cluster.tests.simulated_etcd import ELECTION_S, SWEEP_S, SimulatedEtcd
from cluster.tests.simulated_wire import SimulatedWire
from cluster.tests.virtual_time import LoopClock, virtual

TTL_S = 3
SEEDS = range(int(os.environ.get("COORDINATION_SEEDS", "5")))


def with_seeds(test: Callable[[int], None]) -> Callable[[int], None]:
    return pytest.mark.parametrize("seed", SEEDS)(test)


# -- transactions ----------------------------------------------------------------------------------


async def increment(host: EtcdCoordination, name: str, outcomes: Counter[str]) -> None:
    """Add one to a number, and a record that names the addition."""
    found = await host.read_all()
    if not isinstance(found, Snapshot):
        return
    records = {record.key: record for record in found.records}
    number = records.get("number")
    value = int(number.value) + 1 if number else 1
    conditions = {"number": number.revision if number else 0, name: 0}
    changes = {"number": b"%d" % value, name: b"%d" % value}
    outcome = await host.commit(Transaction(conditions, changes))
    outcomes[type(outcome).__name__] += 1
    outcomes[name] = {Done: 1, Unknown: -1}.get(type(outcome), 0)


@with_seeds
def test_each_outcome_is_what_became_of_the_transaction(seed: int) -> None:
    @virtual
    async def run() -> None:
        world = World(seed)
        outcomes: Counter[str] = Counter()
        names: list[str] = []

        async def work(host: Host, number: int) -> None:
            for count in range(40):
                names.append(f"by-{number}-{count}")
                await increment(host.coordination, names[-1], outcomes)
                await asyncio.sleep(world.random.uniform(0, 0.5))

        await asyncio.gather(
            world.trouble(20), *[work(host, number) for number, host in enumerate(world.hosts)]
        )
        await asyncio.sleep(60)  # what was late has come
        records = await world.read()

        numbers = sorted(int(records[name]) for name in names if name in records)
        assert numbers == list(range(1, int(records["number"]) + 1))
        for name in names:
            if outcomes[name] >= 0:
                assert (name in records) == (outcomes[name] == 1), name
        assert outcomes["Done"] > 10
        await world.close()

    run()


@virtual
async def test_a_transaction_that_comes_late_is_fenced_off() -> None:
    world = World(seed=1)
    host, wire = world.hosts[0]
    await host.commit(Transaction({}, {"a": b"0"}))
    wire.lose_next = ["late"]

    outcome = await host.commit(Transaction({}, {"a": b"1"}))
    assert isinstance(outcome, Done)
    await host.commit(Transaction({}, {"a": b"2"}))
    await asyncio.sleep(60)

    assert await world.read() == {"a": b"2"}
    await world.close()


@virtual
async def test_a_transaction_that_comes_late_does_not_hide_a_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(seed=1)
    host, wire = world.hosts[0]
    await host.commit(Transaction({}, {"a": b"0"}))
    lost: list[tuple[str, str, bytes]] = []
    post = wire.post

    async def note(
        endpoint: str, path: str, body: bytes, headers: Mapping[str, str], limit_s: float
    ) -> Reply:
        lost.append((endpoint, path, body))
        return await post(endpoint, path, body, headers, limit_s)

    monkeypatch.setattr(wire, "post", note)
    wire.lose_next = ["request"]
    assert isinstance(await host.commit(Transaction({}, {"a": b"1"})), Done)
    wire.lose_next = ["answer"]
    later = asyncio.create_task(host.commit(Transaction({"b": 0}, {"b": b"1"})))
    await asyncio.sleep(1)
    assert "b" in await world.read(1)
    wire.carry_out(*lost[0])

    assert isinstance(await later, Done)
    await world.close()


@virtual
async def test_a_transaction_given_up_as_unknown_does_not_confuse_the_next() -> None:
    world = World(seed=1)
    host, wire = world.hosts[0]
    await host.commit(Transaction({}, {"a": b"0"}))
    wire.lose_next = ["late"] + ["request"] * 10

    assert isinstance(await host.commit(Transaction({}, {"b": b"1"})), Unknown)
    wire.lose_next = []
    outcomes = [await host.commit(Transaction({"c": 0}, {"c": b"%d" % n})) for n in range(2)]
    await asyncio.sleep(60)

    assert [type(outcome) for outcome in outcomes] == [Done, Conflict]
    assert (await world.read())["c"] == b"0"
    await world.close()


# -- watches ---------------------------------------------------------------------------------------


@with_seeds
def test_all_watches_end_with_the_records_that_are_there(seed: int) -> None:
    @virtual
    async def run() -> None:
        world = World(seed)
        views: list[dict[str, tuple[int, bytes]]] = [{} for _ in world.hosts]
        revisions: list[list[int]] = [[] for _ in world.hosts]

        def view(number: int) -> Callable[[Change], None]:
            def apply(change: Change) -> None:
                revisions[number].append(change.revision)
                for key, value in change.records.items():
                    views[number].pop(key, None)
                    if value is not None:
                        views[number][key] = change.revision_of(key), value

            return apply

        async def work(host: Host) -> None:
            for count in range(60):
                key = world.random.choice("abcdef")
                value = None if world.random.random() < 0.3 else b"%d" % count
                await host.coordination.commit(Transaction({}, {key: value}))
                await asyncio.sleep(world.random.uniform(0, 0.5))

        for number, host in enumerate(world.hosts):
            await host.coordination.watch(EMPTY, view(number))
        await asyncio.gather(world.trouble(20), *map(work, world.hosts))
        await asyncio.sleep(60)

        found = await world.hosts[0].coordination.read_all()
        assert isinstance(found, Snapshot)
        expected = {record.key: (record.revision, record.value) for record in found.records}
        assert views == [expected] * len(views)
        assert all(each == sorted(set(each)) for each in revisions), "in order, none twice"
        await world.close()

    run()


@virtual
async def test_a_replaced_etcd_is_noticed_by_watches_and_leases() -> None:
    world = World(seed=1, hosts=1)
    host = world.hosts[0].coordination
    heard: list[Change] = []
    lost: list[float] = []
    await host.watch(EMPTY, heard.append)
    await host.commit(Transaction({}, {"a": b"1"}))
    await host.grant(TTL_S, lambda: lost.append(world.now_s()))

    world.etcd.replace()
    await asyncio.sleep(30)

    assert heard[-1].records == {} or heard[-1].records == {"a": None}
    assert {"a": None} in [change.records for change in heard]
    assert len(lost) == 1
    assert isinstance(await host.commit(Transaction({"a": 0}, {"a": b"1"})), Done)
    await world.close()


@virtual
async def test_a_watch_outlives_a_listener_that_fails() -> None:
    world = World(seed=1, hosts=1)
    host = world.hosts[0].coordination
    heard: list[dict[str, bytes | None]] = []
    failures = [ValueError("a bug")]

    def listen(change: Change) -> None:
        if failures and "b" in change.records:
            raise failures.pop()
        heard.append(dict(change.records))

    await host.watch(EMPTY, listen)
    await host.commit(Transaction({}, {"a": b"1"}))
    await asyncio.sleep(1)
    await host.commit(Transaction({}, {"a": None, "b": b"2"}))
    await asyncio.sleep(1)
    await host.commit(Transaction({}, {"c": b"3"}))
    await asyncio.sleep(10)

    changes = [records for records in heard if records]
    assert changes == [{"a": b"1"}, {"a": None, "b": b"2"}, {"c": b"3"}]
    await world.close()


@virtual
async def test_an_etcd_restored_from_an_old_copy_is_noticed() -> None:
    world = World(seed=1)
    one, other = world.hosts[0].coordination, world.hosts[1].coordination
    view: dict[str, bytes | None] = {}
    await one.watch(EMPTY, lambda change: view.update(change.records))
    await one.commit(Transaction({}, {"a": b"old"}))
    copy = world.etcd.copy()
    world.etcd.lose_leader()
    await asyncio.sleep(5)
    for host in (one, other):
        assert isinstance(await host.commit(Transaction({}, {"a": b"new", "b": b""})), Done)

    world.etcd.restore(copy)
    await asyncio.sleep(30)

    assert view == {"a": b"old", "b": None}
    for host in (one, other):
        assert isinstance(await host.commit(Transaction({"b": 0}, {"a": b"then"})), Done)
    await asyncio.sleep(5)
    assert view == {"a": b"then", "b": None}
    await world.close()


@virtual
@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("more", [0, 1, 5])
async def test_an_etcd_that_reached_the_same_revision_with_other_content_is_noticed(
    more: int, is_compacted: bool
) -> None:
    """It lost what one host saw, and others wrote as much again before that host was back."""
    world = World(seed=1)
    (one, wire), (other, _) = world.hosts[0], world.hosts[1]
    view: dict[str, bytes | None] = {}
    changes: list[Change] = []

    def listen(change: Change) -> None:
        changes.append(change)
        view.update(change.records)

    await one.watch(EMPTY, listen)
    assert isinstance(await one.commit(Transaction({}, {"a": b"old"})), Done)
    copy = world.etcd.copy()
    for number in range(3):
        assert isinstance(await one.commit(Transaction({}, {"a": b"lost %d" % number})), Done)
    await asyncio.sleep(1)
    assert view == {"a": b"lost 2"}

    wire.is_cut = True
    reached = world.etcd.revision
    world.etcd.restore(copy)
    while world.etcd.revision < reached + more:
        assert isinstance(await other.commit(Transaction({}, {"b": b"then"})), Done)
    if is_compacted:
        world.etcd.compact()
    assert world.etcd.revision == reached + more
    changes.clear()
    wire.is_cut = False
    await asyncio.sleep(20)

    assert view == {"a": b"old", "b": b"then"}
    assert any(change.revisions for change in changes), "it is told that etcd may be older"
    revisions = [change.revision for change in changes]
    assert revisions == sorted(set(revisions)), "none is reported twice"
    await world.close()


@virtual
async def test_a_watch_that_begins_anew_reports_nothing_twice() -> None:
    world = World(seed=1)
    one, other = world.hosts[0].coordination, world.hosts[1].coordination
    changes: list[Change] = []
    await one.watch(EMPTY, changes.append)
    for number in range(20):
        await other.commit(Transaction({}, {"a": b"%d" % number}))
        world.etcd.lose_leader()
        await asyncio.sleep(2)
        if number % 2:
            await one.commit(Transaction({}, {"b": b"%d" % number}))
    await asyncio.sleep(10)

    assert [each.records["a"] for each in changes if "a" in each.records] == [
        b"%d" % number for number in range(20)
    ]
    assert not any(change.revisions for change in changes)
    revisions = [change.revision for change in changes]
    assert revisions == sorted(set(revisions))
    await world.close()


# -- leases ----------------------------------------------------------------------------------------


@virtual
async def test_a_lease_whose_grant_went_unanswered_is_not_granted_twice() -> None:
    world = World(seed=1, hosts=1)
    host, wire = world.hosts[0]
    wire.lose_next = ["answer"]

    lease = await host.grant(TTL_S, lambda: None)

    assert not isinstance(lease, Unavailable)
    assert lease.held_until_s == TTL_S, "counted from before the first try"
    await asyncio.sleep(2 * TTL_S)
    assert lease.is_held()
    transaction = Transaction({}, {"leader": b"1"}, {"leader": lease.lease_id})
    assert isinstance(await host.commit(transaction), Done)
    await world.close()


@virtual
async def test_the_time_of_a_lease_is_the_one_that_etcd_gave() -> None:
    world = World(seed=1, hosts=1)
    world.etcd.ttl_min_s = 5
    host = world.hosts[0].coordination

    lease = await host.grant(1, lambda: None)

    assert not isinstance(lease, Unavailable)
    assert lease.held_until_s == 5
    await world.close()


class Leader:
    """A host that wants to lead, again and again."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.host = world.hosts[number].coordination
        self.name = b"%d" % number
        self.terms: list[tuple[float, float]] = []
        """Begin of each leadership, and the time until which it was believed in."""

    async def run(self, until_s: float) -> None:
        while self.world.now_s() < until_s:
            await asyncio.sleep(self.world.random.uniform(0.1, 1))
            lease = await self.host.grant(TTL_S, lambda: None)
            if isinstance(lease, Unavailable):
                continue
            key = Transaction({"leader": 0}, {"leader": self.name}, {"leader": lease.lease_id})
            if isinstance(await self.host.commit(key), Done) and lease.is_held():
                await self._lead(lease)
            await lease.release()

    async def _lead(self, lease: Lease) -> None:
        began_s = believed_s = self.world.now_s()
        while lease.is_held() and self.world.random.random() > 0.002:
            believed_s = self.world.now_s()
            await asyncio.sleep(0.05)
        self.terms.append((began_s, believed_s))


@with_seeds
def test_no_two_hosts_believe_to_lead_at_once(seed: int) -> None:
    @virtual
    async def run() -> None:
        world = World(seed)
        leaders = [Leader(world, number) for number in range(3)]

        await asyncio.gather(world.trouble(60), *[leader.run(until_s=100) for leader in leaders])

        terms = sorted(term for leader in leaders for term in leader.terms)
        for (_, believed_s), (began_s, _) in pairwise(terms):
            assert believed_s <= began_s
        assert terms[-1][1] > 80, "someone leads after the faults"
        await world.close()

    run()


@virtual
async def test_a_leader_change_extends_a_lease_within_bounds() -> None:
    world = World(seed=1, hosts=2)
    holder, other = world.hosts
    heard: list[tuple[float, Change]] = []
    await other.coordination.watch(EMPTY, lambda change: heard.append((world.now_s(), change)))
    lease = await holder.coordination.grant(TTL_S, lambda: None)
    assert not isinstance(lease, Unavailable)
    await holder.coordination.commit(Transaction({}, {"leader": b"1"}, {"leader": lease.lease_id}))
    await asyncio.sleep(2)
    holder.wire.is_cut = True
    cut_s = world.now_s()

    await asyncio.sleep(1)
    world.etcd.lose_leader()
    await asyncio.sleep(30)

    (gone_s,) = [at_s for at_s, change in heard if change.records == {"leader": None}]
    lost_s = cut_s + 1
    assert lease.held_until_s <= cut_s + TTL_S < gone_s
    assert gone_s <= lost_s + ELECTION_S + TTL_S + SWEEP_S + 0.2
    await world.close()


# -- many records ----------------------------------------------------------------------------------


@virtual
async def test_a_read_of_many_pages_may_take_longer_than_an_answer() -> None:
    world = World(seed=1, hosts=1)
    host = world.hosts[0]
    for begin in range(0, 1400, 100):
        values = {f"{number:04}": b"x" for number in range(begin, begin + 100)}
        await host.coordination.commit(Transaction({}, values))
    host.wire.delay_s = 0.5
    begun_s = world.now_s()

    assert len(await world.read()) == 1400

    assert world.now_s() - begun_s > 6.0
    host.wire.is_cut = True
    assert isinstance(await host.coordination.read_all(), Unavailable)
    await world.close()


class SlowWithMany(SimulatedWire):
    """An answer with more than 20 records that is longer than 200 kB comes too late."""

    limits: list[int]

    async def post(
        self, endpoint: str, path: str, body: bytes, headers: Mapping[str, str], limit_s: float
    ) -> Reply:
        reply = await super().post(endpoint, path, body, headers, limit_s)
        if path == RANGE:
            self.limits.append(int(json.loads(body)["limit"]))
            if self.limits[-1] > 20 and len(reply.body) > 200_000:
                await asyncio.sleep(limit_s)
                raise NoAnswer("too late", was_sent=True)
        return reply


@virtual
async def test_short_records_come_in_few_answers_and_long_ones_in_many() -> None:
    random = Random(1)
    etcd = SimulatedEtcd(random)
    wire = SlowWithMany(etcd, random)
    wire.limits = []
    hosts = Hosts(Access(etcd.endpoints), lambda: wire, LoopClock())
    writer, reader = hosts.host(SimulatedWire(etcd, random)), hosts.host(page=20)
    names = [f"{number:04}" for number in range(700)]
    for begin in range(0, len(names), 100):
        value = b"x" * (1 if begin < 500 else 2000)
        await writer.commit(Transaction({}, dict.fromkeys(names[begin : begin + 100], value)))
    found = await reader.read_all()
    assert isinstance(found, Snapshot)
    assert [each.key for each in found.records] == names
    assert wire.limits[:3] == [20, 200, 200]
    assert wire.limits[-1] == 20, "the answer that did not come in time was asked for in pages"
    await hosts.close()


# -- many watches ----------------------------------------------------------------------------------


@virtual
async def test_the_silent_watches_of_a_process_are_tested_with_one_write() -> None:
    world = World(seed=1, hosts=1)
    whole, wire = world.hosts[0]
    parts = [whole.below(f"{name}/") for name in "abcdef"]
    heard: dict[int, list[Change]] = {number: [] for number in range(len(parts))}
    for number, part in enumerate(parts):
        await part.watch(EMPTY, heard[number].append)
        await asyncio.sleep(0.3)
    await asyncio.sleep(10)
    before = world.etcd.revision

    await asyncio.sleep(30)

    assert 8 <= world.etcd.revision - before <= 15, "every 2.1 to 3 s, and not 6 times as often"
    await parts[3].commit(Transaction({}, {"1": b"x"}))
    await parts[5].close()
    wire.is_cut = True
    await parts[0].commit(Transaction({}, {}))
    await asyncio.sleep(10)
    wire.is_cut = False
    await asyncio.sleep(10)
    assert [change.records for change in heard[3] if change.records] == [{"1": b"x"}]
    await world.close()


@virtual
async def test_a_watch_that_heard_of_another_process_is_not_tested_with_the_others() -> None:
    """A write is reported to the watches of all processes, which costs more than the write."""
    world = World(seed=1, hosts=2)
    (one, _), (other, _) = world.hosts
    heard: list[Change] = []
    await one.below("shared/").watch(EMPTY, heard.append)
    await asyncio.sleep(1.0)
    await other.below("own/").watch(EMPTY, lambda change: None)
    await other.below("shared/").watch(EMPTY, lambda change: None)
    await asyncio.sleep(10)
    heard.clear()

    await asyncio.sleep(30)

    assert 8 <= len(heard) <= 15, "every 2.1 to 3 s, and not twice as often"
    await world.close()
