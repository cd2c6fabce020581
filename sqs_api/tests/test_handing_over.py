"""The requests of gateways are in the usage of the fleet exactly once, whichever hosts they were
handed over to, and however a gateway ends; their counts of queues are in CloudWatch's."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from auth.caller import Caller
from cluster.peers.questions import Answer, Question, Said
from cluster.tests.virtual_time import CountingEntropy, SettableClock
from sqs_api.admin.every_host import EveryHost, Heard
from sqs_api.admin.usage_page import UsagePage, UsageParameters
from sqs_api.gateway import handing_over
from sqs_api.gateway.accounting import Accounting
from sqs_api.gateway.exchange import Exchange
from sqs_api.gateway.handing_over import HandingOver, TakingOver
from sqs_api.gateway.queue_counts import GatewayCounts, QueueCounts
from sqs_api.gateway.usage import Usage, UsageRow, read_gateways, read_usage
from sqs_api.tests.serving import ACCOUNT, REGION
from visibility.contract.actions import ACTIONS

DAY_MS = 86_400_000


class _Questions:
    """See `Questions`: reaches the hosts that are not away."""

    def __init__(self, fleet: Fleet, host: str) -> None:
        self.fleet = fleet
        self.host = host

    @property
    def hosts_of_all_clusters(self) -> list[str]:
        return [self.host, *self.fleet.hosts]

    def serve(self, action: str, answer: Answer) -> None:
        self.fleet.hosts[self.host].answer = answer

    async def ask(self, host: str, question: Question, wait_s: float) -> Said | None:
        if host in self.fleet.away:
            return None
        self.fleet.asked += 1
        question = msgspec.structs.replace(question, asker=self.host)  # as its certificate says
        said = await self.fleet.hosts[host].answer(question)
        return None if host in self.fleet.mute else said


class Host:
    """A host: its files and counts."""

    answer: Answer

    def __init__(self, folder: Path, clock: SettableClock) -> None:
        folder.mkdir(exist_ok=True)
        self.file = folder / "usage.sqlite"
        self.usage = Usage(self.file, clock.wall_s, days_kept=3)
        self.counts = QueueCounts()


class Fleet:
    """Two hosts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = SettableClock()
        self.entropy = CountingEntropy()
        self.hosts: dict[str, Host] = {}
        self.away: set[str] = set()
        self.mute: set[str] = set()
        """Their answers get lost."""
        self.asked = 0
        for name in ("a", "b"):
            host = self.hosts[name] = Host(folder / name, self.clock)
            questions: Any = _Questions(self, name)
            TakingOver(questions, host.usage, host.counts)

    async def shown(self, account: str | None = None) -> list[tuple[str, str, int, int]]:
        """Day, account, requests and bytes, as any host says."""
        pages: dict[str, EveryHost] = {}
        for name, host in self.hosts.items():
            pages[name] = EveryHost()

            async def read(account: str | None, since: str | None, file: Path = host.file) -> Any:
                return read_usage(file, account, since), read_gateways(file, account, since)

            UsagePage(read, name, pages[name])
        every: Any = _Every(pages)
        page = UsagePage(None, "x", every)  # type: ignore[arg-type]
        shown = await page.show(UsageParameters(account))
        return [
            (row["day"], row["account"], row["requests"], row["bytes_in"]) for row in shown["rows"]
        ]


class _Every(NamedTuple):
    pages: dict[str, EveryHost]

    def serve(self, action: str, answer: object, *, of_folder: bool = False) -> None:
        """Only hosts answer."""

    async def ask(self, action: str, body: bytes, wait_s: float) -> Heard:
        parts = [(await page.ask(action, body)).parts[0] for page in self.pages.values()]
        return Heard(parts, [])


class Gateway:
    """A process of a gateway over its folder."""

    def __init__(self, fleet: Fleet, name: str = "g") -> None:
        folder = fleet.folder / name
        folder.mkdir(exist_ok=True)
        self.usage = Usage(folder / "usage.sqlite", fleet.clock.wall_s, days_kept=3)
        self.accounting = Accounting(self.usage)
        self.counts = QueueCounts()
        questions: Any = _Questions(fleet, name)
        self.handing_over = HandingOver(
            questions, self.accounting, self.usage, self.counts, fleet.entropy
        )

    def answer(self, times: int, *, bytes_in: int = 10, account: str = ACCOUNT) -> None:
        nobody: Any = None
        caller = Caller(account, REGION, "AIDA", "AKIA", None)
        for _ in range(times):
            exchange = Exchange(nobody, nobody, "1", 0.0, bytes_in, caller=caller)
            exchange.action = ACTIONS["ReceiveMessage"]
            self.accounting.answered(exchange, 200, 0, 0.001)
        self.counts.received_none(7, is_limited=False)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


async def test_what_a_gateway_counted_is_in_the_fleets_usage_once(fleet: Fleet) -> None:
    gateway = Gateway(fleet)
    gateway.answer(3)
    await gateway.handing_over.look()
    assert [row[2:] for row in await fleet.shown()] == [(3, 30)]

    gateway.answer(2)
    await gateway.accounting.write()
    await gateway.handing_over.look()
    await gateway.handing_over.look()
    assert [row[2:] for row in await fleet.shown()] == [(5, 50)]
    assert await fleet.shown("999999999999") == []
    assert fleet.asked == 2, "nothing is sent while there is nothing new"
    assert fleet.hosts["a"].counts.of(7) == GatewayCounts(empty_receives=2)


async def test_two_gateways_and_a_host_add_up(fleet: Fleet) -> None:
    gateways = [Gateway(fleet, name) for name in ("g", "h")]
    for gateway in gateways:
        gateway.answer(3)
        await gateway.handing_over.look()
    fleet.hosts["b"].usage.counters(ACCOUNT, "", "x")[0] += 1

    assert [row[2] for row in await fleet.shown()] == [7]


@pytest.mark.parametrize("lost", ["away", "mute"])
async def test_another_host_takes_over_and_nothing_counts_twice(fleet: Fleet, lost: str) -> None:
    gateway = Gateway(fleet)
    gateway.answer(3)
    await gateway.handing_over.look()
    getattr(fleet, lost).add("a")
    gateway.answer(2)
    await gateway.handing_over.look()
    gateway.answer(1)
    await gateway.handing_over.look()
    assert [row[2] for row in await fleet.shown()] == [6]
    counted = [fleet.hosts[name].counts.of(7).empty_receives for name in ("a", "b")]
    assert sum(counted) == (2 if lost == "away" else 3), "lost with its host, never twice"

    getattr(fleet, lost).clear()
    fleet.away.add("b")
    gateway.answer(1)
    await gateway.handing_over.look()
    fleet.away.clear()
    assert [row[2] for row in await fleet.shown()] == [7]


async def test_while_no_host_is_reached_it_is_kept(fleet: Fleet) -> None:
    gateway = Gateway(fleet)
    fleet.away |= {"a", "b"}
    gateway.answer(3)
    await gateway.handing_over.look()
    assert await fleet.shown() == []

    fleet.away.clear()
    await gateway.handing_over.look()
    assert [row[2] for row in await fleet.shown()] == [3]


async def test_a_gateway_that_is_killed_goes_on_from_its_folder(fleet: Fleet) -> None:
    """Also on another day, and with its first journal not added yet."""
    gateway = Gateway(fleet)
    gateway.answer(3)
    await gateway.handing_over.look()
    gateway.answer(2)
    del gateway

    assert [row[2] for row in await fleet.shown()] == [3], "until it starts again"
    fleet.clock.at_ms += DAY_MS
    gateway = Gateway(fleet)
    gateway.answer(1)
    await gateway.accounting.write()
    await gateway.handing_over.look()
    assert [row[2] for row in await fleet.shown()] == [5, 1]


async def test_a_gateway_with_a_new_folder_is_another_one(fleet: Fleet) -> None:
    """Else its small sums would be hidden by the greater ones before."""
    gateway = Gateway(fleet)
    gateway.answer(3)
    await gateway.handing_over.look()
    for file in (fleet.folder / "g").iterdir():
        file.unlink()
    gateway = Gateway(fleet)
    gateway.answer(1)
    await gateway.handing_over.look()

    assert [row[2] for row in await fleet.shown()] == [4]


async def test_only_days_that_hosts_may_lack_are_sent_again(fleet: Fleet) -> None:
    gateway = Gateway(fleet)
    for day in range(3):
        fleet.clock.at_ms += DAY_MS * bool(day)
        gateway.answer(1)
        await gateway.accounting.write()
        await gateway.handing_over.look()
    gateway = Gateway(fleet)

    found = gateway.usage.to_hand_over("unused")
    assert [row.day for row in found.rows] == [row[0] for row in await fleet.shown()][1:]


async def test_many_rows_go_in_pieces(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handing_over, "ROWS_MAX", 2)
    gateway = Gateway(fleet)
    for account in range(5):
        gateway.answer(1, account=f"{account:012}")
    await gateway.handing_over.look()

    assert [row[2] for row in await fleet.shown()] == [1] * 5
    assert fleet.hosts["a"].counts.of(7).empty_receives == 5, "each piece has the same counts"


async def test_hosts_forget_days_of_gateways_as_their_own(fleet: Fleet) -> None:
    gateway = Gateway(fleet)
    gateway.answer(1)
    await gateway.handing_over.look()
    fleet.clock.at_ms += 4 * DAY_MS
    journals, rows = fleet.hosts["a"].usage.take()
    fleet.hosts["a"].usage.write(journals, rows)

    assert await fleet.shown() == []


async def invent(fleet: Fleet, name: str, folder: str, rows: list[UsageRow], count: int) -> None:
    """Hand over to host `a` what was never counted, with the certificate of this gateway."""
    counts = [(7, GatewayCounts(empty_receives=count))]
    handed = handing_over._Handed(folder, rows, f"process of {name}", 1, counts)
    questions: Any = _Questions(fleet, name)
    await questions.ask("a", Question("hand-over", b"", msgspec.msgpack.encode(handed)), 1.0)


async def test_a_gateway_has_no_rows_under_the_name_of_another_one(fleet: Fleet) -> None:
    """It would hide what the other one counts: the greater sum counts."""
    gateway = Gateway(fleet)
    gateway.answer(3)
    await gateway.handing_over.look()
    found = gateway.usage.to_hand_over("unused")
    (row,) = found.rows

    await invent(fleet, "h", found.gateway, [row._replace(requests=1000)], 0)
    gateway.answer(1)
    await gateway.handing_over.look()

    kept = read_gateways(fleet.hosts["a"].file, None, None)
    assert {each.gateway.split("/")[0]: each.row.requests for each in kept} == {"g": 4, "h": 1000}


async def test_what_no_gateway_can_have_counted_is_not_taken(fleet: Fleet) -> None:
    gateway = Gateway(fleet)
    gateway.answer(1)
    (row,) = gateway.usage.to_hand_over("id").rows
    today = date.fromisoformat(row.day)
    wrong = [
        row._replace(day=(today + timedelta(days=2)).isoformat()),
        row._replace(day=(today - timedelta(days=4)).isoformat()),
        row._replace(day="today"),
        row._replace(day=row.day.replace("-", "")),
        row._replace(requests=-1),
        row._replace(bytes_in=1 << 63),
    ]

    await invent(fleet, "g", "id", [*wrong, row], -5)

    assert [shown[2:] for shown in await fleet.shown()] == [(1, 10)]
    assert fleet.hosts["a"].counts.of(7) == GatewayCounts()
