"""TLS of the listener, on both event loops: versions, refusals and new certificates."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import uvloop
from structlog.testing import capture_logs

from compat_tests.made_certificates import Authority, Pair
from sqs_api.gateway.accounting import Accounting
from sqs_api.gateway.metrics import Metrics
from sqs_api.http.http_limits import Refused, TimedOut
from sqs_api.http.listener_metrics import ListenerMetrics
from sqs_api.http.server import Server
from sqs_api.http.tls import Tls, TlsUnusable
from sqs_api.settings.config import Settings
from sqs_api.tests.listening import Port, listening
from sqs_api.tests.serving import json_request, running, until

LIST = json_request("ListQueues")
CREATE = json_request("CreateQueue", QueueName="q")
Story = Callable[[Port], Awaitable[None]]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signs every certificate but those of strangers."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    """The server's."""
    return authority.sign("server")


@pytest.fixture(params=["asyncio", "uvloop"])
def tell(request: pytest.FixtureRequest) -> Callable[[Tls | None, Story], None]:
    """Runs a story against a port, on the event loop."""

    async def told(tls: Tls | None, story: Story) -> None:
        async with running() as service, listening(service, tls=tls) as port:
            await story(port)

    def run(tls: Tls | None, story: Story) -> None:
        run_loop = uvloop.run if request.param == "uvloop" else asyncio.run
        run_loop(told(tls, story))

    return run


def _client_context(authority: Authority, pair: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.file)
    if pair is not None:
        context.load_cert_chain(*pair)
    return context


def test_connections_that_end_while_the_server_checks_all_do_not_end_the_check(
    tell: Callable[[Tls, Story], None],
    authority: Authority,
    pair: Pair,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sqs_api.http.server.SWEPT_AT_ONCE", 1)

    async def story(port: Port) -> None:
        for _ in range(12):
            await port.connect(_client_context(authority))
        last = port.server.connections[-1]
        assert last.transport is not None
        last.transport.abort()

        await port.server.sweep()

        assert last not in port.server.connections

    tell(Tls(*pair, None), story)


def test_requests_are_answered_over_tls_and_queue_urls_are_https(
    tell: Callable[[Tls, Story], None], authority: Authority, pair: Pair
) -> None:
    async def story(port: Port) -> None:
        context = _client_context(authority)
        context.set_alpn_protocols(["h2", "http/1.1"])
        client = await port.connect(context)

        answer = await client.ask(CREATE)

        spoken = client.writer.get_extra_info("ssl_object")
        assert (spoken.version(), spoken.selected_alpn_protocol()) == ("TLSv1.3", "http/1.1")
        assert answer.json["QueueUrl"].startswith("https://")
        (connection,) = port.server.connections
        assert (connection.is_secure, connection.source_ip) == (True, "127.0.0.1")  # type: ignore[attr-defined]

    tell(Tls(*pair, None), story)


def test_a_plain_http_client_is_told_to_speak_https(
    tell: Callable[[Tls, Story], None], pair: Pair
) -> None:
    async def story(port: Port) -> None:
        client = await port.connect()
        client.writer.write(LIST)

        answer = await client.answer()

        assert answer.status == 400
        assert b"https" in answer.body
        assert await client.rest() == b""
        assert port.counters.refused[Refused.PLAIN_HTTP] == 1

    tell(Tls(*pair, None), story)


def test_a_tls_client_is_refused_on_a_plain_port(
    tell: Callable[[Tls | None, Story], None], authority: Authority
) -> None:
    async def story(port: Port) -> None:
        with pytest.raises(ssl.SSLError):
            await port.connect(_client_context(authority))

    tell(None, story)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
@pytest.mark.parametrize("old", ["version", "cipher"])
def test_old_versions_and_ciphers_are_refused(
    tell: Callable[[Tls, Story], None], authority: Authority, pair: Pair, old: str
) -> None:
    context = _client_context(authority)
    if old == "version":
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("ALL:@SECLEVEL=0")
    else:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("ECDHE-ECDSA-AES128-SHA256:ECDHE-ECDSA-AES128-SHA")

    async def story(port: Port) -> None:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await port.connect(context)
        await until(lambda: port.counters.refused[Refused.HANDSHAKE] == 1)

    tell(Tls(*pair, None), story)


def test_clients_need_a_certificate_of_the_client_authority(
    tell: Callable[[Tls, Story], None], authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger").sign("stranger-client")

    async def story(port: Port) -> None:
        for refused in (None, stranger):
            # With TLS 1.3 a client learns that it is refused when it reads.
            with pytest.raises(ssl.SSLError):
                await (await port.connect(_client_context(authority, refused))).ask(LIST)
        known = await port.connect(_client_context(authority, authority.sign("client")))

        assert (await known.ask(LIST)).status == 200
        assert port.counters.refused[Refused.HANDSHAKE] == 2

    tell(Tls(*pair, authority.file), story)


@pytest.mark.parametrize(
    ("version", "sends", "alert", "reason"),
    [
        ("TLSv1_3", False, "TLSV13_ALERT_CERTIFICATE_REQUIRED", "the client sent no certificate"),
        ("TLSv1_2", False, "HANDSHAKE_FAILURE", "the client sent no certificate"),
        ("TLSv1_3", True, "ALERT_UNKNOWN_CA", "the client's certificate is refused: "),
        ("TLSv1_2", True, "ALERT_UNKNOWN_CA", "the client's certificate is refused: "),
    ],
)
def test_a_client_without_a_valid_certificate_gets_an_alert_and_a_line_in_the_log(
    tell: Callable[[Tls, Story], None],
    authority: Authority,
    pair: Pair,
    tmp_path: Path,
    version: str,
    alert: str,
    reason: str,
    *,
    sends: bool,
) -> None:
    stranger = Authority(tmp_path, "stranger").sign("stranger") if sends else None
    context = _client_context(authority, stranger)
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]

    async def story(port: Port) -> None:
        with pytest.raises(ssl.SSLError) as refused:
            await (await port.connect(context)).ask(LIST)

        assert alert in (refused.value.reason or "")
        await until(lambda: port.counters.refused[Refused.HANDSHAKE] == 1)

    with capture_logs() as lines:
        tell(Tls(*pair, authority.file), story)

    (line,) = [line for line in lines if line["event"] == "handshake_refused"]
    assert line["client"] == "127.0.0.1"
    assert line["reason"].startswith(reason)
    assert line["unreported"] == 0


def test_failed_handshakes_are_reported_once_a_second(
    tell: Callable[[Tls, Story], None],
    authority: Authority,
    pair: Pair,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sqs_api.http.listener.REPORT_S", 3600.0)

    async def story(port: Port) -> None:
        for _ in range(3):
            with pytest.raises(ssl.SSLError):
                await (await port.connect(_client_context(authority))).ask(LIST)
        await until(lambda: port.counters.refused[Refused.HANDSHAKE] == 3)

    with capture_logs() as lines:
        tell(Tls(*pair, authority.file), story)

    assert [line["event"] for line in lines].count("handshake_refused") == 1


def test_silent_and_hanging_up_clients_leave_nothing_behind(
    tell: Callable[[Tls, Story], None], pair: Pair
) -> None:
    async def story(port: Port) -> None:
        silent = [await port.connect() for _ in range(3)]
        half = await port.connect()
        half.writer.write(b"\x16\x03\x01")
        for client in (*silent, half):
            await client.close()

        refused = port.counters.refused
        await until(lambda: refused[Refused.PLAIN_HTTP] + refused[Refused.HANDSHAKE] == 4)
        assert port.counters.connections == 0

    tell(Tls(*pair, None), story)


def test_handshakes_that_do_not_go_on_are_cut(
    tell: Callable[[Tls, Story], None], pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqs_api.http.listener.HANDSHAKE_S", 0.05)

    async def story(port: Port) -> None:
        silent, half = [await port.connect() for _ in range(2)]
        half.writer.write(b"\x16\x03\x01")

        assert await silent.rest() == await half.rest() == b""
        await until(lambda: port.counters.timeouts[TimedOut.HANDSHAKE] == 2)

    tell(Tls(*pair, None), story)


def test_client_that_does_not_read_its_answers_is_cut_over_tls_too(
    tell: Callable[[Tls, Story], None], authority: Authority, pair: Pair
) -> None:
    async def story(port: Port) -> None:
        client = await port.connect(_client_context(authority))
        assert (await client.ask(CREATE)).status == 200
        large = json_request("SendMessage", QueueUrl="q", MessageBody="x" * 900_000)
        assert (await client.ask(large)).status == 200
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        (connection,) = port.server.connections
        while not connection.writing_paused:
            client.writer.write(json_request("ReceiveMessage", QueueUrl="q", VisibilityTimeout=0))
            await asyncio.sleep(0.001)

        for _ in range(10):  # what the kernel still takes on a busy machine counts as progress
            await port.pass_seconds(23)
            if not port.counters.connections:
                break

        assert port.counters.timeouts[TimedOut.ANSWER] == 1
        client.writer.transport.abort()

    tell(Tls(*pair, None), story)


def test_new_connections_use_a_new_certificate_and_open_ones_go_on(
    tell: Callable[[Tls, Story], None], authority: Authority, tmp_path: Path
) -> None:
    first, second = authority.sign("first"), authority.sign("second")
    used = Pair(tmp_path / "c.pem", tmp_path / "k.pem")
    _put(first, used)
    tls = Tls(*used, None)

    async def story(port: Port) -> None:
        context = _client_context(authority)
        client = await port.connect(context)
        await client.ask(LIST)
        assert not tls.reload_if_changed()

        _put(second, used)
        assert tls.reload_if_changed()

        newer = await port.connect(context)
        assert (_subject(client), _subject(newer)) == ("first", "second")
        assert (await client.ask(LIST)).status == (await newer.ask(LIST)).status == 200

    tell(tls, story)


def _put(source: Pair, target: Pair) -> None:
    for file, place in zip(source, target, strict=True):
        new = place.with_suffix(".new")
        new.write_bytes(file.read_bytes())
        new.replace(place)


def _subject(client: object) -> str:
    peer = client.writer.get_extra_info("peercert")  # type: ignore[attr-defined]
    return str(peer["subject"][0][0][1])


# -- files -----------------------------------------------------------------------------------------


def _unusable(certificate: Path, key: Path, client_ca: Path | None = None) -> str:
    with pytest.raises(TlsUnusable) as refused:
        Tls(certificate, key, client_ca)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_files_that_cannot_be_used_are_named(
    authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    other = authority.sign("other")
    locked = authority.sign("locked", password=b"x")
    empty = tmp_path / "empty.pem"
    empty.touch()
    missing = tmp_path / "missing.pem"

    assert _unusable(missing, pair.key) == f"cannot read {missing}: No such file or directory"
    assert _unusable(empty, pair.key) == f"{empty} holds no PEM certificate"
    assert _unusable(pair.certificate, other.key).endswith("they do not belong together")
    assert str(missing) in _unusable(pair.certificate, missing)
    assert str(locked.key) in _unusable(*locked)
    assert str(empty) in _unusable(*pair, empty)
    assert str(missing) in _unusable(*pair, missing)


def test_a_broken_pair_is_said_once_and_the_old_one_stays_in_use(
    authority: Authority, tmp_path: Path
) -> None:
    used = Pair(tmp_path / "c.pem", tmp_path / "k.pem")
    _put(authority.sign("first"), used)
    tls = Tls(*used, None)
    before = tls.context

    used.key.write_bytes(authority.sign("other").key.read_bytes())
    with pytest.raises(TlsUnusable, match="they do not belong together"):
        tls.reload_if_changed()

    assert not tls.reload_if_changed(), "said again"
    was_stale = tls.is_stale
    assert tls.context is before
    used.key.unlink()
    with pytest.raises(TlsUnusable):
        tls.reload_if_changed()
    _put(authority.sign("second"), used)
    assert tls.reload_if_changed()
    assert (was_stale, tls.is_stale) == (True, False)
    assert tls.context is not before


def test_an_expired_certificate_is_seen_once(authority: Authority, tmp_path: Path) -> None:
    used = Pair(tmp_path / "c.pem", tmp_path / "k.pem")
    _put(authority.sign("first"), used)
    tls = Tls(*used, None)
    end_s = tls.expires_at_s

    assert not tls.expires_now(end_s - 1)
    assert [tls.expires_now(end_s), tls.expires_now(end_s + 1)] == [True, False]
    _put(authority.sign("second"), used)
    assert tls.reload_if_changed()
    assert [tls.expires_now(tls.expires_at_s + 1) for _ in range(2)] == [True, False]


async def test_a_front_reports_an_expired_certificate_at_start_and_while_it_runs(
    authority: Authority, pair: Pair
) -> None:
    at_s = Tls(*pair, None).expires_at_s
    settings = Settings(port=0, tls_certificate=pair.certificate, tls_key=pair.key)
    for late in (True, False):
        now_s = [at_s if late else at_s - 1]
        front = Server(settings, partial(now_s.__getitem__, 0), inherited=None)
        async with running() as service:
            with capture_logs() as lines:
                await front.open(service.gateway, service.pages)
                assert bool(lines) is late
                now_s[0] = at_s
                await front.look()
                await front.look()
            front.close()
            await front.disconnect(0)
        (line,) = lines
        assert (line["event"], line["log_level"]) == ("certificate_expired", "error")
        assert line["file"] == str(pair.certificate)


async def test_metrics_say_what_was_turned_away_and_whether_the_certificate_is_stale(
    authority: Authority, tmp_path: Path
) -> None:
    used = Pair(tmp_path / "c.pem", tmp_path / "k.pem")
    _put(authority.sign("first"), used)
    tls = Tls(*used, None)
    used.certificate.unlink()
    with pytest.raises(TlsUnusable):
        tls.reload_if_changed()
    async with running() as service, listening(service, tls=tls) as port:
        source = ListenerMetrics(
            port.counters,
            port.server.memory,
            tls,
            lambda: 3,
            wall_s=lambda: tls.expires_at_s,
        )
        await (await port.connect()).ask(LIST)

        page = (await Metrics(Accounting(), [source]).page()).decode()

    for line in (
        "holdfast_connections 0.0",
        'holdfast_listener_refused_total{reason="plain_http"} 1.0',
        'holdfast_listener_timeouts_total{reason="idle"} 0.0',
        'holdfast_listener_too_large_total{reason="head"} 0.0',
        "holdfast_polls_not_waited_total 3.0",
        "holdfast_tls_certificate_stale 1.0",
        "holdfast_tls_certificate_expired 1.0",
        "holdfast_tls_certificate_expires_seconds 1.",
    ):
        assert line in page, line


def test_a_port_that_is_taken_is_an_error() -> None:
    async def story() -> None:
        async with running() as service, listening(service) as port:
            from sqs_api.http.listener import Listener

            with pytest.raises(OSError, match="in use"):
                await Listener(port.server, port.counters, connections_max=1).open(
                    "127.0.0.1", port.number
                )

    asyncio.run(story())


def test_localhost_listens_on_every_address_of_it() -> None:
    async def story() -> None:
        async with running() as service, listening(service) as port:
            from sqs_api.http.listener import Listener

            listener = Listener(port.server, port.counters, connections_max=9)
            number = await listener.open("localhost", 0)
            names = {entry[4][0] for entry in socket.getaddrinfo("localhost", number)}
            for name in names:
                _, writer = await asyncio.open_connection(str(name), number)
                writer.close()
                await writer.wait_closed()
            listener.close()

    asyncio.run(story())
