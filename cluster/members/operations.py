"""Operations on members, asked for by an operator through any host."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from cluster.coordination.coordination import (
    Conflict,
    Coordination,
    Done,
    LeaseLost,
    Transaction,
    Unavailable,
)
from cluster.members.records import HOSTS, REMOVED, Members, MembershipRefused, read_members

_TRIES = 5
"""Attempts while others change the same record."""


async def set_drained(records: Coordination, name: str, *, is_drained: bool) -> None:
    """Mark a host as one that leads nothing, or take the mark away. Raises MembershipRefused."""

    def changes(members: Members) -> dict[str, bytes | None]:
        host = msgspec.structs.replace(members.hosts[name], is_drained=is_drained)
        return {HOSTS + name: msgspec.json.encode(host)}

    await _change(records, name, changes)


async def remove(records: Coordination, name: str) -> None:
    """Remove a host: its replicas no longer count, and its folder may not come back. Raises
    MembershipRefused."""

    def changes(members: Members) -> dict[str, bytes | None]:
        host = members.hosts[name]
        if name in members.alive and not host.is_drained:
            raise MembershipRefused(f"host {name} is running: drain it first, or stop it")
        if len(members.hosts) == 1:
            raise MembershipRefused(f"host {name} is the last one")
        return {HOSTS + name: None, REMOVED + name: msgspec.json.encode(host.host_id)}

    await _change(records, name, changes)


async def _change(
    records: Coordination, name: str, changes: Callable[[Members], dict[str, bytes | None]]
) -> None:
    for _ in range(_TRIES):
        found = await records.read_all()
        if isinstance(found, Unavailable):
            raise MembershipRefused(found.reason)
        members = read_members({record.key: record.value for record in found.records})
        if name not in members.hosts:
            raise MembershipRefused(f"there is no host {name}")
        revisions = {record.key: record.revision for record in found.records}
        conditions = {HOSTS + name: revisions[HOSTS + name]}
        outcome = await records.commit(Transaction(conditions, changes(members)))
        if isinstance(outcome, Done):
            return
        assert not isinstance(outcome, LeaseLost), "no lease was named"
        if not isinstance(outcome, Conflict):
            raise MembershipRefused(outcome.reason)
    raise MembershipRefused(f"host {name} is changing all the time: try again")
