"""Ports for programs that cannot choose one themselves."""

from __future__ import annotations

import socket
from contextlib import suppress
from secrets import randbelow

_FIRST, _COUNT = 10_000, 20_000
"""Below those that the system gives to other sockets, also while a program is stopped."""


def free_ports(count: int) -> list[int]:
    """Different ports of loopback that are free now."""
    found: set[int] = set()
    while len(found) < count:
        port = _FIRST + randbelow(_COUNT)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.add(port)
    return [*found]
