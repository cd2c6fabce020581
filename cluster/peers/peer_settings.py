"""Names and addresses of the processes of hosts; settings of the connections between them, and of
the requests that cross these.

The first worker of a host bears the host's name, worker 2 of host `a` is `a.worker-2`. The
certificate of a host is that of all its workers.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

import msgspec

_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""A host's id is a DNS name, so that a certificate can bear it."""
_WORKER = re.compile(r"(.+)\.worker-([1-9][0-9]?)")


class Channel(StrEnum):
    """One connection for each, so that a full or slow one does not hold up the others."""

    REPLICATION = "replication"
    REQUESTS = "requests"
    CATALOG = "catalog"
    STATUS = "status"
    CHECKPOINTS = "checkpoints"
    PAGES = "pages"
    COUNTS = "counts"
    """Rates and usage, which all processes that take requests of clients count together."""


class Address(NamedTuple):
    """The address on which a host listens for its peers."""

    host: str
    port: int


def is_host_id(name: str) -> bool:
    """True if a certificate can bear the name."""
    return _HOST.fullmatch(name) is not None


def process_name(host: str, worker: int) -> str:
    """The name of a worker of a host; workers are numbered from 0 on."""
    return f"{host}.worker-{worker + 1}" if worker else host


def host_of(process: str) -> str:
    """The host of a process, whose name its certificate bears."""
    found = _WORKER.fullmatch(process)
    return process if found is None else found[1]


def worker_of(process: str) -> int:
    """The number of the worker that a process is."""
    found = _WORKER.fullmatch(process)
    return 0 if found is None else int(found[2]) - 1


class PeerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds and times of connections."""

    heartbeat_s: float = 0.5
    """A connection on which nothing was sent for so long sends a heartbeat."""
    silent_beats: int = 4
    """A connection ends after this many heartbeats without a byte from the other side."""
    handshake_s: float = 5.0
    """Time for TLS and the handshake, each."""
    drain_s: float = 10.0
    """Time for a closing connection to get or give its last answers."""
    reconnect_s: float = 0.05
    """Pause before the first new attempt; it doubles up to `reconnect_max_s`."""
    reconnect_max_s: float = 2.0
    frame_max: int = 16 << 20
    """Bytes of one body. An Entry has at most 8 MiB, a receive at most ten messages of 1 MiB."""
    outbox_max: int = 32 << 20
    """Bytes that wait to be written to one connection."""
    requests_max: int = 200_000
    """Requests without an answer on one connection; above the gateway's bound of long polls."""
    connections_max: int = 256
    """Incoming connections of all hosts, also those whose handshake is not over."""
    breaker_failures: int = 5
    """Requests in a row without an answer in time, from which on a peer is left alone."""
    breaker_s: float = 1.0
    """Time for which it is left alone first; it doubles up to `breaker_max_s`."""
    breaker_max_s: float = 10.0


class ForwardingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Times of requests that another host decides."""

    hold_s: float = 10.0
    """Time for which a request is held and tried again; a long poll, for its wait and `late_s` if
    that is longer. Far less than the ten minutes for which a leader remembers requests."""
    late_s: float = 5.0
    """Time after a long poll's wait in which a leader that failed is replaced. Some clients give up
    ten seconds after the longest wait."""
    stopping_hold_s: float = 2.0
    """The same on a host that stops: another one leads soon after it handed over."""
    answer_s: float = 10.0
    """Time for the leader's answer, besides the wait of a long poll."""
    retry_s: float = 0.02
    """Pause before a request is tried again; it doubles up to `retry_max_s`."""
    retry_max_s: float = 0.5
    held_max: int = 10_000
    """Requests that are held at a time, besides long polls; further ones are refused. As many
    receives are undone at a time."""
    undo_s: float = 540.0
    """Time from a receive on in which it is undone; a leader remembers it a little longer."""


class CheckpointSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds and times of checkpoints that hosts give each other."""

    chunk_bytes: int = 1 << 20
    """Bytes of one answer."""
    chunks_max: int = 4
    """Chunks on their way to one host: asked for, and not written there yet."""
    silence_s: float = 60.0
    """A checkpoint that its host does not ask for is removed after this time; an answer that does
    not come is asked for again for as long."""
    shared_s: float = 30.0
    """A checkpoint of this age or less is given to a second host, instead of making another."""
    make_s: float = 600.0
    """Time for making a checkpoint and reading all its files for their checksums."""
    check_s: float = 3600.0
    """Time for the host that made it to read all its rows, after they were damaged elsewhere."""
    answer_s: float = 10.0
    """Time for any other answer."""
    keep_s: float = 10.0
    """Interval at which the leader is reminded to keep its log."""
    retry_s: float = 0.5
    """Pause before a question is asked again, and before all hosts are tried again; the latter
    doubles up to `retry_max_s`."""
    retry_max_s: float = 30.0
    reserve_bytes: int = 1 << 30
    """Bytes of the disk that a checkpoint leaves free."""
