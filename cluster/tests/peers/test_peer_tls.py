"""TLS between hosts over real sockets on loopback, on both event loops."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs

from cluster.clock import SystemClock, SystemEntropy
from cluster.peers.frames import HEAD, Kind
from cluster.peers.hello import Hello, encode
from cluster.peers.link import Call, ChannelService
from cluster.peers.peer_outcomes import NotSent, Outcome, Reason
from cluster.peers.peer_settings import Address, Channel, PeerSettings
from cluster.peers.peer_tls import PeerTlsUnusable, TlsFiles, TlsNetwork
from cluster.peers.transport import Transport
from compat_tests.made_certificates import Authority, Pair

SETTINGS = PeerSettings(reconnect_s=0.01, reconnect_max_s=0.05)
ANYWHERE = Address("127.0.0.1", 0)
Story = Callable[[], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder)


@pytest.fixture(scope="module")
def others(folder: Path) -> Authority:
    return Authority(folder, "others")


@pytest.fixture(params=["uvloop", pytest.param("asyncio", marks=pytest.mark.slow)])
def tell(request: pytest.FixtureRequest) -> Callable[[Story], None]:
    """Runs a story on the event loop."""

    def run(story: Story) -> None:
        (uvloop.run if request.param == "uvloop" else asyncio.run)(story())

    return run


class Host:
    """A host that answers with what it is asked. `certificate` names it unless another is given."""

    def __init__(
        self, name: str, authority: Authority, certificate: Pair, settings: PeerSettings = SETTINGS
    ) -> None:
        clock = SystemClock()
        self.name = name
        self.address = ANYWHERE
        self.network = TlsNetwork(
            TlsFiles(authority.file, *certificate), settings, clock.monotonic_s
        )
        self.transport = Transport(
            cluster="c1",
            host=name,
            log_ids=dict,
            network=self.network,
            settings=settings,
            clock=clock,
            entropy=SystemEntropy(),
        )
        self.asked = 0
        self.transport.serve(Channel.REQUESTS, ChannelService(self._answer))

    def _answer(self, call: Call) -> None:
        self.asked += 1
        call.answer(call.body)

    def is_open(self, peer: Host) -> bool:
        return self.transport.link(peer.name, Channel.REQUESTS) is not None

    async def ask(self, peer: Host, body: bytes) -> Outcome:
        link = self.transport.link(peer.name, Channel.REQUESTS)
        if link is None:
            return NotSent(Reason.NOT_CONNECTED)
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        sent = link.request(body, outcome.set_result, 30.0)
        return sent if isinstance(sent, NotSent) else await outcome


@asynccontextmanager
async def started(*hosts: Host) -> AsyncIterator[None]:
    for host in hosts:
        host.address = await host.transport.start(ANYWHERE)
    addresses = {host.name: host.address for host in hosts}
    for host in hosts:
        host.transport.set_peers(addresses)
    try:
        yield
    finally:
        for host in hosts:
            await host.transport.stop()


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for what other sockets do; a test that hangs here fails by its timeout."""
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def test_two_hosts_speak_tls_1_3_and_know_each_other(
    tell: Callable[[Story], None], authority: Authority
) -> None:
    a, b = (authority.sign(name, hosts=[name]) for name in "ab")

    async def story() -> None:
        one, other = Host("a", authority, a), Host("b", authority, b)
        async with started(one, other):
            await until(lambda: one.is_open(other) and other.is_open(one))

            assert await one.ask(other, b"x") == b"x"
            large = bytes(range(256)) * (8 << 10)
            assert await other.ask(one, large) == large
            link = one.transport.link("b", Channel.REQUESTS)
            assert link is not None
            wire = link.wire
            assert wire.names == {"b"}
            assert wire._transport.get_extra_info("ssl_object").version() == "TLSv1.3"

    tell(story)


@pytest.mark.parametrize(
    "wrong", ["authority", "name", "wildcard", "expired", "expired authority's"]
)
def test_a_host_with_a_wrong_certificate_connects_to_nobody(
    tell: Callable[[Story], None],
    authority: Authority,
    others: Authority,
    wrong: str,
) -> None:
    good = authority.sign("good", hosts=["a"])
    bad = {
        "authority": lambda: others.sign("bad", hosts=["b"]),
        "name": lambda: authority.sign("bad", hosts=["c"]),
        "wildcard": lambda: authority.sign("bad", hosts=["*", "*.example"]),
        "expired": lambda: authority.sign("bad", hosts=["b"], days=-1),
        "expired authority's": lambda: others.sign("bad", hosts=["b"], days=-1),
    }[wrong]()

    async def story() -> None:
        one, other = Host("a", authority, good), Host("b", authority, bad)
        with capture_logs() as logs:
            async with started(one, other):

                def both_said() -> bool:
                    unreachable = {
                        line["peer"] for line in logs if line["event"] == "peer_unreachable"
                    }
                    refused = [
                        line
                        for line in logs
                        if line["event"] in ("peer_refused", "peer_handshake_failed")
                    ]
                    return unreachable >= {"a", "b"} and bool(refused)

                await until(both_said)
                assert not one.is_open(other)
                assert not other.is_open(one)
                assert await one.ask(other, b"x") == NotSent(Reason.NOT_CONNECTED)

    tell(story)


@asynccontextmanager
async def stranger(
    host: Host, authority: Authority, certificate: Pair | None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a host from outside of the cluster."""
    context = ssl.create_default_context(cafile=authority.file)
    if certificate is not None:
        context.load_cert_chain(*certificate)
    reader, writer = await asyncio.open_connection(
        *host.address, ssl=context, server_hostname=host.name
    )
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(-1)
    except OSError:
        return b""


def test_a_client_without_a_certificate_is_refused(
    tell: Callable[[Story], None], authority: Authority
) -> None:
    a = authority.sign("a", hosts=["a"])

    async def story() -> None:
        host = Host("a", authority, a)
        async with started(host):
            with capture_logs() as logs:
                async with stranger(host, authority, None) as (reader, _):
                    assert await rest(reader) == b""
                await until(lambda: bool(logs))
            assert logs[0]["event"] == "peer_handshake_failed"

    tell(story)


def test_older_tls_is_refused(tell: Callable[[Story], None], authority: Authority) -> None:
    a = authority.sign("a", hosts=["a"])

    async def story() -> None:
        host = Host("a", authority, a)
        async with started(host):
            context = ssl.create_default_context(cafile=authority.file)
            context.load_cert_chain(*a)
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises(OSError):
                await asyncio.open_connection(*host.address, ssl=context, server_hostname="a")

    tell(story)


def framed(kind: int, body: bytes) -> bytes:
    return HEAD.pack(len(body), kind, 0) + body


HELLO = encode(Hello((1,), "c1", "b", "a", "requests", {}))


RUBBISH = (
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    bytes(1000),
    b"\xff" * 1000,
    framed(Kind.HELLO, b"rubbish"),
    framed(Kind.REQUEST, b"before the handshake"),
    HEAD.pack(1 << 30, Kind.HELLO, 0),
    framed(Kind.HELLO, HELLO) + HEAD.pack(SETTINGS.frame_max + 1, Kind.REQUEST, 1),
    framed(Kind.HELLO, HELLO) + 2 * framed(Kind.REQUEST, b"x") + framed(77, b""),
)


def test_rubbish_from_a_peer_ends_the_connection_only(
    tell: Callable[[Story], None], authority: Authority
) -> None:
    a, b = (authority.sign(name, hosts=[name]) for name in "ab")

    async def story() -> None:
        host, peer = Host("a", authority, a), Host("b", authority, b)
        async with started(host, peer):
            await until(lambda: peer.is_open(host))
            for rubbish in RUBBISH:
                async with stranger(host, authority, b) as (reader, writer):
                    writer.write(rubbish)
                    await rest(reader)  # the connection ends
            # A stranger with a good certificate may have taken the peer's place for a while.
            while await peer.ask(host, b"x") != b"x":
                await until(lambda: peer.is_open(host))

    tell(story)


def test_rubbish_instead_of_tls(tell: Callable[[Story], None], authority: Authority) -> None:
    a = authority.sign("a", hosts=["a"])

    async def story() -> None:
        host = Host("a", authority, a)
        async with started(host):
            reader, writer = await asyncio.open_connection(*host.address)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            with capture_logs() as logs:
                await rest(reader)
                await until(lambda: bool(logs))
            writer.transport.abort()
            assert logs[0]["event"] == "peer_handshake_failed"

    tell(story)


def test_half_closed_connections_end(tell: Callable[[Story], None], authority: Authority) -> None:
    a, b = (authority.sign(name, hosts=[name]) for name in "ab")

    async def story() -> None:
        host, peer = Host("a", authority, a), Host("b", authority, b)
        async with started(host, peer):
            await until(lambda: peer.is_open(host))
            first = peer.transport.link("a", Channel.REQUESTS)
            assert first is not None

            raw = first.wire._transport.get_extra_info("socket")
            with socket.socket(fileno=socket.dup(raw.fileno())) as same:
                same.shutdown(socket.SHUT_WR)

            await until(lambda: first.wire.is_over and peer.is_open(host))
            assert await peer.ask(host, b"x") == b"x"

    tell(story)


@pytest.mark.slow
def test_a_host_that_does_not_read_is_let_go(
    tell: Callable[[Story], None], authority: Authority
) -> None:
    a, b = (authority.sign(name, hosts=[name]) for name in "ab")

    async def story() -> None:
        impatient = PeerSettings(heartbeat_s=0.1)
        host = Host("a", authority, a, impatient)
        async with started(host):
            host.transport.set_peers({"a": host.address, "b": Address("127.0.0.1", 9)})
            async with stranger(host, authority, b) as (reader, writer):
                writer.write(framed(Kind.HELLO, HELLO))
                await reader.readexactly(HEAD.size)  # welcome
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                body = bytes(8 << 20)
                for number in range(8):
                    writer.write(HEAD.pack(len(body), Kind.REQUEST, number) + body)

                await until(lambda: host.asked > 0 and not host.transport._incoming)

    tell(story)


def test_changed_files_are_used_without_a_restart(
    tell: Callable[[Story], None], authority: Authority, others: Authority, tmp_path: Path
) -> None:
    signed = {name: authority.sign(name, hosts=[name]) for name in "ab"}
    renewed = {name: others.sign(f"new-{name}", hosts=[name]) for name in "ab"}

    async def story() -> None:
        own = tmp_path / "authority.pem"
        own.write_bytes(authority.file.read_bytes())
        both = Authority.__new__(Authority)
        both.file = own
        hosts = [Host(name, both, signed[name]) for name in "ab"]
        one, other = hosts
        async with started(one, other):
            await until(lambda: one.is_open(other) and other.is_open(one))
            own.write_bytes(authority.file.read_bytes() + others.file.read_bytes())
            for host in hosts:
                host.transport.reload()
            for name in "ab":
                signed[name].key.write_bytes(renewed[name].key.read_bytes())
                signed[name].certificate.write_bytes(renewed[name].certificate.read_bytes())
            await until(lambda: one.is_open(other) and other.is_open(one))

            for host in hosts:
                host.transport.reload()
            own.write_bytes(others.file.read_bytes())
            for host in hosts:
                host.transport.reload()

            await until(lambda: issuer_seen(one, "b") == "others")
            assert await one.ask(other, b"x") == b"x"
            own.write_bytes(b"rubbish")
            with capture_logs() as logs:
                one.transport.reload()
                one.transport.reload()
            assert [line["event"] for line in logs] == ["peer_tls_unusable"]
            assert await one.ask(other, b"x") == b"x"

    def issuer_seen(host: Host, peer: str) -> str:
        link = host.transport.link(peer, Channel.REQUESTS)
        if link is None:
            return ""
        certificate = link.wire._transport.get_extra_info("peercert")
        ((_, name),) = certificate["issuer"][0]
        return str(name)

    tell(story)


def test_files_that_cannot_be_used(authority: Authority, others: Authority, tmp_path: Path) -> None:
    pair, other = authority.sign("one"), others.sign("two")
    locked = authority.sign("locked", password=b"secret")
    missing, rubbish = tmp_path / "none.pem", tmp_path / "rubbish.pem"
    rubbish.write_bytes(b"rubbish")

    def refusals() -> Iterator[str]:
        for files in [
            TlsFiles(authority.file, pair.certificate, other.key),
            TlsFiles(authority.file, pair.certificate, missing),
            TlsFiles(authority.file, *locked),
            TlsFiles(missing, *pair),
            TlsFiles(rubbish, *pair),
        ]:
            with pytest.raises(PeerTlsUnusable) as refused:
                TlsNetwork(files, SETTINGS, lambda: 0.0)
            yield str(refused.value).replace(str(tmp_path), "")

    assert [text.rsplit(": ", 1)[1] for text in refusals()] == [
        "key values mismatch",
        "No such file or directory",
        "not in pem form, or encrypted",
        "No such file or directory",
        "no certificate or crl found",
    ]
