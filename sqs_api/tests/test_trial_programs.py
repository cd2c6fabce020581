"""The programs of a trial cluster: real etcd, real haproxy before plain servers, and what `deploy/`
says of both."""

from __future__ import annotations

import re
import shutil
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from http.client import BadStatusLine, HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cluster.clock import SystemClock, SystemEntropy
from cluster.peers.peer_settings import PeerSettings
from cluster.tests import etcd_processes
from compat_tests.ports import free_ports
from sqs_api.settings.config import load
from sqs_api.settings.member_settings import member_settings, open_network
from sqs_api.trial.layout import GATEWAY, HOSTS, TrialRefused, opened
from sqs_api.trial.programs import (
    ETCD_SETTINGS,
    balancer_config,
    balancer_program,
    etcd_program,
    host,
)
from sqs_api.trial.trial_cluster import TrialCluster

DEPLOY = Path(__file__).parents[2] / "deploy"
HAPROXY = shutil.which("haproxy")
needs_haproxy = pytest.mark.skipif(HAPROXY is None, reason="there is no haproxy")


def test_the_etcd_is_the_machines_or_the_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (found := etcd_processes.etcd_program()) is not None:
        assert Path(etcd_program()) == found
    own = tmp_path / "etcd"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert etcd_program() == str(own)


def test_no_etcd_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("sqs_api.trial.programs.find_spec", lambda name: None)

    with pytest.raises(TrialRefused, match=r"^there is no etcd: [^\n]*make cluster$"):
        etcd_program()


@pytest.mark.parametrize("file", ["compose.cluster.yaml", "kubernetes/cluster.yaml"])
def test_deployed_etcds_have_the_settings_of_the_tried_one(file: str) -> None:
    text = (DEPLOY / file).read_text()
    said = dict(re.findall(r'(ETCD_\w+)(?:: |, value: )"?([^"}\n]+)', text))

    assert ETCD_SETTINGS.items() <= said.items()


def test_the_shipped_balancer_is_configured_as_the_tried_one() -> None:
    servers = {name: f"holdfast-{name}:9324" for name in HOSTS}

    assert (DEPLOY / "haproxy.cfg").read_text() == balancer_config(
        "*:9324", servers, is_hidden=False
    )


# -- the folder ------------------------------------------------------------------------------------


def test_a_second_start_finds_the_same_keys_ports_and_certificates(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    with opened(folder, SystemClock(), SystemEntropy()) as layout:
        first, key = layout.kept, layout.master_key.read_bytes()
        authority = (layout.certificates / "ca.pem").read_bytes()
    with opened(folder, SystemClock(), SystemEntropy()) as layout:
        assert layout.kept == first
        assert layout.master_key.read_bytes() == key
        assert (layout.certificates / "ca.pem").read_bytes() == authority
    assert len(set(first.ports.values())) == 13
    assert not [file for file in folder.rglob("*") if file.stat().st_mode & 0o077]


def test_a_folder_whose_etcd_has_no_certificates_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path, SystemClock(), SystemEntropy()) as layout:
        shutil.rmtree(layout.etcd_certificates)

    with (
        pytest.raises(TrialRefused, match=r"has no certificates: .* name another folder with"),
        opened(tmp_path, SystemClock(), SystemEntropy()),
    ):
        pytest.fail("it was opened")


def test_a_folder_is_for_one_cluster_at_a_time(tmp_path: Path) -> None:
    with (
        opened(tmp_path, SystemClock(), SystemEntropy()),
        pytest.raises(TrialRefused, match=r"runs in .* already"),
        opened(tmp_path, SystemClock(), SystemEntropy()),
    ):
        pytest.fail("it was opened twice")


async def test_a_port_in_use_is_said_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqs_api.trial.trial_cluster.balancer_program", lambda: "haproxy")
    monkeypatch.setattr("sqs_api.trial.trial_cluster.etcd_program", lambda: pytest.fail("it began"))
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        opened(tmp_path, SystemClock(), SystemEntropy()) as layout,
    ):
        port = taken.getsockname()[1]
        trial = TrialCluster(layout, port, {}, {}, SystemClock(), print)
        with pytest.raises(TrialRefused) as refused:
            await trial.start()

    advice = "stop what listens there, or choose another with --port"
    assert str(refused.value) == f"port {port} is in use: {advice}"


def test_a_folder_that_cannot_be_used_is_said_in_one_line(tmp_path: Path) -> None:
    with opened(tmp_path / "made", SystemClock(), SystemEntropy()) as layout:
        (layout.certificates / "ca.key").unlink()
    (tmp_path / "file").touch()
    (tmp_path / "cluster.json").write_text("{}")

    for folder in (tmp_path / "file", tmp_path, tmp_path / "made"):
        with (
            pytest.raises(TrialRefused, match=r"^(cannot (use|read)|\S+ is there without)[^\n]*$"),
            opened(folder, SystemClock(), SystemEntropy()),
        ):
            pytest.fail("it was opened")


def test_hosts_are_started_as_members_that_know_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, SystemClock(), SystemEntropy()) as layout:
        pass
    addresses = set()
    for name in HOSTS:
        program = host(layout, name, {"aws_waits": "off"}, {"HOLDFAST_ACCOUNT": "1" * 12})
        words = program.command[program.command.index("serve") + 1 :]
        flags = {
            flag.removeprefix("--").replace("-", "_"): value
            for flag, value in zip(words[::2], words[1::2], strict=True)
        }
        for variable, value in program.environment.items():
            monkeypatch.setenv(variable, value)
        settings = load(flags, None)
        member = member_settings(settings)

        assert member is not None
        open_network(member, PeerSettings(), SystemClock().monotonic_s)
        assert (member.host, member.founders, len(member.etcd.endpoints)) == (name, HOSTS, 3)
        assert (settings.aws_waits, settings.account) == ("off", "1" * 12)
        assert settings.access_key_id == layout.kept.access_key_id
        addresses |= {member.peer_address, (settings.host, settings.port)}
    assert len(addresses) == 6


def test_commands_find_the_settings_of_a_host(tmp_path: Path) -> None:
    with opened(tmp_path, SystemClock(), SystemEntropy()) as layout:
        host(layout, "b", {}, {})
        host(layout, "b", {}, {})

    settings = load({}, layout.settings("b"))

    member = member_settings(settings)
    assert member is not None
    assert (member.host, settings.data) == ("b", layout.data("b"))
    assert settings.master_key_file == layout.master_key


# -- haproxy ---------------------------------------------------------------------------------------


class Server(ThreadingHTTPServer):
    """A server that may be unready or break off, and counts its requests."""

    daemon_threads = True

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        super().__init__((address, port), _Page)
        self.is_ready = True
        self.breaks_off = False
        self.hangs = False
        self.asked = 0
        self.let_go = threading.Event()
        self.awaits_hang_up = False
        self.hung_up = threading.Event()


class _Page(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.send_response(200 if self.server.is_ready else 503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked += 1
        if self.server.awaits_hang_up:
            self.connection.settimeout(30)
            with suppress(ConnectionResetError):
                assert self.connection.recv(1) == b""
            self.server.hung_up.set()
            return
        if self.server.hangs:
            self.server.let_go.wait(60)
        if not self.server.breaks_off:
            self.do_GET()

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


class Names(socketserver.ThreadingUDPServer):
    """A name server on a free port that knows one address, whatever the name."""

    def __init__(self, address: str) -> None:
        super().__init__(("127.0.0.1", 0), _Question)
        self.port: int = self.socket.getsockname()[1]
        self.address = address


class _Question(socketserver.BaseRequestHandler):
    server: Names

    def handle(self) -> None:
        asked, udp = self.request
        end = asked.index(b"\0", 12) + 5
        kind = asked[end - 4 : end - 2]
        record = b""
        if kind == b"\0\1":  # of IPv4
            record = b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4" + socket.inet_aton(self.server.address)
        head = asked[:2] + b"\x81\x80\0\1\0" + (b"\1" if record else b"\0") + b"\0\0\0\0"
        udp.sendto(head + asked[12:end] + record, self.client_address)


@contextmanager
def serving(*ports: int, addresses: Sequence[str] = ("127.0.0.1",)) -> Iterator[list[Server]]:
    servers = [Server(port, address) for port in ports for address in addresses]
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,)) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield servers
    finally:
        for server in servers:
            server.let_go.set()
            server.shutdown()
            server.server_close()


@contextmanager
def balancing(
    folder: Path, *ports: int, names: Names | None = None, gateway: int = 0
) -> Iterator[int]:
    """haproxy before these ports, of which one is a gateway's; its own port, once it answers."""
    (own,) = free_ports(1)
    file = folder / "haproxy.cfg"
    where = "127.0.0.1" if names is None else "host.test"
    called = {port: GATEWAY if port == gateway else f"s{port}" for port in ports}
    servers = {called[port]: f"{where}:{port}" for port in ports}
    text = balancer_config(f"127.0.0.1:{own}", servers, is_hidden=False)
    if names is not None:  # in the place of the machine's
        text = text.replace("last,libc,none", "none")
        text = text.replace("parse-resolv-conf", f"nameserver n 127.0.0.1:{names.port}")
    file.write_text(text)
    assert HAPROXY is not None
    process = subprocess.Popen([HAPROXY, "-db", "-f", file], stderr=subprocess.DEVNULL)
    try:
        patience = time.monotonic() + 60
        while status(own, "GET", "/readyz") != 200:
            assert process.poll() is None
            assert time.monotonic() < patience
        yield own
    finally:
        process.kill()
        process.wait()


def status(port: int, method: str = "POST", path: str = "/") -> int:
    """Of one request; 0 for a connection that ended without an answer."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        try:
            connection.request(method, path, body=b"x" if method == "POST" else None)
            return connection.getresponse().status
        except (OSError, BadStatusLine, HTTPException):
            return 0


@pytest.mark.slow
@needs_haproxy
def test_a_host_is_found_at_its_new_address(tmp_path: Path) -> None:
    ports = free_ports(1)
    both = ("127.0.0.1", "127.0.0.2")
    with serving(*ports, addresses=both) as (old, new), Names(both[0]) as names:
        threading.Thread(target=names.serve_forever, args=(0.01,), daemon=True).start()
        with balancing(tmp_path, *ports, names=names) as own:
            assert status(own) == 200
            assert old.asked

            names.address = both[1]
            old.is_ready = False

            patience = time.monotonic() + 60
            while not new.asked:
                assert time.monotonic() < patience
                status(own)
        names.shutdown()


def test_the_configuration_is_taken_from_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")

    assert balancer_program() is None


@needs_haproxy
def test_a_host_that_cannot_be_reached_costs_no_request(tmp_path: Path) -> None:
    gone, *ports = free_ports(3)
    with serving(*ports) as servers, balancing(tmp_path, gone, *ports) as own:
        assert [status(own) for _ in range(12)] == [200] * 12
        assert all(server.asked for server in servers)


@needs_haproxy
def test_operators_pages_are_asked_of_hosts_and_not_of_a_gateway(tmp_path: Path) -> None:
    ports = free_ports(3)
    with serving(*ports) as servers, balancing(tmp_path, *ports, gateway=ports[0]) as own:
        gateway, *hosts = servers
        assert [status(own, path="/_holdfast/api/caller") for _ in range(9)] == [200] * 9
        assert gateway.asked == 0
        assert all(host.asked for host in hosts)
        assert [status(own) for _ in range(9)] == [200] * 9
        assert gateway.asked


@needs_haproxy
def test_a_request_that_was_sent_is_not_repeated_by_the_balancer(tmp_path: Path) -> None:
    ports = free_ports(2)
    with serving(*ports) as servers, balancing(tmp_path, *ports) as own:
        for server in servers:
            server.breaks_off = True

        assert status(own) in (0, 502)

        assert sum(server.asked for server in servers) == 1


@needs_haproxy
def test_a_host_learns_that_a_client_hung_up(tmp_path: Path) -> None:
    ports = free_ports(1)
    with serving(*ports) as (one,), balancing(tmp_path, *ports) as own:
        one.awaits_hang_up = True
        connection = HTTPConnection("127.0.0.1", own, timeout=30)
        connection.request("POST", "/", body=b"x")
        while not one.asked:
            pass

        connection.close()

        assert one.hung_up.wait(20)


@pytest.mark.slow
@needs_haproxy
def test_hosts_that_are_not_ready_get_no_requests(tmp_path: Path) -> None:
    ports = free_ports(2)
    with serving(*ports) as (one, other), balancing(tmp_path, *ports) as own:

        def share_of_one() -> int:
            before = one.asked
            for _ in range(4):
                status(own)
            return one.asked - before

        assert share_of_one()
        one.is_ready = False
        while share_of_one():  # until the checks have found it
            pass
        before = other.asked

        assert [status(own) for _ in range(6)] == [200] * 6

        assert other.asked == before + 6


@pytest.mark.slow
@needs_haproxy
def test_a_request_at_a_host_that_stopped_answering_ends_soon(tmp_path: Path) -> None:
    ports = free_ports(1)
    with serving(*ports) as (one,), balancing(tmp_path, *ports) as own:
        one.hangs = True
        ended: list[int] = []
        thread = threading.Thread(target=lambda: ended.append(status(own)))
        thread.start()
        while not one.asked:
            pass
        one.is_ready = False  # its checks fail from now on

        thread.join(20)  # far from the 60 s for which an answer may take

        assert ended
        assert ended[0] in (0, 502, 503)
