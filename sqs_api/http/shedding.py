"""What the listener bears, and what it has turned away: limits, their counters, and the memory of bodies being received."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec


class Refused(StrEnum):
    """Why a connection or a request was turned away."""

    CONNECTIONS = "connections"
    """As many connections are open as may be."""
    DESCRIPTORS = "descriptors"
    """The process has no file descriptor left; the client waits in the backlog and is tried again."""
    PLAIN_HTTP = "plain_http"
    """No TLS handshake on a port that speaks TLS."""
    HANDSHAKE = "handshake"
    """A TLS handshake that failed: no common version or cipher, no valid client certificate, hung up."""
    MEMORY = "memory"
    """Bodies being received hold all the memory they may."""


class TimedOut(StrEnum):
    """What a client did not do in time."""

    HANDSHAKE = "handshake"
    """Its TLS handshake."""
    REQUEST = "request"
    """The rest of a request it had begun."""
    ANSWER = "answer"
    """Reading its answers."""
    IDLE = "idle"
    """A further request; the usual end of a connection."""


class TooLarge(StrEnum):
    """What a client sent too much of."""

    HEAD = "head"
    BODY = "body"


class ListenerCounters(msgspec.Struct):
    """What the listener counts; every key of the tables is there from the start."""

    connections: int = 0
    """Open now, without TLS handshakes under way."""
    accepted: int = 0
    refused: dict[Refused, int] = msgspec.field(default_factory=lambda: dict.fromkeys(Refused, 0))
    timeouts: dict[TimedOut, int] = msgspec.field(
        default_factory=lambda: dict.fromkeys(TimedOut, 0)
    )
    too_large: dict[TooLarge, int] = msgspec.field(
        default_factory=lambda: dict.fromkeys(TooLarge, 0)
    )


class ListenerLimits(NamedTuple):
    """See the settings of the same names for the reasons."""

    connections_max: int = 10_000
    request_timeout_s: int = 20
    idle_timeout_s: int = 120
    client_bytes_per_s_min: int = 16 << 10
    request_memory_bytes: int = 256 << 20


class RequestMemory:
    """Bytes of bodies that were received and not answered yet, over all connections. Bodies below a few KiB, which the
    number of connections bounds, are not counted."""

    __slots__ = ("_bytes_max", "held_bytes")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.held_bytes = 0

    def take(self, size: int) -> bool:
        """Hold so many bytes more; False, with nothing taken, if that were too many."""
        if self.held_bytes + size > self._bytes_max:
            return False
        self.held_bytes += size
        return True

    def give_back(self, size: int) -> None:
        """They are answered, or their client is gone."""
        self.held_bytes -= size
