"""Operations on members, asked for by an operator through any host."""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from cluster.coordination.coordination import (
    Conflict,
    Coordination,
    Done,
    LeaseLost,
    Transaction,
    Unavailable,
)
from cluster.members.member_records import (
    FORMATS,
    HOSTS,
    REMOVED,
    Host,
    Members,
    MembershipRefused,
    read_members,
)

_TRIES = 5
"""Attempts while others change the same record."""


async def set_drained(records: Coordination, name: str, *, is_drained: bool) -> None:
    """Mark a host as one that leads nothing, or take the mark away. Raises MembershipRefused."""

    def changes(members: Members) -> dict[str, bytes | None]:
        host = msgspec.structs.replace(_host(members, name), is_drained=is_drained)
        if is_drained and members.able_to_lead() == [name]:
            raise MembershipRefused(
                f"host {name} is the last one that runs and is not drained: undrain another first"
            )
        return {HOSTS + name: msgspec.json.encode(host)}

    await _change(records, changes)


async def remove(records: Coordination, name: str, hosts: Collection[str]) -> None:
    """Remove a host: its folder may not come back, and each shard's leader drops its copy. Of one
    that is removed already nothing is left to do.

    `hosts` are those of which `removal` knew: two removals at once may be one too many.
    Raises MembershipRefused.
    """

    def changes(members: Members) -> dict[str, bytes | None]:
        if name in members.removed and name not in members.hosts:
            return {}
        host = _host(members, name)
        if name in members.alive and not host.is_drained:
            raise MembershipRefused(f"host {name} is running: drain it first, or stop it")
        if len(members.hosts) == 1:
            raise MembershipRefused(f"host {name} is the last one")
        if set(hosts) != members.hosts.keys():
            raise MembershipRefused("another host came or went a moment ago: try again")
        return {HOSTS + name: None, REMOVED + name: msgspec.json.encode(host.host_id)}

    await _change(records, changes)


async def raise_formats(records: Coordination) -> int:
    """Have leaders write the newest formats that all hosts read, whether or not they run. Returns
    them. Raises MembershipRefused."""

    def changes(members: Members) -> dict[str, bytes | None]:
        newest = min(host.formats for host in members.hosts.values())
        if newest <= members.formats:
            old = [name for name, host in members.hosts.items() if host.formats <= members.formats]
            raise MembershipRefused(
                f"the cluster writes formats {members.formats}, the newest that "
                f"{', '.join(sorted(old))} can read"
            )
        return {FORMATS: msgspec.json.encode(newest)}

    found = await _change(records, changes)
    return int(msgspec.json.decode(found[FORMATS] or b""))


async def _change(
    records: Coordination, changes: Callable[[Members], dict[str, bytes | None]]
) -> dict[str, bytes | None]:
    """Change members as they are now, and return what was written. Raises MembershipRefused."""
    for _ in range(_TRIES):
        found = await records.read_all()
        if isinstance(found, Unavailable):
            raise MembershipRefused(found.reason)
        members = read_members({record.key: record.value for record in found.records})
        revisions = {record.key: record.revision for record in found.records}
        changed = changes(members)
        if not changed:
            return changed
        depends = [key for key in revisions if key.startswith(HOSTS)]
        conditions = {key: revisions.get(key, 0) for key in (*depends, FORMATS)}
        outcome = await records.commit(Transaction(conditions, changed))
        if isinstance(outcome, Done):
            return changed
        assert not isinstance(outcome, LeaseLost), "no lease was named"
        if not isinstance(outcome, Conflict):
            raise MembershipRefused(outcome.reason)
    raise MembershipRefused("hosts are changing all the time: try again")


def _host(members: Members, name: str) -> Host:
    if name not in members.hosts:
        raise MembershipRefused(f"there is no host {name}")
    return members.hosts[name]
