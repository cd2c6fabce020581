"""Layout: the folder of a cluster or a fleet on one machine, its ports and its secrets.

FOLDER/cluster.json      ports and the first access key, made once; locked while it runs
FOLDER/running.json      the endpoint and the processes, while it runs
FOLDER/master.key        shared by all hosts
FOLDER/certificates/     of `holdfast cluster certificates`
FOLDER/etcd-certificates/  the same of etcd's members and, in client/, of those who may use it
FOLDER/NAME/             data of one process: a, b, c, etcd-1, etcd-2, etcd-3, haproxy; of a fleet
                         d, e, f, which are its second cluster, and g, a gateway
FOLDER/NAME.log          what it said
FOLDER/NAME.toml         settings of a host, for commands: `holdfast credentials --config`
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
from base64 import b32encode, urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from auth.envelope import KEY_BYTES
from cluster.clock import Clock, Entropy
from cluster.coordination.etcd_wire import TlsFiles
from cluster.keys.master_key import write_master_key
from cluster.peers.certificates import CertificatesRefused, make_certificates
from cluster.peers.roles import GATEWAY_MARK, cluster_mark
from storage.files.copying import write_file

HOSTS = ("a", "b", "c")
SECOND = ("d", "e", "f")
"""Hosts of the second cluster of a fleet."""
GATEWAY = "g"
MEMBERS = ("etcd-1", "etcd-2", "etcd-3")
BALANCER = "haproxy"
LOOPBACK = "127.0.0.1"
_DAYS = 730
_ETCD_CERTIFICATES, _CLIENT = "etcd-certificates", "client"
WORKERS_MAX = 4
"""Of a host."""
_PORTS = range(10_000, 30_000, WORKERS_MAX)
"""Below those that Linux gives to outgoing connections: a second start finds its ports free. Those
in between are for the further workers of a host."""
_ID_BYTES = 10
_SECRET_BYTES = 30


class TrialRefused(Exception):
    """The cluster cannot start; the text says why in one line."""


class Machine(msgspec.Struct, frozen=True):
    """A network namespace of Linux that stands for a machine, in tests of partitions."""

    address: str
    namespace: str


class Kept(msgspec.Struct, frozen=True):
    """The content of cluster.json."""

    token: str
    """Keeps this etcd apart from others."""
    ports: dict[str, int]
    """By name and purpose, such as `a/http`."""
    access_key_id: str
    secret_access_key: str
    session_token: None = None
    machines: dict[str, Machine] = {}
    """By process; one that is not here is on this machine."""
    is_fleet: bool = False


class Running(msgspec.Struct, frozen=True):
    """The content of running.json."""

    endpoint: str
    hosts: dict[str, str]
    """Addresses of the hosts for clients."""
    processes: dict[str, int]
    """Process ids by name, of those that run."""


class Layout:
    """One folder. Open it with `opened`."""

    def __init__(self, folder: Path, kept: Kept) -> None:
        self.folder = folder
        self.kept = kept
        self.master_key = folder / "master.key"
        self.certificates = folder / "certificates"
        self.etcd_certificates = folder / _ETCD_CERTIFICATES
        self.balancer_config = folder / "haproxy.cfg"

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of all processes that take requests of clients."""
        return (*HOSTS, *SECOND, GATEWAY) if self.kept.is_fleet else HOSTS

    def ip_address(self, name: str) -> str:
        """The address of one process's machine."""
        machine = self.kept.machines.get(name)
        return LOOPBACK if machine is None else machine.address

    def address(self, name: str, purpose: str) -> str:
        """HOST:PORT of one process."""
        return f"{self.ip_address(name)}:{self.kept.ports[f'{name}/{purpose}']}"

    @property
    def etcd_client(self) -> TlsFiles:
        """The certificates of those who may use etcd."""
        files = self.etcd_certificates / _CLIENT
        return TlsFiles(files / "ca.pem", files / "peer.pem", files / "peer.key")

    def on_machine(self, name: str, command: list[str]) -> list[str]:
        """The command as it runs on the machine of its process."""
        machine = self.kept.machines.get(name)
        if machine is None:
            return command
        return [shutil.which("ip") or "ip", "netns", "exec", machine.namespace, *command]

    def data(self, name: str) -> Path:
        """The folder of one process."""
        return self.folder / name

    def settings(self, name: str) -> Path:
        """The configuration file of a host."""
        return self.folder / f"{name}.toml"

    def log(self, name: str) -> Path:
        """The log of one process."""
        return self.folder / f"{name}.log"

    def note(self, running: Running | None) -> None:
        """Keep the processes for other programs; None when there are none."""
        file = self.folder / "running.json"
        if running is None:
            file.unlink(missing_ok=True)
            return
        draft = file.with_suffix(".new")
        draft.unlink(missing_ok=True)
        write_file(draft, msgspec.json.encode(running))
        draft.replace(file)


@contextmanager
def opened(
    folder: Path,
    clock: Clock,
    entropy: Entropy,
    machines: Mapping[str, Machine] | None = None,
    *,
    is_fleet: bool = False,
) -> Iterator[Layout]:
    """The folder, made if it is not there, and locked; `machines` of the first cluster's hosts are
    for a new one, and have a member of etcd and a host of the second cluster each, too. A folder of
    a fleet stays one.

    Raises TrialRefused.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise TrialRefused(f"cannot use {folder}: {error.strerror}") from error
    with os.fdopen(descriptor) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TrialRefused(f"a cluster runs in {folder} already") from error
        drawn = _drawn(entropy, machines or {}, is_fleet=is_fleet)
        yield _made(folder, clock, entropy, drawn)


def _made(folder: Path, clock: Clock, entropy: Entropy, drawn: Kept) -> Layout:
    file = folder / "cluster.json"
    try:
        if not file.exists():
            write_file(file, msgspec.json.encode(drawn))
        layout = Layout(folder.absolute(), msgspec.json.decode(file.read_bytes(), type=Kept))
    except msgspec.MsgspecError as error:
        raise TrialRefused(f"cannot read {file}: {error}") from error
    if drawn.is_fleet and not layout.kept.is_fleet:
        raise TrialRefused(f"{folder} has a single cluster: name another folder with --data")
    if layout.data(MEMBERS[0]).exists() and not layout.etcd_certificates.exists():
        raise TrialRefused(
            f"the etcd in {folder} has no certificates: an earlier version made it, and any user "
            "of this machine could change it; name another folder with --data, or remove this one"
        )
    if not layout.master_key.exists():
        write_master_key(layout.master_key, entropy.secret(KEY_BYTES))
    try:
        now_s = clock.wall_s()
        make_certificates(layout.certificates, HOSTS, _DAYS, now_s)
        if layout.kept.is_fleet:
            mark = cluster_mark(2)
            make_certificates(layout.certificates, SECOND, _DAYS, now_s, mark=mark)
            make_certificates(layout.certificates, (GATEWAY,), _DAYS, now_s, mark=GATEWAY_MARK)
        addresses = {name: layout.ip_address(name) for name in MEMBERS}
        of_etcd = (*MEMBERS, _CLIENT)
        make_certificates(layout.etcd_certificates, of_etcd, _DAYS, now_s, addresses)
    except CertificatesRefused as error:
        raise TrialRefused(str(error)) from error
    for name in (*layout.hosts, *MEMBERS):
        layout.data(name).mkdir(mode=0o700, exist_ok=True)
    return layout


def _drawn(entropy: Entropy, machines: Mapping[str, Machine], *, is_fleet: bool) -> Kept:
    hosts = (*HOSTS, *SECOND, GATEWAY) if is_fleet else HOSTS
    purposes = [f"{host}/{purpose}" for host in hosts for purpose in ("http", "peers")]
    purposes += [f"{member}/{purpose}" for member in MEMBERS for purpose in ("client", "peers")]
    purposes.append(f"{BALANCER}/http")
    return Kept(
        token=entropy.secret(8).hex(),
        ports=dict(zip(purposes, _free_ports(entropy), strict=False)),
        access_key_id="AKIA" + b32encode(entropy.secret(_ID_BYTES)).decode(),
        secret_access_key=urlsafe_b64encode(entropy.secret(_SECRET_BYTES)).decode(),
        machines={
            name: machines[host]
            for beside in zip(HOSTS, MEMBERS, SECOND, strict=True)
            for host in beside[:1]
            for name in beside
            if host in machines
        },
        is_fleet=is_fleet,
    )


def _free_ports(entropy: Entropy) -> Iterator[int]:
    """Ports of loopback that are free now with those of further workers, from a random one on."""
    first = entropy.bits128() % len(_PORTS)
    for port in (*_PORTS[first:], *_PORTS[:first]):
        with suppress(OSError), ExitStack() as taken:
            for each in range(port, port + _PORTS.step):
                taken.enter_context(socket.create_server((LOOPBACK, each)))
            yield port
