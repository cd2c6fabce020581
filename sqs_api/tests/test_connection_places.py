"""Connections that move between the workers of a machine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import msgspec
import pytest
from aiohttp import web
from aiohttp.web_request import BaseRequest

from cluster.peers.peer_settings import Channel
from sqs_api.http.http_limits import Leaving
from sqs_api.http.listener import Listener
from sqs_api.http.server import SqsServer
from sqs_api.tests.serving import Client, Service, json_request, running, settled
from sqs_api.workers.connection_places import ConnectionPlaces, Load
from sqs_api.workers.worker_host import FixedLeaders
from storage.tests.memory_store import MemoryStore
from storage.tests.on_disk import opener
from visibility.contract.model import QueueDefinition
from visibility.tests import prepared

HERE = prepared.queue_named("here", 1)
THERE = msgspec.structs.replace(prepared.queue_named("there", 2), shard=1)
CONNECTIONS = 80

# -- a connection leaves ---------------------------------------------------------------------------


class _Leave:
    """Has each connection leave after each answer."""

    def __init__(self) -> None:
        self.take: Callable[[socket.socket], bool] = lambda copy: False
        self.told = 0

    def answered(self, connection: Leaving, queue: QueueDefinition | None) -> None:
        """See `Places`."""
        self.told += 1
        connection.leave(self.take)


async def _no_pages(request: BaseRequest) -> web.StreamResponse | None:
    return None


async def _served(service: Service, places: _Leave) -> tuple[SqsServer, Client]:
    server = SqsServer(
        service.gateway, _no_pages, places=places, limits=None, origins=None, proxies=None
    )
    return server, await service.connect(await service.listen(server))


async def test_a_client_does_not_notice_that_its_connection_moves() -> None:
    places = _Leave()
    async with running() as service:
        url = await service.make_queue()
        server, client = await _served(service, places)
        tasks = []

        def take(copy: socket.socket) -> bool:
            other, loop = copy.dup(), asyncio.get_running_loop()
            other.setblocking(False)
            tasks.append(loop.create_task(loop.connect_accepted_socket(server, other)))
            return True

        places.take = take
        for number in range(3):
            send = json_request("SendMessage", QueueUrl=url, MessageBody=str(number))
            assert (await client.ask(send)).status == 200
            await settled()

        assert (server.counters.connections, server.counters.accepted) == (1, 4)


async def test_a_connection_that_moved_waits_for_requests_as_long_as_others() -> None:
    async with running() as service:
        server = SqsServer(
            service.gateway, _no_pages, limits=None, origins=None, places=None, proxies=None
        )
        service.servers.append(server)
        listener = Listener(server, server.counters, connections_max=1)
        ours, theirs = socket.socketpair()
        listener.take(theirs, server.moved)
        client = Client(*await asyncio.open_connection(sock=ours))
        await settled()

        for _ in range(server.limits.idle_timeout_s):
            await server.sweep()

        assert (await client.ask(json_request("ListQueues"))).status == 200
        await client.close()


async def test_a_connection_that_nobody_takes_stays() -> None:
    places = _Leave()
    async with running() as service:
        url = await service.make_queue()
        server, client = await _served(service, places)
        send = json_request("SendMessage", QueueUrl=url, MessageBody="x")

        assert [(await client.ask(send)).status for _ in range(2)] == [200, 200]

        assert (server.counters.connections, server.counters.accepted) == (1, 1)


async def test_a_connection_whose_next_request_is_here_stays() -> None:
    places, store = _Leave(), MemoryStore()
    async with running(open_store=opener(store)) as service:
        url = await service.make_queue()
        _, client = await _served(service, places)
        send = json_request("SendMessage", QueueUrl=url, MessageBody="x")
        store.auto_sync = False
        await client.send(send, send[:-3])
        store.auto_sync = True
        store.sync_all()

        assert (await client.answer()).status == 200
        assert places.told == 0
        assert (await client.ask(send[-3:])).status == 200
        assert places.told == 1


# -- when ------------------------------------------------------------------------------------------


class _Link:
    def __init__(self) -> None:
        self.said: list[Load] = []

    def message(self, shard: int, body: bytes) -> None:
        """See `Link`."""
        self.said.append(msgspec.msgpack.decode(body, type=Load))


class _Transport:
    host = "worker-0"
    peers = ("worker-1",)

    def __init__(self) -> None:
        self.to_other = _Link()

    def link(self, host: str, channel: Channel) -> _Link:
        """See `Transport`."""
        return self.to_other


class _Connection:
    source_ip = "192.0.2.1"

    def __init__(self) -> None:
        self.goes_to, self.in_a_row = "", 0
        self.left = False

    def leave(self, take: Callable[[socket.socket], bool]) -> None:
        """See `Leaving`."""
        self.left = True


class _Worker:
    """The first of two, which is as busy as the test says."""

    connections = (CONNECTIONS, 100)

    def __init__(self) -> None:
        self.transport = _Transport()
        self.cpu_s = self.now_s = 0.0
        self.places = ConnectionPlaces(
            self.transport,  # type: ignore[arg-type]
            FixedLeaders(2, (0, 1)),
            lambda worker, client: True,
            self,
            lambda: self.now_s,
            lambda: self.cpu_s,
        )

    async def look(self, busy: float, other: Load | None) -> None:
        """A second passes."""
        self.cpu_s += busy
        self.now_s += 1
        if other is not None:
            self.places.heard("worker-1", msgspec.msgpack.encode(other))
        await self.places.look()

    def left(self, connections: int, *queues: QueueDefinition) -> int:
        """The number of connections that leave after these requests in turn."""
        made = [_Connection() for _ in range(connections)]
        for connection in made:
            for queue in queues:
                if not connection.left:
                    self.places.answered(connection, queue)
        return sum(connection.left for connection in made)


async def test_connections_move_to_the_worker_of_their_queue_a_part_in_a_second() -> None:
    worker = _Worker()
    assert worker.left(CONNECTIONS, *[THERE] * 100) == 0, "the other one's load is not known"
    await worker.look(0.2, Load(0.2, 1000))

    assert worker.left(CONNECTIONS, *[HERE] * 100) == 0
    assert worker.left(CONNECTIONS, *[THERE] * 63) == 0
    assert worker.left(CONNECTIONS, *[THERE, HERE] * 50) == 0
    assert worker.left(CONNECTIONS, *[THERE] * 64) == CONNECTIONS // 8
    assert worker.left(CONNECTIONS, *[THERE] * 64) == 0
    assert worker.transport.to_other.said == [Load(0.2, 20)]


@pytest.mark.parametrize(
    ("busy", "other", "leave"),
    [
        (0.9, Load(0.95, 1000), 10),
        (0.7, Load(0.9, 1000), 0),
        (0.0, Load(0.45, 1000), 10),
        (0.2, Load(0.2, 3), 3),
        (0.2, Load(0.2, 0), 0),
        (0.2, None, 0),
    ],
    ids=["both busy", "busier", "free enough", "little room", "no room", "silent"],
)
async def test_a_worker_is_given_the_connections_of_its_queues(
    busy: float, other: Load | None, leave: int
) -> None:
    worker = _Worker()
    await worker.look(busy, Load(busy, 1000))
    await worker.look(busy, other)

    assert worker.left(CONNECTIONS, *[THERE] * 64) == leave


@pytest.mark.parametrize(
    ("busy", "other", "leave"),
    [
        (1.0, Load(0.2, 1000), 10),
        (1.0, Load(0.2, 3), 3),
        (1.0, Load(0.75, 1000), 0),
        (0.7, Load(0.1, 1000), 0),
        (1.0, None, 0),
    ],
    ids=["uneven", "little room", "even", "not busy", "silent"],
)
async def test_a_busy_worker_gives_connections_to_one_that_is_not(
    busy: float, other: Load | None, leave: int
) -> None:
    worker = _Worker()
    await worker.look(busy, other)

    assert worker.left(CONNECTIONS, HERE) == leave
    assert worker.left(CONNECTIONS, HERE) == 0


async def test_a_connection_to_a_queue_of_several_parts_has_no_worker() -> None:
    worker = _Worker()
    await worker.look(0.2, Load(0.2, 1000))
    split = msgspec.structs.replace(THERE, parts=(HERE, THERE))

    assert worker.left(CONNECTIONS, *[split] * 100) == 0
