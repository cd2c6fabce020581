"""Traps of a real etcd: members that are killed, frozen or alone, answers that are lost.

`/v3` answers as etcd gives them; the traps in which time passes are in test_etcd_simulated.py, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping

import pytest

from cluster.coordination.coordination import (
    EMPTY,
    Change,
    Conflict,
    Done,
    Outcome,
    Snapshot,
    Transaction,
    Unavailable,
    Unknown,
)
from cluster.coordination.etcd_client import Access, EtcdClient
from cluster.coordination.etcd_coordination import EtcdCoordination
from cluster.coordination.etcd_messages import TXN, Watch, WatchAnswer, WatchFrom
from cluster.coordination.etcd_wire import HttpWire, NoAnswer, Reply
from cluster.tests.coordinations import Hosts, until
from cluster.tests.etcd_processes import EtcdProcesses, Member

pytestmark = pytest.mark.slow

SILENCE_S = 0.5


class LossyWire(HttpWire):
    """HTTP that loses what a test wants to be lost."""

    def __init__(self) -> None:
        super().__init__()
        self.lose_next: list[str] = []
        """Of the next transactions: the "request" or the "answer"; others arrive."""
        self.refuses_streams = False
        self.sent = 0

    async def post(
        self, endpoint: str, path: str, body: bytes, headers: Mapping[str, str], limit_s: float
    ) -> Reply:
        lost = ""
        if path == TXN:
            self.sent += 1
            lost = self.lose_next.pop(0) if self.lose_next else ""
        if lost == "request":
            raise NoAnswer("lost", was_sent=True)
        reply = await super().post(endpoint, path, body, headers, limit_s)
        if lost == "answer":
            raise NoAnswer("lost", was_sent=True)
        return reply

    async def stream(
        self, endpoint: str, path: str, body: bytes, headers: Mapping[str, str], limit_s: float
    ) -> AsyncGenerator[bytes]:
        if self.refuses_streams:
            raise NoAnswer("cut", was_sent=False)
        async for line in super().stream(endpoint, path, body, headers, limit_s):
            if self.refuses_streams:
                raise NoAnswer("cut", was_sent=False)
            yield line


@pytest.fixture
async def etcd(etcd: EtcdProcesses) -> AsyncIterator[EtcdProcesses]:
    yield etcd
    await asyncio.to_thread(etcd.repair)


@pytest.fixture
async def hosts(etcd: EtcdProcesses) -> AsyncIterator[Hosts]:
    made = Hosts(Access(etcd.endpoints), HttpWire)
    yield made
    await made.close()


def hosts_asking_first(etcd: EtcdProcesses, hosts: Hosts, first: Member) -> None:
    """Let the hosts that are made from now on ask this member first."""
    others = [each for each in etcd.endpoints if each != first.endpoint]
    hosts.access = Access((first.endpoint, *others))


def put(key: str, value: bytes = b"") -> Transaction:
    return Transaction({}, {key: value})


async def read(host: EtcdCoordination) -> dict[str, int]:
    """Keys with their revisions."""
    found = await host.read_all()
    assert isinstance(found, Snapshot), found
    return {record.key: record.revision for record in found.records}


async def done(host: EtcdCoordination, transaction: Transaction) -> int:
    outcome = await host.commit(transaction)
    assert isinstance(outcome, Done), outcome
    return outcome.revision


# -- unknown outcomes ------------------------------------------------------------------------------


async def test_a_transaction_whose_answer_is_lost_is_found_to_have_happened(hosts: Hosts) -> None:
    wire = LossyWire()
    host = hosts.host(wire)
    wire.lose_next = ["answer"]

    revision = await done(host, Transaction({"a": 0}, {"a": b"1"}))

    assert await read(host) == {"a": revision}
    assert wire.sent == 2, "sent once, settled once"


async def test_a_conflict_whose_answer_is_lost_is_found_to_be_one(hosts: Hosts) -> None:
    wire = LossyWire()
    host = hosts.host(wire)
    revision = await done(host, put("a"))
    wire.lose_next = ["answer"]

    outcome = await host.commit(Transaction({"a": 0}, {"a": b"1"}))

    assert isinstance(outcome, Conflict)
    assert outcome.revision > revision
    assert await read(host) == {"a": revision}


async def test_a_transaction_that_never_arrived_is_sent_again(hosts: Hosts) -> None:
    wire = LossyWire()
    host = hosts.host(wire)
    wire.lose_next = ["request", "answer", "request", "", "answer"]

    first = await done(host, put("a"))
    second = await done(host, Transaction({"a": first}, {"a": b"2"}))

    assert await read(host) == {"a": second}
    assert not wire.lose_next


async def test_an_outcome_that_cannot_be_found_out_in_time_is_unknown(hosts: Hosts) -> None:
    wire = LossyWire()
    host = hosts.host(wire, deadline_s=0.3)
    await done(host, put("a"))
    wire.lose_next = ["answer"] + ["request"] * 100

    outcome = await host.commit(put("b"))

    assert isinstance(outcome, Unknown)
    assert "b" in await read(host)
    wire.lose_next = []
    await done(host, put("c"))


async def test_a_second_process_of_the_same_name_does_no_harm(hosts: Hosts) -> None:
    one, other = hosts.host(name="twin"), hosts.host(name="twin")

    for number in range(6):
        host = (one, other)[number % 2]
        await done(host, put(str(number)))

    assert len(await read(one)) == 6


async def test_transactions_in_flight_when_the_leader_is_killed_happen_once_or_not_at_all(
    etcd: EtcdProcesses, hosts: Hosts
) -> None:
    several = [hosts.host(deadline_s=30) for _ in range(4)]
    outcomes: dict[str, Outcome] = {}
    leader = await asyncio.to_thread(etcd.leader)

    async def write(number: int, host: EtcdCoordination) -> None:
        for count in range(40):
            key = f"{number}-{count}"
            outcomes[key] = await host.commit(Transaction({key: 0}, {key: b""}))
            if len(outcomes) == 60:
                etcd.kill(leader)

    await asyncio.gather(*[write(number, host) for number, host in enumerate(several)])

    assert all(isinstance(outcome, Done) for outcome in outcomes.values()), "two are a majority"
    revisions = {key: each.revision for key, each in outcomes.items() if isinstance(each, Done)}
    assert await read(several[0]) == revisions


# -- members that are away -------------------------------------------------------------------------


async def test_a_frozen_member_costs_a_request_its_share_of_the_time(
    etcd: EtcdProcesses, hosts: Hosts
) -> None:
    frozen = (await asyncio.to_thread(etcd.followers))[0]
    hosts_asking_first(etcd, hosts, frozen)
    host = hosts.host(deadline_s=6)
    etcd.freeze(frozen)

    await done(host, put("a"))

    assert list(await read(host)) == ["a"]


async def test_a_lone_member_is_unavailable_within_the_deadline(
    etcd: EtcdProcesses, hosts: Hosts
) -> None:
    host, patient = hosts.host(deadline_s=1), hosts.host()
    heard: list[Change] = []
    await done(patient, put("a"))
    await host.watch(EMPTY, heard.append)
    for member in etcd.members[1:]:
        etcd.freeze(member)

    async with asyncio.timeout(20):
        refused = await host.commit(put("b"))
        nothing_read = await host.read_all()
        no_lease = await host.grant(1, lambda: None)

    assert isinstance(refused, Unavailable | Unknown)
    assert isinstance(nothing_read, Unavailable)
    assert isinstance(no_lease, Unavailable)

    await asyncio.to_thread(etcd.repair)
    await done(patient, put("c"))
    assert {"a", "c"} <= set(await read(patient))
    await until(lambda: any("c" in change.records for change in heard))


async def test_a_member_that_is_cut_off_ends_its_watches(etcd: EtcdProcesses, hosts: Hosts) -> None:
    hosts_asking_first(etcd, hosts, etcd.members[0])
    client = EtcdClient(hosts.access, HttpWire())
    watch = client.watch(Watch(WatchFrom(b"/a", b"/b", 1, progress_notify=True)), 10)
    assert (await anext(watch)).created

    for member in etcd.members[1:]:
        etcd.freeze(member)
    with pytest.raises(NoAnswer, match="no leader"):
        await to_its_end(watch)

    await client.close()


async def to_its_end(watch: AsyncIterator[WatchAnswer]) -> None:
    async with asyncio.timeout(30):
        async for _ in watch:
            pass


async def test_a_watch_leaves_a_member_that_fell_silent(etcd: EtcdProcesses, hosts: Hosts) -> None:
    watched = (await asyncio.to_thread(etcd.followers))[0]
    writer = hosts.host()
    hosts_asking_first(etcd, hosts, watched)
    watcher = hosts.host(deadline_s=2, silence_s=SILENCE_S)
    heard: list[Change] = []
    await watcher.watch(EMPTY, heard.append)
    first = await done(writer, put("a"))
    await until(lambda: any(change.revision == first for change in heard))

    etcd.freeze(watched)
    second = await done(writer, put("b"))
    await until(lambda: heard[-1].revision >= second)
    etcd.thaw(watched)
    third = await done(writer, put("c"))
    await until(lambda: heard[-1].revision >= third)

    assert [list(change.records) for change in heard if change.records] == [["a"], ["b"], ["c"]]


async def test_a_member_that_slept_through_an_election_is_not_believed(
    etcd: EtcdProcesses, hosts: Hosts
) -> None:
    old = await asyncio.to_thread(etcd.leader)
    host = hosts.host(deadline_s=4)
    await done(host, put("a"))
    etcd.freeze(old)
    assert await asyncio.to_thread(etcd.leader) != old
    revision = await done(host, put("b"))
    etcd.thaw(old)

    hosts_asking_first(etcd, hosts, old)
    asking_it_first = hosts.host()

    assert (await read(asking_it_first))["b"] == revision


async def test_progress_is_reported_without_changes(hosts: Hosts, etcd: EtcdProcesses) -> None:
    """A write below another prefix moves the revision, too."""
    host, elsewhere = hosts.host(), Hosts(hosts.access, HttpWire).host()
    heard: list[Change] = []
    await host.watch(EMPTY, heard.append)

    revision = await done(elsewhere, put("other"))
    await until(lambda: bool(heard) and heard[-1].revision >= revision)

    assert all(not change.records for change in heard)
    await elsewhere.close()


# -- compaction, replacement -----------------------------------------------------------------------


async def compact(endpoint: str, revision: int) -> None:
    wire = HttpWire()
    body = b'{"revision": %d, "physical": true}' % revision
    reply = await wire.post(endpoint, "/v3/kv/compaction", body, {}, 10)
    assert reply.status == 200, reply
    await wire.close()


async def test_a_watch_whose_changes_were_compacted_reports_the_difference(
    etcd: EtcdProcesses, hosts: Hosts
) -> None:
    writer, wire = hosts.host(), LossyWire()
    watcher = hosts.host(wire, silence_s=SILENCE_S)
    heard: list[Change] = []
    stays = await done(writer, Transaction({}, dict.fromkeys("abc", b"1")))
    found = await watcher.read_all()
    assert isinstance(found, Snapshot)
    await watcher.watch(found, heard.append)
    wire.refuses_streams = True
    for count in range(5):
        await done(writer, put("d", b"%d" % count))
    changed = await done(writer, Transaction({}, {"a": b"2", "b": None}))
    last = await done(writer, put("d", b"last"))
    await compact(etcd.endpoints[0], last)

    wire.refuses_streams = False
    await until(lambda: any(change.records for change in heard))
    (change,) = [each for each in heard if each.records]

    assert change.records == {"a": b"2", "b": None, "d": b"last"}
    assert (change.revision_of("a"), change.revision_of("d")) == (changed, last)
    assert (await read(writer))["c"] == stays
    later = await done(writer, put("e"))
    await until(lambda: heard[-1].revision >= later)


async def test_a_read_whose_revision_is_compacted_meanwhile_begins_anew(
    etcd: EtcdProcesses, hosts: Hosts
) -> None:
    class Compacting(HttpWire):
        pages = 0

        async def post(
            self, endpoint: str, path: str, body: bytes, headers: Mapping[str, str], limit_s: float
        ) -> Reply:
            reply = await super().post(endpoint, path, body, headers, limit_s)
            self.pages += 1
            if self.pages == 1:
                last = await done(writer, put("last"))
                await compact(endpoint, last)
            return reply

    writer = hosts.host()
    await done(writer, Transaction({}, {f"{number:02}": b"" for number in range(20)}))

    assert len(await read(hosts.host(Compacting()))) == 21


async def test_an_etcd_without_data_replaces_one(etcd: EtcdProcesses, hosts: Hosts) -> None:
    host = hosts.host(silence_s=SILENCE_S)
    heard: list[Change] = []
    await host.watch(EMPTY, heard.append)
    for key in "abcdefgh":
        last = await done(host, put(key))
    lost: list[str] = []
    await host.grant(2, lambda: lost.append("lease"))
    await until(lambda: bool(heard) and heard[-1].revision >= last)

    await asyncio.to_thread(etcd.wipe)
    await until(lambda: heard[-1].records == dict.fromkeys("abcdefgh"))

    assert await done(host, put("i")) < last
    await until(lambda: any("i" in change.records for change in heard))
    await until(lambda: lost == ["lease"])


async def test_an_etcd_that_lost_what_others_then_wrote_again_is_noticed(
    etcd: EtcdProcesses, hosts: Hosts
) -> None:
    """It is restored and gets as far again while one host is cut off."""
    wire = LossyWire()
    writer, watcher = hosts.host(), hosts.host(wire, silence_s=SILENCE_S)
    await done(writer, put("a", b"stays"))
    await asyncio.to_thread(etcd.keep)
    view: dict[str, bytes | None] = {}
    changes: list[Change] = []

    def listen(change: Change) -> None:
        changes.append(change)
        view.update(change.records)

    found = await watcher.read_all()
    assert isinstance(found, Snapshot)
    await watcher.watch(found, listen)
    for number in range(3):
        await done(writer, put(f"lost-{number}", b"lost"))
    await until(lambda: len(view) == 3 and not changes[-1].revisions)
    wire.refuses_streams = True
    last = changes[-1].revision

    await asyncio.to_thread(etcd.go_back)
    while await done(writer, put("a", b"then")) <= last + 2:
        pass
    wire.refuses_streams = False
    await until(lambda: view.get("a") == b"then")
    await until(lambda: not any(view[f"lost-{number}"] for number in range(3)))
    assert changes[-1].revision > last


# -- size ------------------------------------------------------------------------------------------


async def test_ten_thousand_records_are_read_in_pages(hosts: Hosts) -> None:
    host = hosts.host(page=500)
    names = [f"queues/{number:05}" for number in range(10_000)]
    for begin in range(0, len(names), 100):
        await done(host, Transaction({}, dict.fromkeys(names[begin : begin + 100], bytes(1_000))))

    assert list(await read(host)) == names


async def test_the_state_of_each_member_is_known(etcd: EtcdProcesses, hosts: Hosts) -> None:
    host = hosts.host(deadline_s=3)
    leader = await asyncio.to_thread(etcd.leader)
    frozen = (await asyncio.to_thread(etcd.followers))[0]
    etcd.freeze(frozen)

    states = await host.members()

    assert {state.endpoint for state in states} == set(etcd.endpoints)
    assert [state.endpoint for state in states if not state.is_reached] == [frozen.endpoint]
    states = [state for state in states if state.is_reached]
    assert all(state.has_leader for state in states)
    assert all(state.quota_bytes > state.database_bytes for state in states)
    assert [state.endpoint for state in states if state.is_leader] == [leader.endpoint]
    assert all(state.database_bytes > 0 for state in states)
    assert all(not state.alarms for state in states)
