"""Loads as hosts report them each ten seconds, and the utilisation of a cluster. Pure.

A load is the work that was asked for, with what was refused or held: a shard that has become slow
serves less, and must not look idle for it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import msgspec

REPORT_MS = 10_000
"""Hosts report at this interval, or sooner where a trial asks for it, each time on the window since
the last report."""
LATE_MS = 3 * REPORT_MS
"""A host whose last report is older is silent."""

LOOP_FLOOR = 0.05
SYNC_FLOOR = 0.05
DISK_FLOOR_BYTES = 1 << 30
CONNECTIONS_FLOOR = 100
"""Below its floor a figure counts nothing: three connections are not thrice the load of one."""

LATENCY_MAX = 2.0
SETTLED_WINDOWS = 6
"""A shard is left alone for so long after its leader changed: a minute."""


class PartLoad(NamedTuple):
    """A part as its leader saw it in one window."""

    queue: str
    number: int
    asked: float
    """Share of a loop that its requests took, or would have if none were refused or held."""
    top_group: float = 0.0
    """Share of `asked` that its busiest message group has; 0 for a standard queue."""
    messages: int = 0
    stored_bytes: int = 0
    """Not filled; hosts of an earlier build send it."""


class ShardLoad(NamedTuple):
    """A shard as its leader saw it in one window."""

    shard: int
    asked: float
    """Share of a loop, as in PartLoad."""
    led_since_ms: int = 0
    latency: float = 1.0
    """Its latency divided by its usual one."""
    is_checkpointing: bool = False
    parts: tuple[PartLoad, ...] = ()
    """Its hottest parts, and all parts of split queues."""


class HostLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A host's report."""

    host: str
    cluster: str
    at_ms: int
    loop: float
    """Busy share of its loop, for shards that it leads and that it follows."""
    sync: float = 0.0
    """Share of the window in which its disk was syncing a log."""
    disk_used: int = 0
    disk_size: int = 0
    connections: int = 0
    connections_max: int = 0
    shards: tuple[ShardLoad, ...] = ()
    """Those that it leads."""


class Utilisation(NamedTuple):
    """Shares of what a cluster can carry, 0 below their floors."""

    loop: float
    """Mean of its hosts: any of them can lead any shard."""
    sync: float
    disk: float
    connections: float
    """The greatest of its hosts: each keeps all shards."""

    @property
    def load(self) -> float:
        """The greatest of them."""
        return max(self)


def utilisation(hosts: Collection[HostLoad]) -> Utilisation:
    """The use of a cluster whose hosts sent these reports, at least one."""
    loop = sum(host.loop for host in hosts) / len(hosts)
    sync = max(host.sync for host in hosts)
    return Utilisation(
        loop if loop >= LOOP_FLOOR else 0.0,
        sync if sync >= SYNC_FLOOR else 0.0,
        max(_share(host.disk_used, host.disk_size, DISK_FLOOR_BYTES) for host in hosts),
        max(_share(host.connections, host.connections_max, CONNECTIONS_FLOOR) for host in hosts),
    )


def _share(used: int, size: int, floor: int) -> float:
    return used / size if used >= floor and size else 0.0


def disturbance(shard: ShardLoad, now_ms: int, window_ms: int) -> str | None:
    """The fact that forbids a change of this shard's parts now, None if there is none."""
    settled_ms = SETTLED_WINDOWS * window_ms
    if shard.latency >= LATENCY_MAX:
        return f"its latency is {shard.latency:.1f} times its usual"
    if now_ms - shard.led_since_ms < settled_ms:
        return f"its leader changed within {settled_ms // 1000} s"
    if shard.is_checkpointing:
        return "it is being copied"
    return None
