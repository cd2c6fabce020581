"""ConnectionPlaces: which worker has a connection.

    all its requests are for the queues of another worker   that one, unless it is busier
    this worker is busy, and another one much less so       that one, whatever its requests are for

A connection is given away between two requests, and its client does not notice. Each worker tells
the others once a second how busy its loop is, and how many connections it has room for.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import msgspec
from typing_extensions import override

from cluster.peers.peer_settings import Channel
from cluster.peers.transport import Transport
from sqs_api.http.http_limits import Leaving, Places
from visibility.contract.model import QueueDefinition

LOADS = 0
"""The number of the messages about loads: workers send each other no others."""
LOOK_S = 1.0
_IN_A_ROW = 64
"""Requests for the same worker's queues after which a connection moves there: to move one costs as
much as to pass on some ten requests."""
_FREE = 0.5
"""A worker that is less busy is given the connections of its queues in any case."""
_EQUAL = 0.1
_BUSY = 0.8
_UNEVEN = 0.3
"""From this difference on a busy worker gives connections away; more than `_EQUAL`, so that none
goes to and fro."""
_PART = 8
"""One in eight connections moves in a second: the loads of the next second show the effect."""


class Load(msgspec.Struct, array_like=True, frozen=True):
    """The state of a worker."""

    busy: float
    """Its loop's share of a core in the last second."""
    room: int
    """Connections that it can take."""


_decode = msgspec.msgpack.Decoder(Load).decode


class Leaders(Protocol):
    """The worker of each shard."""

    def leader_of(self, shard: int) -> str | None:
        """Its name."""


class Connections(Protocol):
    """The connections of this worker."""

    @property
    def connections(self) -> tuple[int, int]:
        """Their number, and the limit."""


class ConnectionPlaces(Places):
    """Gives connections to the worker that decides their requests."""

    def __init__(
        self,
        transport: Transport,
        leaders: Leaders,
        give: Callable[[str, socket.socket], bool],
        connections: Connections,
        monotonic_s: Callable[[], float],
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        """`give` hands a socket to the worker with a name, False if that cannot be done now;
        `cpu_s` is the time that this thread has computed."""
        self._transport = transport
        self._own = transport.host
        self._leaders = leaders
        self._give = give
        self._connections = connections
        self._cpu_s, self._monotonic_s = cpu_s, monotonic_s
        self._looked = (cpu_s(), monotonic_s())
        self._loads: dict[str, Load] = {}
        """Loads of the other workers, as of the last second."""
        self._may_take: dict[str, int] = {}
        """Connections that may move to a worker in this second since its queues are there."""
        self._relieved_by, self._to_give = "", 0
        """The worker that gets connections in this second, and their number."""

    def heard(self, worker: str, message: bytes) -> None:
        """Note the load of another worker."""
        self._loads[worker] = _decode(message)

    @override
    def answered(self, connection: Leaving, queue: QueueDefinition | None) -> None:
        if self._to_give:
            self._to_give -= 1
            self._move(connection, self._relieved_by)
            return
        home = self._own
        if queue is not None and not queue.parts:
            home = self._leaders.leader_of(queue.shard) or home
        if home != connection.goes_to:
            connection.goes_to, connection.in_a_row = home, 1
        elif home != self._own:
            connection.in_a_row += 1
            if connection.in_a_row >= _IN_A_ROW and self._may_take.get(home):
                self._may_take[home] -= 1
                self._move(connection, home)

    def _move(self, connection: Leaving, worker: str) -> None:
        connection.in_a_row = 0
        connection.leave(partial(self._give, worker))

    async def look(self) -> None:
        """Tell the others this worker's load, and plan by theirs. Due each `LOOK_S`."""
        cpu_s, now_s = self._cpu_s(), self._monotonic_s()
        busy = (cpu_s - self._looked[0]) / max(now_s - self._looked[1], 1e-3)
        self._looked = (cpu_s, now_s)
        count, most = self._connections.connections
        message = msgspec.msgpack.encode(Load(busy, max(0, most - count)))
        for worker in self._transport.peers:
            link = self._transport.link(worker, Channel.CATALOG)
            if link is not None:
                link.message(LOADS, message)
        loads, self._loads = self._loads, {}  # one that is silent gets nothing
        most = max(1, count // _PART)
        self._may_take = {
            worker: min(most, load.room)
            for worker, load in loads.items()
            if load.busy < _FREE or load.busy <= busy + _EQUAL
        }
        self._relieved_by, self._to_give = _relief(busy, loads, most)


def _relief(busy: float, loads: Mapping[str, Load], most: int) -> tuple[str, int]:
    """The worker that takes connections of one that is so busy, and their number."""
    if busy < _BUSY or not loads:
        return "", 0
    worker = min(loads, key=lambda name: loads[name].busy)
    least = loads[worker]
    if busy - least.busy < _UNEVEN:
        return "", 0
    return worker, min(most, least.room)
