"""Leadership of shards on a coordination with leases.

    holder/SHARD   the holder, bound to the lease of its process
    term/SHARD     the term record, which stays

Both are JSON, written by one transaction on condition that neither has changed. The lease serves
all keys of the process, so a key is given up by deleting it, and the lease ends with the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import structlog
from typing_extensions import override

from cluster.coordination.coordination import (
    Conflict,
    Coordination,
    Done,
    Lease,
    LeaseLost,
    Record,
    Transaction,
    Unavailable,
    Unknown,
)
from cluster.members.host_lease import HostLease
from cluster.replication.leadership import Holder, Leadership, Renewal, Seen, TermRecord
from cluster.tasks import start_logged

HOLDERS, TERMS = "holder/", "term/"
_PAUSE_S = 0.5
"""Pause before a key that could not be deleted is tried again."""


def holder_key(shard: int) -> str:
    """The key of the record of the shard's holder."""
    return f"{HOLDERS}{shard}"


def term_key(shard: int) -> str:
    """The key of the shard's term record."""
    return f"{TERMS}{shard}"


def decode_holder(value: bytes) -> Holder:
    """Raises msgspec.MsgspecError."""
    return msgspec.json.decode(value, type=Holder)


def decode_term(value: bytes) -> TermRecord:
    """Raises msgspec.MsgspecError."""
    return msgspec.json.decode(value, type=TermRecord)


class ShardKeys:
    """The keys of all shards, for this host."""

    def __init__(self, coordination: Coordination, lease: HostLease) -> None:
        self.coordination = coordination
        self.lease = lease
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = structlog.get_logger("leadership")

    def of_shard(self, shard: int) -> ShardLeadership:
        """The leadership of one shard."""
        return ShardLeadership(self, shard)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a call in the background."""
        start_logged(self._tasks, work, self._log)

    async def close(self) -> None:
        """End all calls, without their outcomes. The keys go with the lease."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


class ShardLeadership(Leadership):
    """The key of one shard, in coordination."""

    def __init__(self, keys: ShardKeys, shard: int) -> None:
        self._keys = keys
        self._coordination = keys.coordination
        self._holder_key, self._term_key = holder_key(shard), term_key(shard)
        self._releasing: set[Holder] = set()
        self._lease: Lease | None = None
        """That of the key, if this process took it."""

    @property
    def ttl_s(self) -> float:
        """Seconds for which the lease lives without a renewal."""
        return self._keys.lease.ttl_s

    @property
    @override
    def renewal_s(self) -> float:
        """While the lease is known to last, the key is looked at in case somebody else deleted
        it."""
        lasts = self._lease is not None and self._keys.lease.lasts(self._lease)
        return self.ttl_s if lasts else self.ttl_s / 3

    # -- read --------------------------------------------------------------------------------------

    @override
    def read(self, done: Callable[[Seen | Unavailable], None]) -> None:
        self._keys.start(self._read(done))

    async def _read(self, done: Callable[[Seen | Unavailable], None]) -> None:
        found = await self._coordination.read([self._holder_key, self._term_key])
        if isinstance(found, Unavailable):
            done(found)
            return
        records = {record.key: record for record in found.records}
        try:
            seen = _seen(records.get(self._holder_key), records.get(self._term_key))
        except msgspec.MsgspecError as error:
            done(Unavailable(f"a record cannot be read: {error}"))
        else:
            done(seen)

    # -- take --------------------------------------------------------------------------------------

    @override
    def take(
        self,
        seen: Seen,
        holder: Holder,
        record: TermRecord,
        done: Callable[[Done | Conflict | Unknown | Unavailable], None],
    ) -> None:
        self._keys.start(self._take(seen, holder, record, done))

    async def _take(
        self,
        seen: Seen,
        holder: Holder,
        record: TermRecord,
        done: Callable[[Done | Conflict | Unknown | Unavailable], None],
    ) -> None:
        lease = await self._keys.lease.current()
        if isinstance(lease, Unavailable):
            done(lease)
            return
        # Where there is a holder, the same transaction wrote both.
        conditions = {
            self._holder_key: seen.revision if seen.holder is not None else 0,
            self._term_key: seen.revision if seen.record is not None else 0,
        }
        changes = {
            self._holder_key: msgspec.json.encode(holder),
            self._term_key: msgspec.json.encode(record),
        }
        leases = {self._holder_key: lease.lease_id}
        outcome = await self._coordination.commit(Transaction(conditions, changes, leases))
        if isinstance(outcome, LeaseLost):
            self._keys.lease.missing(lease)
            outcome = Unavailable("the lease is gone")
        elif isinstance(outcome, Done):
            self._lease = lease
        elif isinstance(outcome, Unknown):
            self.release(holder)  # its term is spent, and the lease would keep it
        done(outcome)

    # -- keep and give up --------------------------------------------------------------------------

    @override
    def renew(self, holder: Holder, done: Callable[[Renewal], None]) -> None:
        """The lease is renewed in the background: the key tells if it is gone."""
        self._keys.start(self._renew(holder, done))

    async def _renew(self, holder: Holder, done: Callable[[Renewal], None]) -> None:
        found = await self._revision_held_by(holder)
        if isinstance(found, Unavailable):
            done(Renewal.UNAVAILABLE)
        else:
            done(Renewal.KEPT if found else Renewal.LOST)

    @override
    def release(self, holder: Holder) -> None:
        """Tried until it is known to be gone, since the lease lives on."""
        if holder not in self._releasing:
            self._releasing.add(holder)
            self._keys.start(self._release(holder))

    async def _release(self, holder: Holder) -> None:
        try:
            while (found := await self._revision_held_by(holder)) != 0:
                if not isinstance(found, Unavailable):
                    transaction = Transaction({self._holder_key: found}, {self._holder_key: None})
                    outcome = await self._coordination.commit(transaction)
                    if isinstance(outcome, Done | Conflict):
                        return
                await asyncio.sleep(_PAUSE_S)
        finally:
            self._releasing.discard(holder)

    async def _revision_held_by(self, holder: Holder) -> int | Unavailable:
        """The revision of the key, 0 if it does not bear this holder."""
        found = await self._coordination.read([self._holder_key])
        if isinstance(found, Unavailable):
            return found
        return next((each.revision for each in found.records if _bears(each.value, holder)), 0)


def _bears(value: bytes, holder: Holder) -> bool:
    try:
        return decode_holder(value) == holder
    except msgspec.MsgspecError:
        return False


def _seen(holder: Record | None, record: Record | None) -> Seen:
    """Raises msgspec.MsgspecError."""
    return Seen(
        max((each.revision for each in (holder, record) if each is not None), default=0),
        decode_holder(holder.value) if holder is not None else None,
        decode_term(record.value) if record is not None else None,
    )
