"""Faults that only a fleet can meet: one of its clusters stops as a whole, the host that plans is
killed, queues are split and shrunk all the time, and a cluster is emptied meanwhile."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterable
from http import HTTPStatus
from itertools import cycle
from operator import itemgetter
from typing import Any, NamedTuple

from typing_extensions import override

from compat_tests.benchmarks.bench_wire import Endpoint
from compat_tests.cluster_process import HOSTS, SECOND, ClusterFolder
from compat_tests.faults.fault_history import History, Outage
from compat_tests.faults.lanes import consume
from compat_tests.faults.traffic import Lane, Traffic
from compat_tests.pages import ask

RESIZED = {"standard": "plain", "fifo": "order.fifo"}
"""The queue of each kind that is split and shrunk."""
_CLUSTERS = (HOSTS, SECOND)
_PATIENCE_S = 180.0
_REST_S = 1.0
_HALF_ROUND_S = (1.0, 4.0)
_PARTS_MAX = 16
"""With those that drain, which takes the ten minutes of late retries at least. While a cluster is
emptied, one of them is for a move."""
_PLANNED_S = 60.0
"""The manager moves what it may in this time. It leaves alone a queue that changed within ten
minutes, as those that are split and shrunk all the time: an operator moves these."""
_EMPTIED_S = 900.0
_CONSUMERS = {"standard": 6, "fifo": 2}
"""So that a part that drains is empty soon: three consumers are slower than the senders."""


class FleetRefused(Exception):
    """A change of the fleet failed in every attempt; the text is its last answer."""


class Shown(NamedTuple):
    """A part of a queue."""

    number: int
    shard: int
    is_open: bool


class Hosts:
    """The hosts of a fleet as an operator asks them: gateways do not know its clusters, nor may
    they look at parts."""

    def __init__(self, endpoint: Endpoint, folder: ClusterFolder) -> None:
        assert endpoint.credentials is not None
        self.endpoint = endpoint
        self.folder = folder
        self._credentials = endpoint.credentials
        self._in_turn = cycle((*HOSTS, *SECOND))

    def ask(self, page: str, content: object = None) -> tuple[int, Any]:
        """Status and answer of the next host; 0 and an error if it does not answer."""
        try:
            url = self.folder.cluster().hosts[next(self._in_turn)]
            return ask(url, self._credentials, page, content)
        except OSError as error:
            return 0, str(error)

    def insist(
        self, page: str, content: object = None, is_known: Callable[[Any], object] = bool
    ) -> Any:
        """The first answer that tells it. The next host is asked while a fault is at work, or
        while a change waits for a part that drains. Raises FleetRefused."""
        end = time.monotonic() + _PATIENCE_S
        while True:
            status, said = self.ask(page, content)
            if status == HTTPStatus.OK and is_known(said):
                return said
            if time.monotonic() > end:
                raise FleetRefused(f"{page}: {status} {said}")
            time.sleep(_REST_S)

    def parts_of(self, queue: str) -> list[Shown]:
        """The parts of a queue, those that drain among them. Raises FleetRefused."""
        return [
            Shown(part["number"], part["shard"], part["state"] == "open")
            for part in self.insist(_page(queue))["parts"]
        ]


def _page(queue: str, change: str = "") -> str:
    return f"api/queues/{queue}/parts{change and '/'}{change}"


def lasting(history: History) -> list[str]:
    """The queues that exist for the whole run."""
    return [name for name in history.queues if not name.startswith("passing-")]


def shards_of_cluster(number: int) -> set[int]:
    """The shards of the first or second cluster, which have three each."""
    return set(range(3 * number - 3, 3 * number))


def planner_of(hosts: Hosts) -> str:
    """The host that plans. Raises FleetRefused."""
    said = hosts.insist("api/fleet/plan", is_known=itemgetter("holder"))
    return str(said["holder"])


def stop_cluster(hosts: Hosts, history: History, seconds: float, moving: set[str]) -> str:
    """Stop all hosts of one cluster at once, longer than their leases, then let them go on.
    The next call stops the other cluster.

    Meanwhile calls on its queues may fail, and on those of which parts come and go, `moving`; on no
    others. Raises FleetRefused.
    """
    number = len(history.outages) % len(_CLUSTERS)
    shards = shards_of_cluster(number + 1)
    touched = {
        name for name in lasting(history) if shards & {part.shard for part in hosts.parts_of(name)}
    }
    outage = Outage(frozenset(touched | moving), time.monotonic())
    history.outages.append(outage)
    for host in _CLUSTERS[number]:
        hosts.folder.signal(host, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        for host in _CLUSTERS[number]:
            hosts.folder.signal(host, signal.SIGCONT)
    hosts.folder.wait_until_all_are_ready()
    outage.ended = time.monotonic()
    return f"{' '.join(_CLUSTERS[number])}, with {' '.join(sorted(touched)) or 'no queue'}"


class Work:
    """Changes of a fleet that go on beside its faults. Runs in a thread of its own."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self.is_ending = False
        self.refused: list[str] = []
        """The refusal that ended it early."""

    @property
    def wants_more(self) -> bool:
        """True while the run is to go on for it."""
        return False

    def run(self) -> None:
        """Until `is_ending`, or until something is refused for good."""
        try:
            self._run()
        except FleetRefused as refusal:
            self.refused.append(f"refused: {refusal}")

    def _run(self) -> None:
        """Raises FleetRefused."""
        raise NotImplementedError

    def told(self) -> str:
        """The outcome, in one line."""
        raise NotImplementedError


class Resizing(Work):
    """Splits and shrinks one queue, again and again; it is shrunk in the end."""

    def __init__(
        self, hosts: Hosts, chance: random.Random, kind: str, emptying: Emptying, least: int
    ) -> None:
        """At `least` so many changes are wanted."""
        super().__init__(hosts)
        self._least = least
        self._chance = chance
        self._emptying = emptying
        self._queue = RESIZED[kind]
        self._is_fifo = kind == "fifo"
        self.changes = 0
        """Splits and shrinks that were done."""

    @override
    def _run(self) -> None:
        while not self.is_ending:
            most = _PARTS_MAX - self._more - (not self._emptying.is_over)
            if len(self._hosts.parts_of(self._queue)) > most:
                time.sleep(_REST_S)
                continue
            self._insist("split", 1 if self._is_fifo else self._chance.randrange(1, 3))
            time.sleep(self._chance.uniform(*_HALF_ROUND_S))
            self._insist("shrink")
            time.sleep(self._chance.uniform(*_HALF_ROUND_S))

    def _insist(self, change: str, more: int = 0) -> None:
        """Make a change, from the parts that there are: a host that was stopped or cut off may make
        one later that another host was asked for meanwhile. Raises FleetRefused."""
        end = time.monotonic() + _PATIENCE_S
        while True:
            opened = sum(part.is_open for part in self._hosts.parts_of(self._queue))
            if opened == 1 and not more:
                return
            wanted = {"parts": opened + more if more else 1}
            status, said = self._hosts.ask(_page(self._queue, change), wanted)
            if status == HTTPStatus.OK:
                self.changes += 1
                return
            if time.monotonic() > end:
                raise FleetRefused(f"{change} of {self._queue}: {status} {said}")
            time.sleep(_REST_S)

    @property
    @override
    def wants_more(self) -> bool:
        return self.changes < self._least and not self.refused

    @property
    def _more(self) -> int:
        """Parts that one round adds at most: all those of a FIFO queue are replaced."""
        return 3 if self._is_fifo else 2

    @override
    def told(self) -> str:
        return f"{self.changes} splits and shrinks of {self._queue}"


class Emptying(Work):
    """Empties the second cluster: the manager moves what it may, an operator the rest. Then the
    cluster takes queues again."""

    def __init__(self, hosts: Hosts, history: History) -> None:
        super().__init__(hosts)
        self._history = history
        self.moving: set[str] = set()
        """Queues of which parts are, or may be, on their way now."""
        self.planned: set[str] = set()
        """Queues that the manager moved."""
        self.moved = 0
        """Parts that the operator moved."""
        self.seconds = 0.0
        """Time until it was empty."""
        self.is_over = False

    @override
    def _run(self) -> None:
        begun = time.monotonic()
        self._hosts.insist("api/fleet/plan/mode", {"mode": "on"})
        self._hosts.insist("api/fleet/drain", {"cluster": 2})
        at_first = self.moving = set(self._left())
        self.planned = set(at_first)
        while left := self._left():
            self.moving = set(left)
            waited = time.monotonic() - begun
            if waited > _EMPTIED_S:
                raise FleetRefused(f"not emptied: {left}")
            if waited > _PLANNED_S:
                self._move(left)
            time.sleep(_REST_S)
        self.seconds = time.monotonic() - begun
        self.moving = set()
        self._hosts.insist("api/fleet/drain", {"cluster": 2, "cancel": True})
        self.is_over = True

    def _left(self) -> dict[str, list[Shown]]:
        """The queues with open parts in the cluster, and these."""
        shards = shards_of_cluster(2)
        found = {name: self._hosts.parts_of(name) for name in lasting(self._history)}
        left = {
            name: [part for part in parts if part.is_open and part.shard in shards]
            for name, parts in found.items()
        }
        return {name: parts for name, parts in left.items() if parts}

    def _move(self, left: dict[str, list[Shown]]) -> None:
        """Move one part of each queue; what is refused now is tried again."""
        for number, (queue, parts) in enumerate(left.items()):
            place = {"shard": number % 3, "part": parts[0].number or None}
            status, _ = self._hosts.ask(_page(queue, "move"), place)
            if status == HTTPStatus.OK:
                self.planned.discard(queue)
                self.moved += 1

    @override
    def told(self) -> str:
        return (
            f"a cluster emptied in {self.seconds:.0f} s: {len(self.planned)} queues by the "
            f"manager, {self.moved} parts by an operator"
        )


def wait_for(works: Iterable[Work]) -> None:
    """Wait until none of them wants more."""
    while any(work.wants_more for work in works):
        time.sleep(_REST_S)


def consumers(traffic: Traffic, kinds: Iterable[str]) -> list[Lane]:
    """More consumers of the queues that are split and shrunk."""
    return [
        consume(traffic, queue)
        for kind, queue in RESIZED.items()
        if kind in kinds
        for _ in range(_CONSUMERS[kind])
    ]
