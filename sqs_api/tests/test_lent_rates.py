"""Several doors let one rate pass together, whatever each of them is asked for, and at most twice
the rate while the lender changes or is away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from auth.caller import Caller
from cluster.peers.peer_settings import Channel
from cluster.peers.questions import Questions
from cluster.peers.roles import GATEWAY_MARK, GATEWAYS, Neighbour, PeerRole, Place
from cluster.tests.peers.peers import SETTINGS, Peer
from cluster.tests.peers.simulated_network import SimulatedNetwork
from cluster.tests.virtual_time import LoopClock, virtual
from cluster.tests.world import pass_time
from sqs_api.gateway.lent_rates import (
    ASK_S,
    LENT_S,
    LISTEN_S,
    Doors,
    Lender,
    LentRates,
    Wanted,
    fair_part,
)
from sqs_api.gateway.rates import Rates
from sqs_api.periodic import Every, Periodic
from visibility.contract.errors import RequestThrottled

HOST = Neighbour(None, Place("c1", PeerRole.NEIGHBOUR))
GATEWAY = Neighbour(None, Place(GATEWAYS, PeerRole.GATEWAY, GATEWAY_MARK))


class Door:
    """A process that takes requests of clients; the host `a` or `b` lends."""

    def __init__(self, name: str, network: SimulatedNetwork, fleet: Fleet, rate: str) -> None:
        is_gateway = name.startswith("g")
        self.peer = (
            Peer(name, network, SETTINGS, cluster=GATEWAYS, mark=GATEWAY_MARK)
            if is_gateway
            else Peer(name, network, SETTINGS)
        )
        self.rates = Rates(
            LoopClock().monotonic_s, account_rate=rate, queue_rate=None, fifo_quotas=False
        )
        counts = Questions(self.peer.transport, channel=Channel.COUNTS)
        doors = Doors(counts, lambda: fleet.lender, lambda: len(fleet.doors))
        self.fleet = fleet
        self._doors = doors
        self.lent: LentRates
        self.periodic: Periodic
        self.owed = 0.0

    def begin(self) -> None:
        self.lent = LentRates(self.rates, self._doors, LoopClock().monotonic_s)
        self.periodic = Periodic()
        self.periodic.begin(Every(ASK_S, self.lent.look))

    def hits(self, count: int) -> int:
        """The number of hits that pass."""
        passed = 0
        for _ in range(count):
            try:
                self.rates.check_account(Caller("1", "us-east-1", "AIDA"))
            except RequestThrottled:
                continue
            passed += 1
        return passed


class Fleet:
    """Two hosts and two gateways."""

    def __init__(self, rate: str) -> None:
        self.network = SimulatedNetwork()
        self.network.names = {name: (name, GATEWAY_MARK) for name in ("g1", "g2")}
        self.lender: str | None = "a"
        self.doors: dict[str, Door] = {}
        for name in ("a", "b", "g1", "g2"):
            self.doors[name] = Door(name, self.network, self, rate)

    async def start(self) -> None:
        addresses = {name: self.doors[name].peer.address for name in ("a", "b")}
        for name, door in self.doors.items():
            transport = door.peer.transport
            await transport.start(door.peer.address)
            if name in addresses:
                transport.set_peers(addresses)
                transport.set_neighbours({"g1": GATEWAY, "g2": GATEWAY})
            else:
                transport.set_neighbours(
                    {host: HOST._replace(address=at) for host, at in addresses.items()}
                )
        for door in self.doors.values():
            door.begin()
        await pass_time(0.01)

    async def run(self, seconds: float, tick_s: float = 0.01, **rates: float) -> dict[str, int]:
        """The number that passes of so many hits a second at each of these doors."""
        passed = dict.fromkeys(rates, 0)
        for _ in range(round(seconds / tick_s)):
            for name, rate in rates.items():
                door = self.doors[name]
                door.owed += rate * tick_s
                passed[name] += door.hits(int(door.owed))
                door.owed %= 1
            await pass_time(tick_s)
        return passed


@asynccontextmanager
async def fleet_of(rate: str) -> AsyncIterator[Fleet]:
    fleet = Fleet(rate)
    await fleet.start()
    try:
        yield fleet
    finally:
        fleet.network.mend()
        for door in fleet.doors.values():
            await door.lent.stop()
            await door.periodic.stop(1.0)
        for door in fleet.doors.values():
            await door.peer.transport.stop()


@virtual
async def test_one_gateway_alone_gets_the_whole_rate() -> None:
    async with fleet_of("100/second") as fleet:
        await fleet.run(LISTEN_S + 2, g1=500)

        assert await fleet.run(10, g1=500) == {"g1": 1000}
        await fleet.run(1, g1=50)
        assert await fleet.run(10, g1=50) == {"g1": 500}, "below the rate nothing is refused"


@virtual
async def test_two_gateways_let_one_rate_pass_and_what_one_does_not_need_the_other_has() -> None:
    async with fleet_of("100/second") as fleet:
        await fleet.run(LISTEN_S + 2, g1=500, g2=500)

        passed = await fleet.run(10, g1=500, g2=500)
        assert 950 <= sum(passed.values()) <= 1000
        assert min(passed.values()) >= 400

        await fleet.run(3, g1=500, g2=10)
        passed = await fleet.run(10, g1=500, g2=10)
        assert sum(passed.values()) <= 1000
        assert passed["g2"] >= 95
        assert passed["g1"] >= 850


@virtual
async def test_a_rate_of_a_few_a_minute_is_one_of_all_doors_too() -> None:
    async with fleet_of("6/minute") as fleet:
        await fleet.run(LISTEN_S + 1)
        passed = await fleet.run(50, 0.1, g1=1, g2=1)
        assert 4 <= sum(passed.values()) <= 6 + 2, "each may begin with its share"
        later = [sum((await fleet.run(60, 0.1, g1=1, g2=1)).values()) for _ in range(4)]
        assert all(5 <= each <= 12 for each in later), later
        assert sum(later) <= 4 * 6 + 6, "windows may lie badly once"


@virtual
async def test_without_a_lender_each_door_keeps_what_it_has_for_a_time_then_its_share() -> None:
    async with fleet_of("100/second") as fleet:
        await fleet.run(LISTEN_S + 2, g1=500)
        for host in ("a", "b"):
            for gateway in ("g1", "g2"):
                fleet.network.cut(gateway, host)
                fleet.network.cut(host, gateway)

        passed = await fleet.run(LENT_S - 2, g1=500)
        assert passed["g1"] == pytest.approx(100 * (LENT_S - 2), abs=100)
        passed = await fleet.run(5, g1=500, g2=500)
        assert sum(passed.values()) <= 2 * 500, "at most twice the rate"
        assert await fleet.run(10, g1=500, g2=500) == {"g1": 250, "g2": 250}

        fleet.network.mend()
        await fleet.run(15, g1=500)
        assert await fleet.run(10, g1=500) == {"g1": 1000}


@virtual
async def test_another_host_lends_on_what_the_doors_have() -> None:
    async with fleet_of("100/second") as fleet:
        await fleet.run(LISTEN_S + 2, g1=500, g2=500)
        fleet.lender = None
        await fleet.run(3, g1=500, g2=500)
        fleet.lender = "b"
        passed = await fleet.run(LISTEN_S, g1=500, g2=500)
        assert sum(passed.values()) <= 100 * (LISTEN_S + 1)
        passed = await fleet.run(10, g1=500, g2=500)
        assert 950 <= sum(passed.values()) <= 1000


@virtual
async def test_a_host_that_does_not_lend_says_so() -> None:
    """Two that lend would let twice the rate pass."""
    async with fleet_of("100/second") as fleet:
        fleet.doors["g1"]._doors = fleet.doors["g1"]._doors._replace(lender=lambda: "b")
        fleet.doors["g1"].lent._doors = fleet.doors["g1"]._doors
        await fleet.run(LISTEN_S + 2, g1=500)
        assert await fleet.run(10, g1=500) == {"g1": 250}, "its share"


@pytest.mark.parametrize("seed", range(20))
def test_never_more_is_lent_than_the_rate(seed: int) -> None:
    """At any moment, and counting what passed in windows that are not over."""
    chance, now_s = Random(seed), [0.0]
    amount = chance.choice([1, 5, 100, 3000])
    lender = Lender(lambda: now_s[0], lambda kind: (amount, 1.0), lambda: len(names))
    names = [f"d{number}" for number in range(chance.randint(1, 6))]
    held = dict.fromkeys(names, (0, 0.0))
    for _ in range(2000):
        now_s[0] += chance.random() * chance.choice([0.1, 0.1, 4.0])
        door = chance.choice(names)
        lent, until_s = held[door]
        lent = lent if now_s[0] < until_s else 0
        asked = chance.choice([0, 1, amount // 3, 2 * amount])
        wanted = Wanted("account", "1", amount, asked, min(asked, lent), 0.5, lent)
        (given,) = lender.lend(door, [wanted])
        if given is not None:
            held[door] = given, now_s[0] + LENT_S
        live = [lent for lent, until_s in held.values() if now_s[0] < until_s]
        assert sum(live) <= amount


LIAR = Wanted("account", "1", 10**9, 10**9, 10**9, 1e9, 10**9)
"""A door that claims all that there is, and more."""


def test_a_door_that_lies_keeps_its_fair_part_from_the_others_and_no_more() -> None:
    """A gateway stands beside clients: its certificate may fall into other hands."""
    now_s = 0.0
    lender = Lender(lambda: now_s, lambda kind: (100, 1.0), lambda: 2)

    def lend(seconds: float, honest: int, *, lies: bool) -> int | None:
        nonlocal now_s
        given: int | None = None
        for _ in range(round(seconds / ASK_S)):
            now_s += ASK_S
            if lies:
                (most,) = lender.lend("liar", [LIAR])
                assert (most or 0) <= 100
            had = given or 0
            wanted = Wanted("account", "1", 100, honest, min(honest, had), 0.5, had)
            (given,) = lender.lend("honest", [wanted])
        return given

    lend(LISTEN_S + LENT_S + 5, 300, lies=True)
    assert lend(5, 300, lies=True) == 50
    assert lend(5, 20, lies=True) == 20, "what it is asked for"
    lend(LENT_S + 5, 300, lies=False)
    assert lend(1, 300, lies=False) == 100, "what it was lent ends"


def test_a_rate_is_divided_by_what_doors_are_asked_for() -> None:
    assert fair_part(100, 10, []) == 100
    assert fair_part(100, 10, [30]) == 40
    assert fair_part(100, 10, [300]) == 10
    assert fair_part(100, 300, [10]) == 90
    assert fair_part(100, 300, [300, 10]) == 45
    assert fair_part(5, 9, [9]) == 3
    assert fair_part(1, 9, [9, 9]) == 1
