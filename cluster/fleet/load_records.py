"""Loads of hosts as records: `load/HOST`, bound to the host's lease.

They lie below a prefix that only hosts read, each time as a whole: three hundred hosts that write
every ten seconds would else wake every gateway thirty times a second.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from cluster.coordination.coordination import (
    Coordination,
    LeaseLost,
    Record,
    Transaction,
    Unavailable,
)
from cluster.fleet.loads import HostLoad, PartLoad
from cluster.members.host_lease import HostLease

LOADS = "load/"
RECORD_MAX = 64 * 1024
"""Bytes of a host's record. Parts that ask for least are left out of a larger one."""
_HOTTEST = 8


def encode_load(load: HostLoad) -> bytes:
    """The record of a report; at most RECORD_MAX bytes if its parts can be left out."""
    value = msgspec.json.encode(load)
    keep = max((len(shard.parts) for shard in load.shards), default=0)
    while len(value) > RECORD_MAX and keep:
        keep //= 2
        shards = tuple(each._replace(parts=_busiest(each.parts, keep)) for each in load.shards)
        value = msgspec.json.encode(msgspec.structs.replace(load, shards=shards))
    return value


def decode_loads(records: Iterable[Record]) -> tuple[list[HostLoad], list[str]]:
    """The reports, and the keys of records that cannot be read: those hosts are silent."""
    loads: list[HostLoad] = []
    unreadable: list[str] = []
    for record in records:
        try:
            loads.append(msgspec.json.decode(record.value, type=HostLoad))
        except msgspec.MsgspecError:
            unreadable.append(record.key)
    return loads, unreadable


def reported_parts(parts: Iterable[PartLoad], split: frozenset[str]) -> tuple[PartLoad, ...]:
    """The parts of a shard that its report names: the busiest, and all those of split queues."""
    all_parts = tuple(parts)
    hottest = set(_busiest(all_parts, _HOTTEST))
    return tuple(part for part in all_parts if part in hottest or part.queue in split)


def _busiest(parts: Iterable[PartLoad], count: int) -> tuple[PartLoad, ...]:
    by_load = sorted(parts, key=lambda part: (-part.asked, part.queue, part.number))
    return tuple(by_load[:count])


class LoadBoard:
    """Writes this host's report, and reads those of all hosts."""

    def __init__(self, coordination: Coordination, lease: HostLease) -> None:
        """`coordination` has the records below the prefix of loads."""
        self._coordination = coordination
        self._lease = lease

    async def publish(self, load: HostLoad) -> bool:
        """Replace this host's report. False if it could not be done now: the next one follows."""
        lease = await self._lease.current()
        if isinstance(lease, Unavailable):
            return False
        key = LOADS + load.host
        transaction = Transaction({}, {key: encode_load(load)}, {key: lease.lease_id})
        outcome = await self._coordination.commit(transaction)
        if isinstance(outcome, LeaseLost):
            self._lease.missing(lease)
        return not isinstance(outcome, LeaseLost | Unavailable)

    async def read(self) -> list[HostLoad] | Unavailable:
        """The reports of all hosts that run."""
        found = await self._coordination.read_all()
        if isinstance(found, Unavailable):
            return found
        loads, _ = decode_loads(each for each in found.records if each.key.startswith(LOADS))
        return loads
