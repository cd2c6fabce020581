"""Membership: this host as a member of its cluster, and its view of the others.

    join → register under its name → all founders there? found → a member: watch

A host that is a member keeps the cluster's id in its data folder. Records: `member_records.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import structlog

from cluster.clock import Entropy
from cluster.coordination.coordination import (
    Change,
    Coordination,
    Done,
    LeaseLost,
    Snapshot,
    Unavailable,
)
from cluster.members import member_records
from cluster.members.copied_records import put_back
from cluster.members.host_lease import HostLease
from cluster.peers.peer_settings import Address, is_host_id
from storage.copies.scrub import InThread

_PAUSE_S = 0.3
"""Pause between two looks at the records while the host is not a member yet."""
_TAKEN_S = 5.0
"""Time for which a host waits for the end of another one's lease, besides the lease's own."""
_TELL_S = 60.0
"""Time after which a host that still waits logs the reason again."""
_LOG_ID_BYTES = 16
COUNT_S = 600.0
"""A host that runs counts on so often: a copy of its folder is known to be an older one then."""


OnPeers = Callable[[Mapping[str, Address]], None]


class Me(NamedTuple):
    """This host, as its settings have it."""

    name: str
    peer_address: str
    version: str
    founders: tuple[str, ...]
    shards: range
    """Numbers of the shards of a new cluster."""
    formats: int
    """The newest that this version reads."""
    cluster: str
    """The name under which etcd has it."""
    zone: str


class _Waits(NamedTuple):
    """The reason for which this host is not a member yet; empty if it only has to look again."""

    reason: str = ""
    action: str = ""
    """The operator's next step."""
    is_taken: bool = False
    """Another host has its name; not for long if that was stopped."""


class Membership:
    """`join`, then `close`."""

    def __init__(
        self,
        me: Me,
        identity: member_records.Identity,
        *,
        root: Coordination,
        records: Coordination,
        lease: HostLease,
        entropy: Entropy,
        save: Callable[[member_records.Identity], None],
        replica_ids: Callable[[range], Sequence[str]],
        on_removed: Callable[[], None],
        restored_records: Callable[[], Mapping[str, bytes]],
        in_thread: InThread = asyncio.to_thread,
    ) -> None:
        """`root` has the records of the cluster, `records` those below `members/`. `save` keeps the
        identity in the data folder. `replica_ids` gives the ids in the folders of these shards;
        it is called only before there are stores. `on_removed` is called when this host is not a
        member any more, and has to stop. `restored_records` gives the records of the backup that
        the folder was restored from, or raises MembershipRefused. `in_thread` does what blocks,
        off the loop. Raises ValueError for a peer
        address that is none."""
        assert is_host_id(me.name)
        member_records.parse_address(me.peer_address)
        self.name = me.name
        self._me = me
        self._identity = identity
        self._root = root
        self._records = records
        self._lease = lease
        self._entropy = entropy
        self._save = save
        self._read_ids = replica_ids
        self._ids: tuple[str, ...] = ()
        """The ids of the replicas as of this start: only the founding needs them."""
        self._on_removed = on_removed
        self._restored_records = restored_records
        self._in_thread = in_thread
        self._values: dict[str, bytes] = {}
        self._revisions: dict[str, int] = {}
        self._shown = member_records.Members(None, {}, {}, {})
        self._cluster: member_records.Cluster | None = None
        self._peers: dict[str, Address] = {}
        self._listeners: list[OnPeers] = []
        self._announcing: asyncio.Task[None] | None = None
        self._counting: asyncio.Task[None] | None = None
        self._is_registered = self._is_leaving = self._is_counted = False
        self._is_whole = True
        """False while coordination lacks the record of this cluster."""
        self._log = structlog.get_logger("members")

    @property
    def shown(self) -> member_records.Members:
        """All members, as this host last saw them in order."""
        return self._shown

    @property
    def peers(self) -> Mapping[str, Address]:
        """Addresses of the other hosts, running or not."""
        return self._peers

    def subscribe(self, on_peers: OnPeers) -> None:
        """Call back with the peers each time that they change."""
        self._listeners.append(on_peers)

    async def close(self) -> None:
        """Stop announcing this host. Its record of being alive goes with the lease."""
        tasks = [task for task in (self._announcing, self._counting) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- join --------------------------------------------------------------------------------------

    async def join(self) -> member_records.Cluster:
        """Become a member; waits for coordination and for the founding hosts. Raises
        MembershipRefused."""
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + self._lease.ttl_s + _TAKEN_S
        told, tell_s = "", 0.0
        while not isinstance(outcome := await self._try(), member_records.Cluster):
            reason, action = outcome.reason, outcome.action
            if outcome.is_taken and loop.time() >= give_up_s:
                raise member_records.MembershipRefused(f"{reason}: {action}")
            if reason and (reason != told or loop.time() >= tell_s):
                told, tell_s = reason, loop.time() + _TELL_S
                self._log.warning("waits_to_join", reason=reason, action=action)
            await asyncio.sleep(_PAUSE_S)
        return outcome

    async def _try(self) -> member_records.Cluster | _Waits:
        """The cluster once this host is a member, else the reason to wait. Raises
        MembershipRefused."""
        found = await self._records.read_all()
        if isinstance(found, Unavailable):
            return _Waits(found.reason, "start etcd's members, or correct the settings of etcd")
        try:
            self._load(found)
            self._shown.peers_of(self.name)
        except (msgspec.MsgspecError, ValueError) as error:
            return _Waits(f"a record cannot be read: {error}", "restore etcd's data")
        members, me = self._shown, self._host()
        member_records.check_cluster(members, self._identity)
        if members.cluster is None and not me.founders:
            raise member_records.MembershipRefused(
                f"no cluster named `{self._me.cluster}` in this etcd: check --cluster, or name "
                "--cluster-hosts to found it"
            )
        member_records.check_host(members, me)
        if member_records.is_taken(members, me.name, me.host_id):
            return _taken(members, me.name)
        if not self._is_registered or me.name not in members.alive:
            await self._count_start()
            self._is_registered = await self._register()
            return _Waits()
        if members.cluster is not None:
            await self._joined(members.cluster, found)
            return members.cluster
        if missing := member_records.missing_founders(members, me.founders):
            names = ", ".join(missing)
            return _Waits(f"founding hosts that have not registered: {names}", "start them")
        await self._found()
        return _Waits()

    def _host(self) -> member_records.Host:
        me, cluster = self._me, self._shown.cluster
        shards = cluster.numbers if cluster is not None else me.shards
        if len(self._ids) != len(shards):
            self._ids = tuple(self._read_ids(shards))
        return member_records.Host(
            name=me.name,
            host_id=self._identity.host_id,
            peer_address=me.peer_address,
            version=me.version,
            founders=me.founders,
            replica_ids=self._ids,
            restored=self._identity.restored,
            formats=me.formats,
            zone=me.zone,
            starts=self._identity.starts,
        )

    async def _count_start(self) -> None:
        """Count this start. A disk that takes no writes is no reason not to start."""
        if not self._is_counted:
            self._is_counted = True
            await self._count()

    async def _count(self) -> bool:
        """Count on in the folder, and only then, by the caller, in etcd; False if the disk takes
        no writes."""
        counted = msgspec.structs.replace(self._identity, starts=self._identity.starts + 1)
        try:
            await self._in_thread(partial(self._save, counted))
        except OSError as error:
            self._log.warning("folder_not_counted", error=str(error))
            return False
        self._identity = counted
        return True

    async def _count_on(self) -> None:
        while True:
            await asyncio.sleep(COUNT_S)
            if await self._count():
                await self._announced_once()

    async def _register(self) -> bool:
        """Write the records of this host; False if it has to be tried again."""
        lease = await self._lease.current()
        if isinstance(lease, Unavailable):
            return False
        transaction = member_records.registration(
            self._shown, self._host(), self._revisions, is_leaving=self._is_leaving
        )
        leases = {member_records.ALIVE + self.name: lease.lease_id}
        outcome = await self._records.commit(transaction._replace(leases=leases))
        if isinstance(outcome, LeaseLost):
            self._lease.missing(lease)
        return isinstance(outcome, Done)

    async def _found(self) -> None:
        """Found the cluster, unless another host does. Raises MembershipRefused."""
        restored = self._identity.restored
        if restored and not await self._put_back():
            return
        log_ids = tuple(self._entropy.secret(_LOG_ID_BYTES) for _ in self._me.shards)
        cluster_id = self._entropy.secret(_LOG_ID_BYTES).hex()
        cluster = member_records.Cluster(cluster_id, log_ids, restored, self._me.shards.start)
        transaction = member_records.founding(self._shown, self._host(), cluster, self._revisions)
        outcome = await self._root.commit(transaction)
        if isinstance(outcome, Done):
            self._log.info("cluster_founded", cluster_id=cluster.cluster_id)

    async def _put_back(self) -> bool:
        """Write the queues, users and keys of the restored backup; False if it has to be tried
        again. Raises MembershipRefused."""
        there = await self._root.read_all()
        if isinstance(there, Unavailable):
            return False
        for transaction in put_back(self._restored_records(), there):
            if not isinstance(await self._root.commit(transaction), Done):
                return False
        return True

    async def _joined(self, cluster: member_records.Cluster, found: Snapshot) -> None:
        if self._identity.cluster_id != cluster.cluster_id:
            self._identity = msgspec.structs.replace(self._identity, cluster_id=cluster.cluster_id)
            self._save(self._identity)
        self._cluster = cluster
        self._lease.on_gone.append(self._announce)
        self._show_peers(self._shown.peers_of(self.name))
        await self._records.watch(found, self._on_change)
        self._counting = asyncio.get_running_loop().create_task(self._count_on())

    async def tell_leaving(self) -> None:
        """Tell the others that this host is about to stop, if etcd answers."""
        self._is_leaving = True
        await self._announced_once()

    # -- stay --------------------------------------------------------------------------------------

    def _announce(self) -> None:
        """The lease is gone, and the record of being alive with it: write that anew."""
        if self._announcing is None or self._announcing.done():
            self._announcing = asyncio.get_running_loop().create_task(self._announced())

    async def _announced(self) -> None:
        while not await self._announced_once():  # noqa: ASYNC110
            await asyncio.sleep(_PAUSE_S)

    async def _announced_once(self) -> bool:
        try:
            return self._is_member() and await self._register()
        except Exception:
            self._log.exception("cannot_announce")
            return False

    def _is_member(self) -> bool:
        """False for a host that was removed, and while etcd has no record of the cluster."""
        own, host_id = self._shown.hosts.get(self.name), self._identity.host_id
        is_own = own is not None and own.host_id == host_id
        return (
            is_own
            and self._is_whole
            and not member_records.is_taken(self._shown, self.name, host_id)
        )

    # -- the view ----------------------------------------------------------------------------------

    def _load(self, found: Snapshot) -> None:
        self._values = {record.key: record.value for record in found.records}
        self._revisions = {record.key: record.revision for record in found.records}
        self._shown = member_records.read_members(self._values)

    def _on_change(self, change: Change) -> None:
        for key, value in change.records.items():
            if value is None:
                self._values.pop(key, None)
                self._revisions.pop(key, None)
            else:
                self._values[key] = value
                self._revisions[key] = change.revision_of(key)
        self._show()

    def _show(self) -> None:
        """Show the records, unless etcd lost those of the cluster: then its hosts go on as they
        are."""
        try:
            members = member_records.read_members(self._values)
            peers = members.peers_of(self.name)
        except (msgspec.MsgspecError, ValueError) as error:
            self._log.error("record_unreadable", error=str(error))
            return
        self._is_whole = members.cluster == self._cluster
        if not self._is_whole:
            self._log.error("cluster_record_missing")
            return
        was_member = self._is_member()
        self._shown = members
        self._show_peers(peers)
        if members.formats > self._me.formats:
            self._log.error("formats_too_new", formats=members.formats, known=self._me.formats)
            self._on_removed()
        if was_member and not self._is_member():
            self._log.error("no_member_any_more")
            self._on_removed()

    def _show_peers(self, peers: dict[str, Address]) -> None:
        if peers != self._peers:
            self._peers = peers
            for listener in self._listeners:
                listener(peers)


def _taken(members: member_records.Members, name: str) -> _Waits:
    other = members.hosts.get(name)
    where = "" if other is None else f" at {other.peer_address}"
    reason = f"another host named {name} is running{where}"
    return _Waits(reason, "stop it, or give this one a host_name of its own", is_taken=True)
