"""Faults that only a fleet can meet: one of its clusters stops as a whole, and a queue is split and
shrunk all the time."""

from __future__ import annotations

import random
import signal
import time
from http import HTTPStatus

from compat_tests.benchmarks.wire import Endpoint
from compat_tests.cluster_process import HOSTS, SECOND, ClusterFolder
from compat_tests.faults.history import History, Outage
from compat_tests.faults.lanes import consume
from compat_tests.faults.traffic import Lane, Traffic
from compat_tests.pages import ask

RESIZED = "plain"
"""The queue that is split and shrunk."""
_CLUSTERS = (HOSTS, SECOND)
_TRIES = 60
_REST_S = 1.0
_HALF_ROUND_S = (1.0, 4.0)
_PARTS_MAX = 14
"""With those that drain, which takes the ten minutes of late retries at least. A queue has at most
16, and a split adds one or two."""
_CONSUMERS = 6
"""So that a part that drains is empty soon: three consumers are slower than the senders."""


class FleetRefused(Exception):
    """A split or shrink failed in every attempt; the text is its last answer."""


def shards_of(endpoint: Endpoint, queue: str) -> set[int]:
    """The shards that keep messages of a queue. Raises FleetRefused."""
    return {part["shard"] for part in _asked(endpoint, queue)}


def stop_cluster(
    parts: ClusterFolder,
    endpoint: Endpoint,
    history: History,
    seconds: float,
) -> str:
    """Stop all hosts of one cluster at once, longer than their leases, then let them go on.
    The next call stops the other cluster.

    Meanwhile calls on its queues may fail, and on no others. Raises FleetRefused.
    """
    number = len(history.outages) % len(_CLUSTERS)
    shards = set(range(3 * number, 3 * number + 3))
    lasting = [name for name in history.queues if not name.startswith("passing-")]
    touched = {name for name in lasting if shards & shards_of(endpoint, name)}
    outage = Outage(frozenset({*touched, RESIZED}), time.monotonic())
    history.outages.append(outage)
    for host in _CLUSTERS[number]:
        parts.signal(host, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        for host in _CLUSTERS[number]:
            parts.signal(host, signal.SIGCONT)
    parts.wait_until_all_are_ready()
    outage.ended = time.monotonic()
    return f"{' '.join(_CLUSTERS[number])}, with {' '.join(sorted(touched)) or 'no queue'}"


class Resizing:
    """Splits and shrinks one queue, again and again. Runs in a thread of its own."""

    def __init__(self, endpoint: Endpoint, chance: random.Random) -> None:
        self._endpoint = endpoint
        self._chance = chance
        self.is_ending = False
        self.changes = 0
        """Splits and shrinks that were done."""

    def run(self) -> None:
        """Until `is_ending`; the queue is shrunk then. Raises FleetRefused."""
        while not self.is_ending:
            if len(_asked(self._endpoint, RESIZED)) > _PARTS_MAX:
                time.sleep(_REST_S)
                continue
            wanted = self._chance.randrange(2, 4)
            for change, parts in (("split", wanted), ("shrink", 1)):
                _asked(self._endpoint, RESIZED, change, parts)
                self.changes += 1
                time.sleep(self._chance.uniform(*_HALF_ROUND_S))


def consumers(traffic: Traffic) -> list[Lane]:
    """More consumers of the queue."""
    return [consume(traffic, RESIZED) for _ in range(_CONSUMERS)]


def _asked(
    endpoint: Endpoint, queue: str, change: str = "", parts: int | None = None
) -> list[dict[str, int]]:
    """The parts of a queue, after a split or shrink if one is named. The endpoint is asked again
    while a fault is at work, or while a split waits for a part that drains. Raises FleetRefused."""
    assert endpoint.credentials is not None
    page = f"api/queues/{queue}/parts{change and '/'}{change}"
    content = None if parts is None else {"parts": parts}
    for _ in range(_TRIES):
        try:
            status, said = ask(endpoint.url, endpoint.credentials, page, content)
        except OSError as error:
            status, said = 0, str(error)
        if status == HTTPStatus.OK:
            found: list[dict[str, int]] = said["parts"]
            return found
        time.sleep(_REST_S)
    shown = ask(endpoint.url, endpoint.credentials, f"api/queues/{queue}/parts")
    raise FleetRefused(f"{page}: {status} {said}; {shown}")
