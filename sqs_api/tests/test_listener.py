"""The accept loop: too many connections, no file descriptors, and whose address counts."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from compat_tests.made_certificates import Authority
from sqs_api.gateway.client import Client as GatewayClient
from sqs_api.gateway.exchange import Exchange
from sqs_api.http.http_limits import (
    ListenerLimits,
    Refused,
    TimedOut,
    descriptors_for_connections,
)
from sqs_api.http.listener import Listener
from sqs_api.http.server import SqsServer
from sqs_api.http.tls import Tls
from sqs_api.tests.listening import Port, listening
from sqs_api.tests.serving import Client, Service, json_request, settled, until

LIST = json_request("ListQueues")


async def test_connections_above_the_limit_get_503_and_the_others_go_on(service: Service) -> None:
    async with listening(service, limits=ListenerLimits(connections_max=2)) as port:
        clients = [await port.connect() for _ in range(2)]
        for client in clients:
            assert (await client.ask(LIST)).status == 200

        refused = await port.connect()
        answer = await refused.answer()

        assert (answer.status, answer.headers["Connection"]) == (503, "close")
        assert await refused.rest() == b""
        assert port.counters.refused[Refused.CONNECTIONS] == 1
        assert (await clients[0].ask(LIST)).status == 200
        await clients[1].close()
        await until(lambda: port.counters.connections == 1)
        assert (await (await port.connect()).ask(LIST)).status == 200
        assert port.counters.accepted == 3


async def _poller(port: Port, url: str) -> Client:
    """A client whose long poll waits."""
    client = await port.connect()
    await client.send(json_request("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20))
    return client


@pytest.mark.parametrize("with_short_cut", [True, False], ids=["short cut", "aiohttp"])
async def test_idle_connections_give_way_to_new_clients(
    service: Service, with_short_cut: bool
) -> None:
    """Those without a request first, then those that are idle longest; no request under way."""
    url = await service.make_queue()
    limits = ListenerLimits(connections_max=6)
    async with listening(service, limits=limits, with_short_cut=with_short_cut) as port:
        poller = await _poller(port, url)
        begun = await port.connect()
        await begun.send(LIST[:-5])
        longer, shorter = await port.connect(), await port.connect()
        assert (await longer.ask(LIST)).status == 200
        await port.pass_seconds(1)
        assert (await shorter.ask(LIST)).status == 200
        await port.pass_seconds(2)
        silent, last = await port.connect(), await port.connect()
        await until(lambda: port.counters.connections == 6)

        for given_way in (silent, last, longer, shorter):
            client = await port.connect()
            assert (await client.ask(LIST)).status == 200
            assert await given_way.rest() == b""

        assert (await (await port.connect()).answer()).status == 503, "all were used just now"
        assert port.counters.refused[Refused.CONNECTIONS] == 1
        assert port.counters.timeouts[TimedOut.ROOM] == 4
        await begun.send(LIST[-5:])
        assert (await begun.answer()).status == 200
        await service.call("SendMessage", QueueUrl=url, MessageBody="x")
        assert (await poller.answer()).json["Messages"][0]["Body"] == "x"


async def test_idle_connections_are_looked_for_once_a_second(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    look = SqsServer._look_for_idle

    def counted(server: SqsServer) -> Any:
        looks.append(1)
        return look(server)

    monkeypatch.setattr(SqsServer, "_look_for_idle", counted)
    async with listening(service, limits=ListenerLimits(connections_max=1)) as port:
        assert (await (await port.connect()).ask(LIST)).status == 200
        for _ in range(3):
            assert (await (await port.connect()).answer()).status == 503
        assert len(looks) == 1
        await port.pass_seconds(2)

        assert (await (await port.connect()).ask(LIST)).status == 200
        assert len(looks) == 2


async def test_a_flood_of_silent_connections_locks_nobody_out(service: Service) -> None:
    async with listening(service, limits=ListenerLimits(connections_max=5)) as port:
        for _ in range(40):
            await port.connect()
            await until(lambda: port.counters.connections <= 5)

        assert (await (await port.connect()).ask(LIST)).status == 200
        assert port.counters.refused[Refused.CONNECTIONS] == 0
        assert port.counters.timeouts[TimedOut.ROOM] == 36


async def test_handshakes_that_do_not_go_on_give_way(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    context = ssl.create_default_context(cafile=authority.file)
    limits = ListenerLimits(connections_max=2)
    async with listening(service, limits=limits, tls=Tls(*authority.sign("s"), None)) as port:
        silent = [await port.connect() for _ in range(2)]
        await settled()

        refused = await port.connect()
        assert await refused.rest() == b"", "handshakes that began just now are spared"
        monkeypatch.setattr("sqs_api.http.listener.HANDSHAKE_SPARED_S", 0.0)
        client = await port.connect(context)

        assert (await client.ask(LIST)).status == 200
        assert await silent[0].rest() == b""
        assert port.counters.timeouts[TimedOut.HANDSHAKE] == 1
        assert not silent[1].reader.at_eof()


async def test_failed_handshakes_leave_room_for_others(
    service: Service, tmp_path_factory: pytest.TempPathFactory
) -> None:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    limits = ListenerLimits(connections_max=1)
    context = ssl.create_default_context(cafile=authority.file)
    async with listening(service, limits=limits, tls=Tls(*authority.sign("s"), None)) as port:
        for _ in range(3):
            client = await port.connect()
            assert (await client.ask(LIST)).status == 400, "plain http"
            with pytest.raises(ssl.SSLError):
                await port.connect(ssl.create_default_context())
            await settled()

        assert (await (await port.connect(context)).ask(LIST)).status == 200
        assert port.counters.refused[Refused.CONNECTIONS] == 0


class _WithoutDescriptors:
    """A listening socket that runs out of descriptors `times` times."""

    def __init__(self, real: socket.socket, times: int) -> None:
        self._real = real
        self.left = times

    def accept(self) -> Any:
        """Fail, then accept."""
        if self.left:
            self.left -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._real.accept()

    def fileno(self) -> int:
        """The real one's."""
        return self._real.fileno()

    def close(self) -> None:
        """Close the real one."""
        self._real.close()


async def test_accept_without_descriptors_pauses_and_goes_on(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqs_api.http.listener.PAUSE_S", 3600)
    async with listening(service) as port:
        listener = Listener(port.server, port.counters, connections_max=9)
        port.number = await listener.open("127.0.0.1", 0)
        poor = _WithoutDescriptors(listener._sockets[0], 2)
        asyncio.get_running_loop().remove_reader(poor)
        listener._sockets[0] = poor  # type: ignore[call-overload]
        listener._resume()

        client = await port.connect()
        await settled(100)
        assert poor.left == 1, "it was asked again without a pause"
        monkeypatch.setattr("sqs_api.http.listener.PAUSE_S", 0)
        listener._resume()

        assert (await client.ask(LIST)).status == 200
        assert port.counters.refused[Refused.DESCRIPTORS] == 2
        listener.close()


@pytest.mark.parametrize(
    ("wanted", "limit", "expected"),
    [
        (10_000, 1 << 20, 10_000),
        (10_000, 1024, 768),
        (10_000, 12_000, 9000),
        (100_000, 65_536, 61_440),
        (10, 4, 3),
        (10_000, -1, 10_000),
    ],
)
def test_some_descriptors_are_kept_for_the_stores(wanted: int, limit: int, expected: int) -> None:
    assert descriptors_for_connections(wanted, limit) == expected


# -- whose request ---------------------------------------------------------------------------------


@pytest.mark.parametrize("with_short_cut", [True, False], ids=["short cut", "aiohttp"])
@pytest.mark.parametrize(
    ("trusted", "source_ip", "scheme"),
    [("127.0.0.0/8", "192.0.2.7", "https"), ("10.0.0.0/8", "127.0.0.1", "http")],
    ids=["trusted", "not trusted"],
)
async def test_a_trusted_proxy_tells_the_clients_address_and_scheme(
    service: Service,
    with_short_cut: bool,
    trusted: str,
    source_ip: str,
    scheme: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[str, bool]] = []
    begin = service.gateway.begin

    def begin_noting(client: GatewayClient, *request: Any) -> Exchange:
        seen.append((client.source_ip, client.is_secure))
        return begin(client, *request)

    monkeypatch.setattr(service.gateway, "begin", begin_noting)
    told = {"X-Forwarded-For": "198.51.100.1, 192.0.2.7", "X-Forwarded-Proto": "https"}
    async with listening(service, proxies=trusted, with_short_cut=with_short_cut) as port:
        client = await port.connect()

        answer = await client.ask(json_request("CreateQueue", headers=told, QueueName="q"))

        assert answer.json["QueueUrl"].startswith(f"{scheme}://")
        await client.ask(LIST)
        assert seen == [(source_ip, scheme == "https"), ("127.0.0.1", False)]


async def test_metrics_are_not_for_those_behind_a_proxy_of_this_machine(service: Service) -> None:
    page = b"GET /_holdfast/metrics HTTP/1.1\r\nHost: localhost\r\n%b\r\n"
    async with listening(service, proxies="127.0.0.1") as port:
        client = await port.connect()

        assert (await client.ask(page % b"")).status == 200
        assert (await client.ask(page % b"X-Forwarded-For: 192.0.2.7\r\n")).status == 403
