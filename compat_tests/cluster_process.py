"""Starts and stops a cluster, or a fleet of two, on this machine as a user does, with `holdfast
cluster try` or `holdfast fleet try`."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from typing_extensions import override

from compat_tests.facade import Credentials, pause_of_wait
from compat_tests.node_process import NodeProcess, command
from compat_tests.pages import ask

HOSTS = ("a", "b", "c")
SECOND = ("d", "e", "f")
"""Hosts of the second cluster of a fleet."""
GATEWAY = "g"
MEMBERS = ("etcd-1", "etcd-2", "etcd-3")
_FIRST_LEADERS = ("leaders/holder/0", "fleet/2/leaders/holder/3")
"""The record of the leader of the first shard of each cluster."""
_PATIENCE_S = 180.0


class Cluster(NamedTuple):
    """The content of the cluster's running.json."""

    endpoint: str
    hosts: dict[str, str]
    processes: dict[str, int]


class ClusterFolder:
    """The processes of a running cluster, by its folder."""

    def __init__(self, data: Path) -> None:
        self.data = data

    def cluster(self) -> Cluster:
        """The processes that run now."""
        return Cluster(**json.loads((self.data / "running.json").read_text()))

    @property
    def hosts(self) -> tuple[str, ...]:
        """The processes that take requests of clients."""
        return tuple(self.cluster().hosts)

    @property
    def is_fleet(self) -> bool:
        """True if there is a second cluster, and a gateway."""
        return GATEWAY in self.hosts

    def hosts_behind_the_endpoint(self) -> tuple[str, ...]:
        """The hosts that may fail: without a balancer the endpoint is one of them."""
        found = self.cluster()
        return tuple(host for host, url in found.hosts.items() if url != found.endpoint)

    def etcd_address(self, member: str, purpose: str) -> tuple[str, int]:
        """Host and port of a member of etcd, for `client` or `peers`."""
        kept = json.loads((self.data / "cluster.json").read_text())
        machine = kept["machines"].get(member, {"address": "127.0.0.1"})
        return machine["address"], kept["ports"][f"{member}/{purpose}"]

    def etcd_url(self, member: str) -> str:
        """The address of a member of etcd for clients."""
        host, port = self.etcd_address(member, "client")
        return f"https://{host}:{port}"

    def etcd_tls(self) -> ssl.SSLContext:
        """The TLS of a client of etcd."""
        files = self.data / "etcd-certificates/client"
        context = ssl.create_default_context(cafile=files / "ca.pem")
        context.load_cert_chain(files / "peer.pem", files / "peer.key")
        return context

    def signal(self, name: str, number: signal.Signals) -> int:
        """Send a signal to one process of the cluster, and return its id."""
        pid = self.cluster().processes[name]
        os.kill(pid, number)
        return pid

    @contextmanager
    def not_starting(self, launcher: int) -> Iterator[None]:
        """Keep the launcher from starting processes anew meanwhile."""
        os.kill(launcher, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(launcher, signal.SIGCONT)

    def wait_for_another(self, name: str, pid: int) -> None:
        """Wait until the launcher has started the process anew."""
        self._wait(lambda: self.cluster().processes.get(name, pid) != pid, f"{name} to start")

    def wait_until_ready(self, name: str) -> None:
        """Wait until a host says that it takes requests, or a member of etcd that it has a
        leader."""
        if name in self.hosts:
            page, tls = f"{self.cluster().hosts[name]}/readyz", None
        else:
            page, tls = f"{self.etcd_url(name)}/health", self.etcd_tls()
        self._wait(lambda: is_well(page, tls), f"{name} to be ready")

    def wait_until_all_are_ready(self) -> None:
        """Wait for every process: a fault that meets a cluster which still mends the last one would
        be two at once. Members of etcd need seconds for connections that were cut."""
        for name in (*MEMBERS, *self.hosts):
            self.wait_until_ready(name)

    def wait_until_healthy(self, credentials: Credentials) -> None:
        """Wait until all hosts see no problem: every copy of a shard is sound and counts."""
        found: dict[str, Any] = {}

        def is_healthy() -> bool:
            for host in sorted({*self.hosts} - {GATEWAY}):
                try:
                    status, said = ask(self.cluster().hosts[host], credentials, "cluster")
                except OSError as error:
                    status, said = 0, str(error)
                found[host] = said["problems"] if status == 200 else said
            return not any(found.values())

        try:
            self._wait(is_healthy, "the cluster to be healthy")
        except AssertionError as error:
            raise AssertionError(f"{error}: {found}") from None

    def record(self, key: str) -> Any:
        """A record of the cluster in etcd; None while there is none, or etcd is away."""
        wanted = base64.b64encode(f"holdfast/holdfast/{key}".encode()).decode()
        asked = Request(
            f"{self.etcd_url(MEMBERS[0])}/v3/kv/range", json.dumps({"key": wanted}).encode()
        )
        try:
            with urlopen(asked, timeout=2, context=self.etcd_tls()) as answer:
                found = json.load(answer).get("kvs", [])
        except (URLError, OSError):
            return None
        return json.loads(base64.b64decode(found[0]["value"])) if found else None

    def leader(self, cluster: int = 1) -> str:
        """The host that leads the first shard of a cluster; empty while none does, or etcd is
        away."""
        found = self.record(_FIRST_LEADERS[cluster - 1])
        return str(found["name"]) if found else ""

    def etcd_leader(self) -> str:
        """The member that leads etcd."""
        found: list[str] = []

        def look() -> bool:
            found.extend(member for member in MEMBERS if self._leads(member))
            return bool(found)

        self._wait(look, "etcd to have a leader")
        return found[0]

    def _leads(self, member: str) -> bool:
        try:
            page = f"{self.etcd_url(member)}/metrics"
            with urlopen(page, timeout=2, context=self.etcd_tls()) as answer:
                return b"\netcd_server_is_leader 1\n" in answer.read()
        except (URLError, OSError):
            return False

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        begun_s = time.monotonic()
        while not is_so():
            assert time.monotonic() < begun_s + _PATIENCE_S, f"waited for {what}"
            pause_of_wait(begun_s)


class ClusterProcess(NodeProcess):
    """The launcher of a cluster; `url` is the one endpoint."""

    _kind = "cluster"

    @property
    def parts(self) -> ClusterFolder:
        """The processes of the cluster."""
        return ClusterFolder(self.data)

    @override
    def close(self) -> None:
        """Remove what the members of etcd stored, too: 370 MB, in memory where folders are."""
        super().close()
        for stored in self.data.glob("*/member"):
            shutil.rmtree(stored)

    @override
    def command_line(self) -> list[str]:
        where = ["--port", str(self.port), "--data", str(self.data)]
        return command(self._kind, "try", *where, *self.options)


def is_well(page: str, tls: ssl.SSLContext | None = None) -> bool:
    """True if the page is answered with success."""
    try:
        with urlopen(page, timeout=2, context=tls) as answer:
            return bool(answer.status == 200)
    except (HTTPError, URLError, OSError):
        return False
