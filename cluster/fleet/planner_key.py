"""PlannerKey: the key of the one process that plans, in coordination.

The revision of its record is a condition of each transaction that a plan makes. A process that was
stopped, and went on when another one had the key, cannot change anything: the record is a new one,
even if it is its own again.
"""

from __future__ import annotations

import msgspec

from cluster.coordination.coordination import (
    Coordination,
    Done,
    LeaseLost,
    Transaction,
    Unavailable,
)
from cluster.members.host_lease import HostLease

KEY = "planner"
YIELDED_LOOKS, LONE_LOOKS = 60, 6
"""Looks for which a process that gave the key up lets others take it first; and, as no other may be
left, looks in a row without a holder after which it takes the key all the same."""


class PlannerHolder(msgspec.Struct, frozen=True):
    """The process that plans."""

    host: str
    process_id: str
    """Random, of one run of the host."""


class PlannerKey:
    """For one process."""

    def __init__(self, coordination: Coordination, lease: HostLease, own: PlannerHolder) -> None:
        self._coordination = coordination
        self._lease = lease
        self._own = own
        self._revision = 0
        """The revision of its own record; 0 if it had none at the last look."""
        self._yielded = 0
        """Looks for which others go first."""
        self._lone = 0
        """Looks in a row that found no holder, while others go first."""
        self.holder: PlannerHolder | None = None
        """The process that had the key at the last look."""

    @property
    def is_held(self) -> bool:
        """True if this process had the key at the last look."""
        return self._revision > 0

    @property
    def conditions(self) -> dict[str, int]:
        """The revisions that each transaction of the holder depends on, by key. Only the holder may
        ask: without its record they would say that nobody has the key."""
        assert self.is_held
        return {KEY: self._revision}

    async def hold(self) -> bool:
        """True if this process has the key, which it takes if it is free and others had their time
        to do so. False if nobody can say."""
        found = await self._coordination.read([KEY])
        if isinstance(found, Unavailable):
            self._revision = 0
            return False
        self._yielded = max(0, self._yielded - 1)
        for record in found.records:
            # A take with an unknown outcome may have written it.
            self.holder = _decoded(record.value)
            self._revision = record.revision if self.holder == self._own else 0
            self._lone = 0
            return self.is_held
        self._lone += 1
        if self._yielded and self._lone < LONE_LOOKS:
            self._revision, self.holder = 0, None
            return False
        return await self._take()

    async def give_up(self) -> None:
        """Remove its own record, so that another process takes the key. If that is not done, the
        next look finds it again."""
        await self._coordination.commit(Transaction(self.conditions, {KEY: None}))
        self._revision, self.holder = 0, None
        self._yielded, self._lone = YIELDED_LOOKS, 0

    async def _take(self) -> bool:
        self._revision, self.holder = 0, None
        lease = await self._lease.current()
        if isinstance(lease, Unavailable):
            return False
        changes = {KEY: msgspec.json.encode(self._own)}
        outcome = await self._coordination.commit(
            Transaction({KEY: 0}, changes, {KEY: lease.lease_id})
        )
        if isinstance(outcome, LeaseLost):
            self._lease.missing(lease)
        if isinstance(outcome, Done):
            self._revision, self.holder = outcome.revision, self._own
        return isinstance(outcome, Done)


def _decoded(value: bytes) -> PlannerHolder | None:
    try:
        return msgspec.json.decode(value, type=PlannerHolder)
    except msgspec.MsgspecError:
        return None
