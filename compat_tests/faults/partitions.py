"""Machines of a cluster as network namespaces with a bridge between them, whose links can be cut.

Each has a host and a member of etcd; clients and the balancer are outside. A cut loses packets in
silence, as a broken switch does. Needs root and `ip netns`; `why_not` names what is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from compat_tests.cluster_process import HOSTS


def why_not() -> str | None:
    """The reason why this machine cannot have namespaces; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no ip (Debian: iproute2)"
    name = f"hf-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if made.returncode:
        return f"no network namespace can be made: {made.stderr.decode().strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return None


class Machines:
    """Make them with `machines`."""

    def __init__(self) -> None:
        number = os.getpid() % 250
        self._bridge = f"hf{number}"
        self._net = f"10.77.{number}"

    def options(self) -> list[str]:
        """Options of `holdfast cluster try` that put its processes on the machines."""
        return [
            word
            for host in HOSTS
            for word in ("--machine", host, self._address(host), self._name(host))
        ]

    def cut_off(self, host: str) -> None:
        """Cut all links of a machine."""
        _ip("link", "set", self._name(host), "down")

    def cut_from_others(self, host: str) -> None:
        """Cut the links to the other machines, in both directions; clients still reach it."""
        self.cut_outgoing(host)
        for other in self._others(host):
            _ip("-n", self._name(other), "route", "add", "blackhole", self._address(host))

    def cut_outgoing(self, host: str) -> None:
        """Lose what the machine sends to the others."""
        for other in self._others(host):
            _ip("-n", self._name(host), "route", "add", "blackhole", self._address(other))

    def heal(self, host: str) -> None:
        """Mend every link of the machine."""
        _ip("link", "set", self._name(host), "up")
        for one, other in [(host, other) for other in self._others(host)]:
            for near, far in ((one, other), (other, one)):
                route = ("route", "del", "blackhole", self._address(far))
                _ip("-n", self._name(near), *route, is_tried=True)

    def make(self) -> None:
        """Make the bridge and the machines."""
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self._net}.254/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for host in HOSTS:
            name = self._name(host)
            _ip("netns", "add", name)
            _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", name, "master", self._bridge, "up")
            _ip("-n", name, "addr", "add", f"{self._address(host)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")

    def remove(self) -> None:
        """Remove what there is of them."""
        for host in HOSTS:
            _ip("netns", "del", self._name(host), is_tried=True)
        _ip("link", "del", self._bridge, is_tried=True)

    def _others(self, host: str) -> list[str]:
        return [other for other in HOSTS if other != host]

    def _name(self, host: str) -> str:
        return f"{self._bridge}-{host}"

    def _address(self, host: str) -> str:
        return f"{self._net}.{HOSTS.index(host) + 1}"


@contextmanager
def machines() -> Iterator[Machines]:
    """The machines of one cluster."""
    made = Machines()
    try:
        made.make()
        yield made
    finally:
        made.remove()


def _ip(*words: str, is_tried: bool = False) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert is_tried or done.returncode == 0, f"ip {' '.join(words)}: {done.stderr.strip()}"
