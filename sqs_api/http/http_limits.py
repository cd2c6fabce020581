"""Limits of a listener and counters of refusals: connections, time, memory, file descriptors."""

from __future__ import annotations

import resource
import socket
from collections import OrderedDict
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

from sqs_api.gateway.request_memory import RequestMemory
from sqs_api.settings.proxies import TrustedProxies
from visibility.contract.model import QueueDefinition

BODY_BYTES_MAX = 7 << 20
"""No valid request is larger: messages of 1 MiB take three times that in form encoding, and six
times that in JSON whose writer escapes every character as \\u00XX."""
TARGET_BYTES_MAX = 64 << 10
"""A GET has all parameters in its target, the message, too. AWS takes larger ones; each is decoded,
sorted and encoded before its signature is checked, 64 KiB in up to 45 ms."""
_DESCRIPTORS_KEPT_MAX = 4096
"""For the stores, which keep every table file open, the catalog and logs; at most a quarter of
all."""


class Refused(StrEnum):
    """Reasons to turn a connection or a request away."""

    CONNECTIONS = "connections"
    """Too many connections are open, and none is idle for long enough."""
    DESCRIPTORS = "descriptors"
    """The process has no file descriptor left; the client waits in the backlog for another
    attempt."""
    PLAIN_HTTP = "plain_http"
    """No TLS handshake on a port that speaks TLS."""
    HANDSHAKE = "handshake"
    """A TLS handshake that failed: no common version or cipher, no valid client certificate, hung
    up."""
    MEMORY = "memory"
    """Requests and answers hold all the memory that they may use."""


class TimedOut(StrEnum):
    """Steps that a client did not finish in time."""

    HANDSHAKE = "handshake"
    """Its TLS handshake."""
    REQUEST = "request"
    """The rest of a request it had begun."""
    ANSWER = "answer"
    """Reading its answers."""
    IDLE = "idle"
    """A request, or a further one; the usual end of a connection."""
    ROOM = "room"
    """The same, and another client needed the place."""


class TooLarge(StrEnum):
    """Parts of a request that have a limit."""

    HEAD = "head"
    BODY = "body"


class ListenerCounters(msgspec.Struct):
    """Counters of a listener; every key of the tables exists from the start."""

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


class Leaving(Protocol):
    """A connection that can be given to another process."""

    goes_to: str
    """The process that decided its last request, for `Places`."""
    in_a_row: int
    """Requests that this one decided one after the other."""

    def leave(self, take: Callable[[socket.socket], bool]) -> None:
        """Give the connection away before its next request, if that has not begun to arrive.
        `take` gets a copy of the socket, and returns False if nobody takes it."""


class Places(Protocol):
    """Says which process of this machine should have a connection."""

    def answered(self, connection: Leaving, queue: QueueDefinition | None) -> None:
        """An answer was written; the connection waits for its next request. It may be told to
        leave."""


class MayGiveWay(Protocol):
    """A connection that may have to end for a new one."""

    @property
    def active_at(self) -> int:
        """Time of the last answer; 0 before the first."""

    @property
    def may_give_way(self) -> bool:
        """True if nothing is under way, and was not just now."""

    def give_way(self) -> None:
        """End without a farewell, for which a client could let us wait."""


class ServerState:
    """State that the connections of one server share."""

    __slots__ = (
        "counters",
        "is_stopping",
        "limits",
        "memory",
        "places",
        "proxies",
        "seconds",
        "unserved",
    )

    def __init__(
        self, limits: ListenerLimits, proxies: TrustedProxies, memory: RequestMemory
    ) -> None:
        self.limits = limits
        self.proxies = proxies
        self.counters = ListenerCounters()
        self.memory = memory
        self.seconds = 1
        """Counted by the server's sweep, so that a pause of this process is not blamed on
        clients."""
        self.is_stopping = False
        self.unserved: OrderedDict[MayGiveWay, None] = OrderedDict()
        """Open connections that had no answer yet, oldest first, and some that had one since."""
        self.places: Places | None = None
        """None in the only process, and where connections stay where they are."""


def raise_descriptor_limit() -> int:
    """Raise the soft limit of file descriptors to the hard one if possible. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # macOS reports infinity and means another number
            return soft
    return hard


def descriptors_for_connections(wanted: int, limit: int) -> int:
    """The number of connections, at most `wanted`, that `limit` file descriptors suffice for."""
    if limit == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, limit - min(_DESCRIPTORS_KEPT_MAX, limit // 4)))
