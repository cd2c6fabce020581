"""History that outlives its process: the form of hours, the file with its bound, and a start."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from zlib import crc32

import pytest
import pytest_asyncio
from typing_extensions import override

from cluster.catalog.catalog_records import QueueName
from sqs_api.admin.every_host import AnswerPart, EveryHost, Heard
from sqs_api.admin.queue_samples import QueueSamples
from sqs_api.cloudwatch.history import History
from sqs_api.cloudwatch.metric_charts import Charts
from sqs_api.cloudwatch.metric_statistics import Window
from sqs_api.cloudwatch.minute_store import HOURS_STORED, QUEUES_MAX, RUNNING, MinuteStore
from sqs_api.cloudwatch.recorder import Recorder
from sqs_api.cloudwatch.stored_hours import (
    PLACES,
    HourDamaged,
    Minutes,
    Values,
    decode_hour,
    encode_hour,
    thinned,
    values_of,
)
from sqs_api.tests.serving import ACCOUNT, REGION, Service, running

HOUR = 1_000_000
"""The hour at which a test begins."""
FIRST = HOUR * 60
VISIBLE = PLACES["ApproximateNumberOfMessagesVisible"]
SENT = PLACES["NumberOfMessagesSent"]
Q = (ACCOUNT, REGION, "q")
MIB = 1 << 20


# -- the form of an hour ---------------------------------------------------------------------------


def test_an_hour_comes_back_as_it_was() -> None:
    minutes: Minutes = {0: {VISIBLE: 7, SENT: 3}, 1: {SENT: 900}, 59: {VISIBLE: 4_200}, 30: {}}
    assert decode_hour(encode_hour(minutes)) == minutes


def test_a_quiet_hour_takes_few_bytes() -> None:
    age = PLACES["ApproximateAgeOfOldestMessage"]
    quiet: Minutes = {minute: {VISIBLE: 5_000, age: 60 * minute + 1} for minute in range(60)}
    assert len(encode_hour(quiet)) < 60


def test_a_thinned_hour_keeps_sums_and_the_greatest_states() -> None:
    minutes: Minutes = {minute: {VISIBLE: minute, SENT: 2} for minute in range(20)}

    found = decode_hour(thinned(encode_hour(minutes), 10))

    assert sorted(found) == list(range(20))
    assert sum(values[SENT] for values in found.values()) == 40
    assert {values[VISIBLE] for values in found.values()} == {9, 19}


def test_a_thinned_hour_is_not_thinned_again() -> None:
    once = thinned(encode_hour({3: {SENT: 5}}), 10)
    assert thinned(once, 10) == once
    assert decode_hour(once)[3] == {SENT: 0.5}


@pytest.mark.parametrize("data", [b"", b"x", encode_hour({1: {SENT: 2}})[:-3]])
def test_bytes_that_are_no_hour_are_refused(data: bytes) -> None:
    with pytest.raises(HourDamaged):
        decode_hour(data)


def test_zeros_are_left_out() -> None:
    assert values_of({"NumberOfMessagesSent": 0.0, "SentMessageSize": 2.4}) == {
        PLACES["SentMessageSize"]: 2
    }


# -- the file --------------------------------------------------------------------------------------


def opened(file: Path, bytes_max: int = 64 * MIB) -> MinuteStore:
    store = MinuteStore(file, bytes_max)
    store.open()
    return store


def tidy(store: MinuteStore, minute: int) -> None:
    while store.tidy(minute):
        pass


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


@pytest.fixture
def store(file: Path) -> Iterator[MinuteStore]:
    made = opened(file)
    yield made
    made.close()


def test_minutes_are_read_before_and_after_their_hour_is_folded(store: MinuteStore) -> None:
    for minute in range(FIRST + 50, FIRST + 70):
        store.write(minute, {Q: {SENT: minute - FIRST}})
    before = store.read([Q, RUNNING], FIRST, FIRST + 120)

    tidy(store, FIRST + 70)

    assert store.read([Q, RUNNING], FIRST, FIRST + 120) == before
    assert before[Q] == {FIRST + minute: {SENT: minute} for minute in range(50, 70)}
    assert list(before[RUNNING]) == list(range(FIRST + 50, FIRST + 70))
    assert list(store.read([Q], FIRST + 55, FIRST + 57)[Q]) == [FIRST + 55, FIRST + 56]


def test_an_idle_queue_takes_no_space_but_the_process_is_known_to_run(store: MinuteStore) -> None:
    store.write(FIRST, {})
    assert store.read([Q, RUNNING], FIRST, FIRST + 1) == {Q: {}, RUNNING: {FIRST: {}}}


def test_a_process_that_is_killed_loses_no_minute(file: Path, store: MinuteStore) -> None:
    store.write(FIRST, {Q: {SENT: 5}})
    copy = file.with_name("copy.sqlite")
    for name in ("", "-wal"):  # as the disk has them while it runs
        content = file.with_name(file.name + name).read_bytes()
        copy.with_name(copy.name + name).write_bytes(content)

    again = opened(copy)

    assert again.read([Q], FIRST, FIRST + 1)[Q] == {FIRST: {SENT: 5}}
    again.close()


def test_two_runs_in_one_minute_add_up(file: Path, store: MinuteStore) -> None:
    store.write(FIRST, {Q: {SENT: 5, VISIBLE: 3}})
    store.close()
    again = opened(file)
    again.write(FIRST, {Q: {SENT: 2, VISIBLE: 1}})

    tidy(again, FIRST + 60)

    assert again.read([Q], FIRST, FIRST + 1)[Q] == {FIRST: {SENT: 7, VISIBLE: 3}}
    again.close()


def test_hours_go_after_two_weeks_and_names_with_them(store: MinuteStore) -> None:
    store.write(FIRST, {Q: {SENT: 1}})
    later = FIRST + HOURS_STORED * 60
    tidy(store, later)
    assert store.read([Q], FIRST, FIRST + 1)[Q]

    store.write(later + 60, {})
    tidy(store, later + 120)

    assert store.read([Q], FIRST, FIRST + 1)[Q] == {}
    assert store.latest(0, 10) == []


def test_more_queues_than_the_bound_are_left_out(
    store: MinuteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqs_api.cloudwatch.minute_store.QUEUES_MAX", 3)
    names = [(ACCOUNT, REGION, f"q{number}") for number in range(5)]
    store.write(FIRST, {name: {SENT: 1} for name in names})

    found = store.read(names, FIRST, FIRST + 1)

    assert [bool(found[name]) for name in names] == [True, True, False, False, False]
    assert QUEUES_MAX >= 10_001


def test_above_its_bound_the_file_is_thinned_and_then_loses_its_oldest_hours(file: Path) -> None:
    bound = 320 * 1024
    store = opened(file, bound)
    names = [(ACCOUNT, REGION, f"q{number}") for number in range(64)]
    hours = 100
    for hour in range(hours):
        for minute in range(0, 60, 4):
            now = FIRST + hour * 60 + minute
            values: dict[QueueName, Values] = {
                name: {SENT: crc32(f"{now} {number}".encode()) % 997 + 1}
                for number, name in enumerate(names)
            }
            store.write(now, values)
        tidy(store, FIRST + hour * 60 + 59)

    minute = FIRST + hours * 60
    tidy(store, minute)

    assert store.pages * 4096 <= bound
    assert file.stat().st_size < 3 * bound
    newest = store.read(names[:1], minute - 60, minute)[names[0]]
    assert len(newest) == 15, "the latest hours are whole"
    assert store.read(names[:1], FIRST, FIRST + 60)[names[0]] == {}, "the oldest are gone"
    kept = store.read(names[:1], FIRST, minute)[names[0]]
    old = [at for at in kept if at < minute - 48 * 60]
    assert old, "thinned hours are kept, not dropped first"
    assert len({kept[at][SENT] for at in old if at // 10 == old[0] // 10}) == 1
    store.close()


@pytest.mark.parametrize("content", [b"this is no database" * 500, b"SQLite format 3\0" + bytes(9)])
def test_a_damaged_file_is_made_anew(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    store = opened(file)
    store.write(FIRST, {Q: {SENT: 1}})
    assert store.read([Q], FIRST, FIRST + 1)[Q] == {FIRST: {SENT: 1}}
    store.close()


@pytest.mark.parametrize("text", [b"namesnames", ACCOUNT.encode() + REGION.encode()])
def test_a_flipped_bit_in_a_text_makes_the_file_anew(file: Path, text: bytes) -> None:
    store = opened(file)
    store.write(FIRST, {Q: {SENT: 1}})
    store.close()
    content = bytearray(file.read_bytes())
    content[content.index(text)] |= 0x80
    file.write_bytes(content)

    store = opened(file)
    store.write(FIRST + 1, {Q: {SENT: 2}})
    assert store.read([Q], FIRST, FIRST + 2)[Q] == {FIRST + 1: {SENT: 2}}
    store.close()


# -- a service -------------------------------------------------------------------------------------


class Run:
    """A process that serves from a folder, on the test's own minutes."""

    def __init__(
        self, service: Service, file: Path, now_s: float, *, has_space: bool = True
    ) -> None:
        self.service = service
        self.now_s = now_s
        self.has_space = has_space
        self.store = MinuteStore(file, 64 * MIB)
        self.recorder = Recorder(self.store, lambda: self.has_space)
        samples = QueueSamples(service.catalog, service.router, service.counts)
        self.history = History(service.catalog, samples, lambda: self.now_s, 10, self.recorder)
        self.charts = Charts(self.history, self.recorder, EveryHost())

    async def minutes_pass(self, minutes: int = 1) -> None:
        for _ in range(minutes):
            await self.history.look()
            self.now_s += 60
            await self.history.look()
            await self.recorder.written()

    async def send(self, *bodies: str) -> None:
        for body in bodies:
            await self.service.call("SendMessage", QueueUrl="q", MessageBody=body)

    async def charted(self, metric: str, minutes: int, period_s: int = 60) -> dict[int, float]:
        """Values by the minute since the first."""
        window = Window(FIRST * 60, FIRST * 60 + minutes * 60, period_s)
        found = await self.charts.of(Q, window)
        return {
            at_s // 60 - FIRST: found.series[metric].get(at_s, 0) for at_s in sorted(found.running)
        }

    async def stop(self) -> None:
        await self.recorder.written()
        await self.history.stop()
        await self.recorder.stop()


@pytest_asyncio.fixture
async def run(file: Path) -> AsyncIterator[Run]:
    async with running() as service:
        await service.make_queue("q")
        made = Run(service, file, FIRST * 60.0)
        yield made
        await made.recorder.stop()


async def test_a_chart_goes_on_after_a_restart(run: Run, file: Path) -> None:
    await run.send("a", "b")
    await run.minutes_pass(2)
    await run.send("c")
    await run.stop()
    async with running() as service:  # the counts of a new process begin at zero
        await service.make_queue("q")
        again = Run(service, file, (FIRST + 4) * 60.0)
        await again.send("d")
        await again.minutes_pass()

        sent = await again.charted("NumberOfMessagesSent", 6)
        visible = await again.charted("ApproximateNumberOfMessagesVisible", 6)

        assert sent == {0: 2, 1: 0, 2: 1, 4: 1, 5: 0}, "minute 3 has nothing: no process ran"
        assert visible == {0: 2, 1: 2, 2: 3, 4: 1, 5: 1}
        assert await again.charted("NumberOfMessagesSent", 6, 180) == {0: 3, 3: 1}
        await again.stop()


async def test_a_start_restores_what_lines_and_cloudwatch_read_from_memory(
    run: Run, file: Path
) -> None:
    await run.send("a", "b")
    await run.minutes_pass(3)
    await run.stop()
    async with running() as service:
        await service.make_queue("q")
        again = Run(service, file, (FIRST + 4) * 60.0)
        await again.history.look()

        found = await again.history.points(
            {Q: ["NumberOfMessagesSent"]}, FIRST, FIRST + 4, with_hours=False
        )

        assert found[Q]["NumberOfMessagesSent"].minutes == [(FIRST, 2)]
        await again.stop()


async def test_without_space_nothing_is_written_and_charts_have_the_memory(
    run: Run,
) -> None:
    run.has_space = False
    await run.send("a")
    await run.minutes_pass(2)

    assert (await run.charted("NumberOfMessagesSent", 3))[0] == 1
    run.has_space = True
    await run.minutes_pass()
    assert run.store.read([Q], FIRST, FIRST + 2)[Q] == {}
    assert run.store.read([Q], FIRST + 2, FIRST + 3)[Q]


async def test_a_disk_that_refuses_costs_points_of_the_chart_only(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(run.store, "write", full)
        await run.send("a")
        await run.minutes_pass(2)
    await run.send("b")
    await run.minutes_pass()

    sent = await run.charted("NumberOfMessagesSent", 4)
    assert [sent[0], sent[2]] == [1, 1]
    assert list(run.store.read([Q], FIRST, FIRST + 9)[Q]) == [FIRST + 2]


async def test_minutes_and_a_stop_do_not_wait_for_what_is_tidied(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run.store, "tidy", lambda minute: True)  # there is always more
    for minute in (FIRST, FIRST + 1):
        run.recorder.write(minute, {Q: {SENT: 1}})
        while len((await run.recorder.read([Q], FIRST, FIRST + 9))[Q]) <= minute - FIRST:
            pass
    run.recorder.write(FIRST + 2, {Q: {SENT: 1}})

    await run.recorder.stop()

    run.store.open()
    assert list(run.store.read([Q], FIRST, FIRST + 9)[Q]) == [FIRST, FIRST + 1, FIRST + 2]


@pytest.mark.parametrize(
    "error",
    [
        sqlite3.DatabaseError("database disk image is malformed"),
        sqlite3.OperationalError("Could not decode to UTF-8 column 'data' with text '\ufffd'"),
        OverflowError("can't serialize ints < -2**63 or > 2**64 - 1"),
    ],
)
async def test_a_file_that_is_damaged_while_it_is_used_begins_anew(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    await run.minutes_pass()
    wrote = run.store.write
    broken = [error]

    def once_broken(*given: object) -> None:
        if broken:
            raise broken.pop()
        wrote(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(run.store, "write", once_broken)
    await run.send("a")
    await run.minutes_pass()

    assert (await run.charted("NumberOfMessagesSent", 3))[1] == 1


class TwoHosts(EveryHost):
    """Asks the charts of two hosts; one that is away is named."""

    def __init__(self) -> None:
        super().__init__(is_one_machine=False, questions=None)
        self.parts: list[AnswerPart] = []
        self.away: list[str] = []

    @override
    def serve(self, action: str, answer: AnswerPart, *, of_folder: bool = False) -> None:
        self.parts.append(answer)

    @override
    async def ask(
        self,
        action: str,
        body: bytes,
        wait_s: float = 0.0,
        hosts: Iterable[str] | None = None,
    ) -> Heard:
        asked = self.parts[: len(self.parts) - len(self.away)]
        return Heard([await part(body) for part in asked], self.away)


async def test_after_a_failover_the_series_of_both_leaders_continue_each_other(
    run: Run, tmp_path: Path
) -> None:
    hosts = TwoHosts()
    run.charts = Charts(run.history, run.recorder, hosts)
    await run.send("a", "b")
    await run.minutes_pass(2)
    async with running() as service:
        await service.make_queue("q")
        other = Run(service, tmp_path / "other.sqlite", (FIRST + 2) * 60.0)
        other.charts = Charts(other.history, other.recorder, hosts)
        await other.send("c", "d", "e")
        await other.minutes_pass(2)

        assert await run.charted("NumberOfMessagesSent", 4) == {0: 2, 1: 0, 2: 3, 3: 0}
        assert await run.charted("NumberOfMessagesSent", 4, 240) == {0: 5}
        assert await run.charted("ApproximateNumberOfMessagesVisible", 4, 240) == {0: 3}
        hosts.away = ["other"]
        found = await run.charts.of(Q, Window(FIRST * 60, FIRST * 60 + 240, 60))
        assert not found.is_complete
        assert sum(found.series["NumberOfMessagesSent"].values()) == 2
        await other.stop()
