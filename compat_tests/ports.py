"""Ports for programs that cannot choose one themselves."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from itertools import cycle
from random import SystemRandom

_PORTS = (*range(5_000, 9_000), *range(30_000, 32_768))
"""Neither those that the system gives to other sockets, also while a program is stopped, nor those
of `holdfast cluster try`."""


def _share() -> list[int]:
    """The ports of this process, in any order. Those of a run's processes have none in common: many
    seconds may pass between a look at a port and the start of its program."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    mine = list(_PORTS[number :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))])
    SystemRandom().shuffle(mine)
    return mine


_next = cycle(_share())


def free_ports(count: int) -> list[int]:
    """Different ports of loopback that are free now, and were not given lately."""
    found: set[int] = set()
    for port in _next:
        if len(found) == count:
            break
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.add(port)
    return [*found]
