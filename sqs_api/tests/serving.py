"""A gateway in this process, over memory and on a loopback port, and the raw client that the tests
speak to it with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlencode

from auth.caller import Caller
from auth.credentials import AccessKey
from auth.unverified import open_caller
from cluster.catalog.catalog import Catalog
from cluster.catalog.other_hosts import NO_OTHERS
from cluster.catalog.queue_rules import Waits
from cluster.clock import SystemClock, SystemEntropy
from cluster.coordination.sqlite_coordination import SqliteCoordination
from cluster.keys.keyring import Keyring
from cluster.parts.split_queues import SplitQueues
from cluster.shards.queue_watch import QueueWatch
from cluster.shards.router import Router
from cluster.shards.shard import Shard
from cluster.shards.shard_parts import OpenStore, ShardParts
from cluster.tests.catalogs import opened_catalog
from cluster.tests.planned_hosts import SharingHosts
from sqs_api.admin.admin_access import AdminAccess
from sqs_api.admin.admin_pages import AdminPages
from sqs_api.admin.queue_metrics import QueueMetrics
from sqs_api.admin.queue_samples import QueueSamples
from sqs_api.gateway.access import Access
from sqs_api.gateway.accounting import Accounting
from sqs_api.gateway.client import Authenticate
from sqs_api.gateway.deletions import Deletions
from sqs_api.gateway.disk_space import DiskSpace
from sqs_api.gateway.gateway import Bounds, Gateway
from sqs_api.gateway.metrics import Metrics
from sqs_api.gateway.payload import Payloads
from sqs_api.gateway.queue_actions import QueueActions
from sqs_api.gateway.queue_counts import QueueCounts
from sqs_api.gateway.rates import Rates
from sqs_api.gateway.recheck_refusal import RecheckRefusal
from sqs_api.gateway.request_memory import RequestMemory
from sqs_api.gateway.sealer import Sealer
from sqs_api.gateway.transact_messages import Transactions
from sqs_api.http.connection import SqsConnection
from sqs_api.http.server import SqsServer
from sqs_api.settings.origins import AllowedOrigins, KnownHosts
from storage.tests.memory_store import MemoryStore
from storage.tests.on_disk import opener

ACCOUNT = "000000000000"
REGION = "us-east-1"
WAIT_S = 60.0
"""Bound of every wait; nothing comes near it unless something hangs."""


class AiohttpConnection(SqsConnection):
    """A connection that never takes the short cut."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.fall_back()


class AiohttpServer(SqsServer):
    """The same service without the short cut, as the reference for it."""

    def __call__(self) -> SqsConnection:
        """A connection."""
        return AiohttpConnection(self, self._state, self._gateway, loop=self._loop, **self._kwargs)


class Answer(NamedTuple):
    """One HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Client:
    """One connection, bytes in and bytes out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connected(cls, address: str) -> Client:
        """A client of a service at this address."""
        host, port = address.removeprefix("http://").split(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def send(self, *parts: bytes) -> None:
        """Write the parts one by one; a server that reads has read each before the next is
        written."""
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()
            await settled()

    async def answer(self, *, has_body: bool = True) -> Answer:
        """Read the next answer."""
        async with asyncio.timeout(WAIT_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            status_line, *lines = head.decode("latin-1").split("\r\n")[:-2]
            headers = dict(line.split(": ", 1) for line in lines)
            size = int(headers.get("Content-Length", 0)) if has_body else 0
            body = await self.reader.readexactly(size)
        return Answer(int(status_line.split(" ")[1]), headers, body)

    async def ask(self, request: bytes) -> Answer:
        """Send one request and read its answer."""
        await self.send(request)
        return await self.answer()

    async def rest(self) -> bytes:
        """Everything up to the server's end of the connection."""
        async with asyncio.timeout(WAIT_S):
            return await self.reader.read()

    async def close(self) -> None:
        """Hang up."""
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:  # TLS's errors are among them
            return


class Service:
    """A running service and its parts."""

    def __init__(
        self,
        gateway: Gateway,
        router: Router,
        shard: Shard,
        catalog: Catalog,
        counts: QueueCounts,
    ) -> None:
        self.gateway = gateway
        self.router = router
        self.shard = shard
        self.catalog = catalog
        self.counts = counts
        self.metrics: Metrics
        self.recheck_refusal: RecheckRefusal
        self.pages: AdminPages
        self.servers: list[SqsServer] = []
        self._listeners: list[asyncio.Server] = []
        self._clients: list[Client] = []
        self.keyring: Keyring
        self.sealer: Sealer
        self.deletions: Deletions
        self.access: Access
        self.disk: DiskSpace
        self.port = 0
        self.aiohttp_port = 0

    def queue_metrics(self, queues_max: int) -> QueueMetrics:
        """The metrics of the queues, of which `queues_max` have labels of their own."""
        samples = QueueSamples(self.catalog, self.router, self.counts)
        sent_s = self.counts.send_to_receive_s
        return QueueMetrics(self.catalog, samples, sent_s, SystemClock().wall_s, queues_max)

    async def listen(self, server: SqsServer) -> int:
        """Open a port for the server."""
        listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
        self.servers.append(server)
        self._listeners.append(listener)
        port: int = listener.sockets[0].getsockname()[1]
        return port

    async def connect(self, port: int | None = None) -> Client:
        """A new connection, with the short cut unless another port is named."""
        client = Client(*await asyncio.open_connection("127.0.0.1", port or self.port))
        self._clients.append(client)
        return client

    async def ask(self, request: bytes) -> Answer:
        """One request on its own connection."""
        client = await self.connect()
        answer = await client.ask(request)
        await client.close()
        return answer

    async def call(self, action: str, **members: Any) -> Any:
        """One action of the JSON protocol, which must succeed."""
        answer = await self.ask(json_request(action, **members))
        assert answer.status == 200, answer
        return answer.json

    async def make_queue(self, name: str = "q", **attributes: str) -> str:
        """A queue's URL."""
        url: str = (await self.call("CreateQueue", QueueName=name, Attributes=attributes))[
            "QueueUrl"
        ]
        return url

    @property
    def connections(self) -> list[Any]:
        """The server's ends of the connections that take the short cut."""
        return list(self.servers[0].connections)

    async def close(self) -> None:
        """End everything."""
        for client in self._clients:
            await client.close()
        for listener in self._listeners:
            listener.close()
        for server in self.servers:
            server.pre_shutdown()
            await server.shutdown(0.2)
        async with asyncio.timeout(WAIT_S):
            await self.shard.stop()
        await self.catalog.close()


def open_authenticate(
    method: bytes, target: bytes, headers: Mapping[bytes, bytes], body: bytes, now_s: float
) -> Caller:
    """The caller in the mode `--auth open`."""
    return open_caller(method, target, headers, ACCOUNT, REGION)


def open_admin_access() -> AdminAccess:
    """Access control of `--auth open`."""
    return AdminAccess(
        KnownHosts("127.0.0.1", None),
        local_key=AccessKey("LOCAL", "secret", ACCOUNT, "local-command"),
        verifier=None,
        account=ACCOUNT,
        region=REGION,
        wall_s=SystemClock().wall_s,
        session_of=None,
    )


@asynccontextmanager
async def running(
    *,
    authenticate: Authenticate = open_authenticate,
    open_store: OpenStore | None = None,
    public_url: str | None = None,
    enforced: bool = False,
    makes_keys: bool = False,
    waiting_polls_max: int = 1000,
    browser_origins: str = "",
    accounting: Accounting | None = None,
    rates: Rates | None = None,
    routed_by: type[Router] = Router,
    catch_up: Callable[[], Awaitable[None]] | None = None,
) -> AsyncIterator[Service]:
    """A service on two ports: one with the short cut, one without. A host of a cluster has
    `catch_up`, see `RecheckRefusal`."""
    clock, entropy = SystemClock(), SystemEntropy()
    records = await SqliteCoordination.open(Path(":memory:"))
    keyring = await Keyring.open(records.below("keyring/"), bytes(32), clock, entropy)
    catalog = await opened_catalog(
        records.below("catalog/"),
        clock=clock,
        entropy=entropy,
        secrets=keyring.secrets,
        waits=Waits(0, 0),
        others=NO_OTHERS if catch_up is None else SharingHosts(),
    )
    sealer = Sealer(keyring, clock, makes_keys=makes_keys)
    shard = Shard(
        0,
        ShardParts(
            open_store=open_store or opener(MemoryStore()),
            clock=clock,
            entropy=entropy,
            definitions=catalog,
            sealing=sealer,
        ),
    )
    router = routed_by([shard])
    watch = QueueWatch(catalog, router)
    deletions = Deletions(catalog, router, watch)
    await shard.start()
    accounting = accounting or Accounting()
    counts = QueueCounts()
    disk = DiskSpace(Path("/"), 0)
    access = Access(catalog, clock, keyring, enforced=enforced, region=REGION)
    origins = AllowedOrigins(browser_origins)
    split = SplitQueues(router, catalog, entropy, clock.wall_s)
    queues = QueueActions(catalog, router, split, deletions, watch)
    recheck_refusal = RecheckRefusal(queues, sealer, catch_up or keyring.catch_up)
    payloads = Payloads(sealer, clock.wall_s, on_opened=())
    if rates is None:
        rates = Rates(clock.monotonic_s, account_rate=None, queue_rate=None, fifo_quotas=False)
    gateway = Gateway(
        authenticate=authenticate,
        queues=queues,
        router=router,
        split=split,
        accounting=accounting,
        clock=clock,
        entropy=entropy,
        public_url=public_url,
        access=access,
        payloads=payloads,
        bounds=Bounds(RequestMemory(256 << 20), rates, disk, waiting_polls_max),
        counts=counts,
        recheck_refusal=recheck_refusal,
        origins=origins,
        services=[Transactions(authenticate, access, payloads, router, rates, clock, entropy)],
    )
    await sealer.prepare(catalog)
    service = Service(gateway, router, shard, catalog, counts)
    service.recheck_refusal = recheck_refusal
    service.metrics = Metrics(accounting, [service.queue_metrics(500)])
    service.keyring = keyring
    service.deletions = deletions
    service.access = access
    service.pages = AdminPages(
        service.metrics,
        lambda: shard.ready,
        answers_anyone=False,
        access=open_admin_access(),
        below=MappingProxyType({}),
    )
    service.disk = disk
    service.port, service.aiohttp_port = [
        await service.listen(kind(gateway, service.pages, origins=origins))
        for kind in (SqsServer, AiohttpServer)
    ]
    try:
        yield service
    finally:
        await service.close()
        await records.close()


# -- requests --------------------------------------------------------------------------------------


def request_bytes(
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    *,
    line: str = "POST / HTTP/1.1",
    length: bool = True,
) -> bytes:
    """A request with a Host and, by default, a correct Content-Length."""
    lines = [line, "Host: localhost:9324"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if length:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def json_request(
    action: str,
    *,
    headers: Mapping[str, str] | None = None,
    line: str = "POST / HTTP/1.1",
    **members: Any,
) -> bytes:
    """A request of the JSON protocol."""
    sent = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
    return request_bytes(json.dumps(members).encode(), {**sent, **(headers or {})}, line=line)


def query_request(
    action: str,
    *,
    headers: Mapping[str, str] | None = None,
    line: str = "POST / HTTP/1.1",
    **params: str,
) -> bytes:
    """A request of the query protocol."""
    sent = {"Content-Type": "application/x-www-form-urlencoded"}
    body = urlencode({"Action": action, **params}).encode()
    return request_bytes(body, {**sent, **(headers or {})}, line=line)


# -- waiting ---------------------------------------------------------------------------------------


async def settled(rounds: int = 10) -> None:
    """Let the event loop run its ready callbacks."""
    for _ in range(rounds):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait until the condition holds; the service may have to be asked, which is done more
    seldom."""
    async with asyncio.timeout(WAIT_S):
        while True:
            holds, pause_s = condition(), 0.001
            if isinstance(holds, Awaitable):
                holds, pause_s = await holds, 0.02
            if holds:
                return
            await asyncio.sleep(pause_s)
