"""The parts of a service with several workers, each alone; `compat_tests/test_workers.py` has the
processes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr
from typing_extensions import override

from cluster.coordination.coordination import (
    Change,
    Conflict,
    Done,
    Snapshot,
    Transaction,
    Unavailable,
    Unknown,
)
from cluster.coordination.sqlite_coordination import SqliteCoordination
from cluster.peers.peer_settings import Address
from sqs_api.admin.every_host import EveryHost
from sqs_api.gateway.usage import Usage, read_usage
from sqs_api.gateway.usage_journal import Writer
from sqs_api.settings.config import ConfigRefused, Settings, load, shards_of, workers_of
from sqs_api.workers.all_metrics import merged
from sqs_api.workers.conversation import (
    Answered,
    Changed,
    CommitRecords,
    Conversation,
    OfSupervisor,
    OfWorker,
    ReadRecords,
    WatchRecords,
)
from sqs_api.workers.given_settings import decoded_settings, encoded_settings, settings_of_each
from sqs_api.workers.pair_network import (
    PairNetwork,
    SocketKind,
    received_ends,
    send_end,
    worker_name,
)
from sqs_api.workers.shared_records import RecordsSession, SharedRecords
from sqs_api.workers.supervisor import listen
from storage.files.folder import add_shards, open_folder

# -- settings --------------------------------------------------------------------------------------


def test_a_worker_gets_the_settings_with_its_share_of_the_limits(tmp_path: Path) -> None:
    settings = Settings(
        workers="4",
        data=tmp_path,
        master_key=SecretStr("c2VjcmV0"),
        access_key_id="AKIA0000",
        secret_access_key=SecretStr("s" * 20),
        connections_max=1000,
        waiting_polls_max=10,
        tls_certificate=tmp_path / "certificate",
    )

    given = decoded_settings(encoded_settings(settings_of_each(settings, 4)))

    assert given.model_dump() == {
        **settings.model_dump(),
        "connections_max": 250,
        "waiting_polls_max": 2,
        "request_memory_bytes": 64 << 20,
        "access_key_id": None,
        "secret_access_key": None,
    }
    assert not given.is_alone


def test_workers_are_a_number_or_one_for_each_core() -> None:
    assert workers_of(Settings(workers="auto")) >= 1
    assert Settings().is_alone
    assert shards_of(Settings(workers="3")) == 3
    assert shards_of(Settings(workers="3", shards=5)) == 5
    for wrong in ("0", "17", "many", "-1"):
        with pytest.raises(ConfigRefused, match="workers: must be a number from 1 to 16"):
            load({"workers": wrong}, None)


def test_a_configuration_file_has_workers_as_a_number_too(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text("workers = 2\n")

    assert workers_of(load({}, file)) == 2


def test_several_workers_need_synced_logs() -> None:
    with pytest.raises(ConfigRefused, match="durability: must be fsync with several shards"):
        load({"workers": "2", "durability": "os"}, None)


# -- the folder ------------------------------------------------------------------------------------


def test_shards_are_added_and_never_removed(tmp_path: Path) -> None:
    assert list(open_folder(tmp_path)) == [0]

    assert list(add_shards(tmp_path, 3)) == [0, 1, 2]
    assert list(add_shards(tmp_path, 2)) == [0, 1, 2]
    assert open_folder(tmp_path)[2] == tmp_path / "shard-2"


async def _until(claim: Callable[[], bool]) -> None:
    while not claim():  # noqa: ASYNC110 it is another process's turn
        await asyncio.sleep(0)


# -- records ---------------------------------------------------------------------------------------


class _Shared:
    """Records of a file, over a conversation."""

    def __init__(
        self, records: SharedRecords, file: SqliteCoordination, end: asyncio.Event
    ) -> None:
        self.records = records
        self.file = file
        self.end = end
        """Set to end the supervisor's side."""
        self.lost = asyncio.Event()
        """Set once the worker has seen that."""


@asynccontextmanager
async def _shared(file: Path) -> AsyncIterator[_Shared]:
    coordination = await SqliteCoordination.open(file)
    one, other = socket.socketpair()
    worker = await Conversation.open(one, OfSupervisor)
    supervisor = await Conversation.open(other, OfWorker)
    records = SharedRecords(worker.send)
    session = RecordsSession(coordination, supervisor)
    end = asyncio.Event()
    shared = _Shared(records, coordination, end)

    async def serve() -> None:
        while (message := await supervisor.receive()) is not None:
            assert isinstance(message, ReadRecords | CommitRecords | WatchRecords)
            session.asked(message)
        session.end()

    async def hear() -> None:
        while (message := await worker.receive()) is not None:
            if isinstance(message, Answered):
                records.answered(message)
            else:
                assert isinstance(message, Changed)
                records.changed(message)
        records.lost()
        shared.lost.set()

    async def end_supervisor() -> None:
        await end.wait()
        supervisor.close()

    tasks = [asyncio.create_task(each()) for each in (serve, hear, end_supervisor)]
    yield shared
    end.set()
    worker.close()
    await asyncio.gather(*tasks)
    await coordination.close()


async def test_records_are_read_changed_and_watched_from_another_process(tmp_path: Path) -> None:
    async with _shared(tmp_path / "records.sqlite") as shared:
        below = shared.records.below("catalog/")
        start = await below.read_all()
        assert isinstance(start, Snapshot)
        seen: list[Change] = []
        await below.watch(start, seen.append)

        done = await below.commit(Transaction({"a": 0}, {"a": b"1", "b": b"2"}))
        assert isinstance(done, Done)
        assert isinstance(await below.commit(Transaction({"a": 0}, {"a": b"3"})), Conflict)
        elsewhere = Transaction({}, {"catalog/b": None, "identities/c": b"4"})
        last = await shared.file.commit(elsewhere)
        assert isinstance(last, Done)
        await _until(lambda: len(seen) == 2)

        assert [(each.revision, dict(each.records)) for each in seen] == [
            (done.revision, {"a": b"1", "b": b"2"}),
            (last.revision, {"b": None}),
        ]
        found = await below.read(["a", "b"])
        assert isinstance(found, Snapshot)
        assert [(record.key, record.value) for record in found.records] == [("a", b"1")]


async def test_without_the_supervisor_nothing_is_known_to_have_happened(tmp_path: Path) -> None:
    async with _shared(tmp_path / "records.sqlite") as shared:
        shared.end.set()
        outcome = await shared.records.commit(Transaction({}, {"a": b"1"}))
        assert isinstance(outcome, Unknown | Unavailable | Done)
        await shared.lost.wait()
        assert isinstance(await shared.records.read_all(), Unavailable)
        assert isinstance(await shared.records.commit(Transaction({}, {})), Unavailable)


# -- pairs -----------------------------------------------------------------------------------------


class _Heard(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.peer: object = None
        self.data = b""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.peer = transport.get_extra_info("peercert")["subjectAltName"]

    @override
    def data_received(self, data: bytes) -> None:
        self.data += data


async def test_a_pair_connects_two_workers_under_the_names_that_the_supervisor_gives() -> None:
    own, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    other, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    opener, acceptor = (
        PairNetwork(own, socket.socket.close),
        PairNetwork(other, socket.socket.close),
    )
    accepted: list[_Heard] = []

    def accept() -> _Heard:
        accepted.append(_Heard())
        return accepted[-1]

    await acceptor.listen(Address(worker_name(1), 0), accept)
    begun = _Heard()
    await opener.connect(worker_name(1), Address(worker_name(1), 0), begun)
    ours.setblocking(False)
    ((kind, to, (end,)),) = received_ends(ours, lambda: None)
    assert (kind, to) == (SocketKind.PAIR, worker_name(1))
    send_end(theirs, kind, worker_name(0), end)
    end.close()
    begun.transport.write(b"hello")
    await _until(lambda: bool(accepted and accepted[0].data))

    assert (begun.peer, accepted[0].peer) == ((("DNS", "worker-1"),), (("DNS", "worker-0"),))
    assert accepted[0].data == b"hello"
    begun.transport.close()
    acceptor.close()
    for each in (ours, theirs, own, other):
        each.close()


# -- listening -------------------------------------------------------------------------------------


async def test_workers_share_a_port_with_each_other_and_with_nobody_else() -> None:
    listening = await listen(Settings(port=0), 3)
    port = int(listening.address.rpartition(":")[2])
    try:
        assert {each.getsockname()[1] for (each,) in listening.main} == {port}
        with pytest.raises(OSError, match="in use"):
            await listen(Settings(port=port), 2)
    finally:
        for (each,) in listening.main:
            each.close()


# -- what lies in the folder -----------------------------------------------------------------------


def _count(usage: Usage, queue: str) -> None:
    usage.counters("000000000000", queue, "SendMessage 200")[0] += 1


def test_workers_write_their_own_journals_only(tmp_path: Path) -> None:
    file, now = tmp_path / "usage.sqlite", lambda: 1e9
    usages = [Usage(file, now, 1000, Writer(number, 2)) for number in range(2)]
    for number, usage in enumerate(usages):
        _count(usage, f"q{number}")

    usages[0].write(*usages[0].take())
    _count(usages[1], "q1-again")

    assert {(row.queue, row.requests) for row in read_usage(file, None, None)} == {
        ("q0", 1),
        ("q1", 1),
        ("q1-again", 1),
    }
    usages[1].write(*usages[1].take())
    usages[0].write(*usages[0].take())
    assert sum(row.requests for row in read_usage(file, None, None)) == 3


def test_the_first_worker_adds_the_journals_of_workers_that_are_no_more(tmp_path: Path) -> None:
    file, now = tmp_path / "usage.sqlite", lambda: 1e9
    _count(Usage(file, now, 1000, Writer(3, 4)), "left")

    second = Usage(file, now, 1000, Writer(1, 2))
    assert second.take() == ([], [])
    first = Usage(file, now, 1000, Writer(0, 2))
    journals, rows = first.take()
    first.write(journals, rows)

    assert len(journals) == 1
    assert not journals[0].exists()
    assert sum(row.requests for row in read_usage(file, None, None)) == 1


async def test_what_lies_in_the_folder_is_answered_once() -> None:
    hosts = EveryHost(None, is_one_machine=True)

    async def answer(body: bytes) -> bytes:
        return body

    hosts.serve("ReadUsage", answer, of_folder=True)
    assert (await hosts.ask("ReadUsage", b"x")).parts == [b"x"]


def test_metrics_of_workers_are_told_apart_and_families_come_once() -> None:
    def page(count: int) -> bytes:
        return (
            b"# HELP a_total Things, {braces} too.\n# TYPE a_total counter\n"
            b'a_total{q="x {y"} %d.0\n'
            b"# HELP b Others.\n# TYPE b gauge\nb %d.0\n" % (count, count)
        )

    assert merged({1: page(2), 0: page(1)}).decode() == (
        "# HELP a_total Things, {braces} too.\n# TYPE a_total counter\n"
        'a_total{worker="0",q="x {y"} 1.0\n'
        'a_total{worker="1",q="x {y"} 2.0\n'
        "# HELP b Others.\n# TYPE b gauge\n"
        'b{worker="0"} 1.0\n'
        'b{worker="1"} 2.0\n'
    )
