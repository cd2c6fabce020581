"""Coordination on etcd, for the hosts of a cluster.

A record's key is the prefix and its name. Below the prefix are also keys of the writers, which are
no records: `.writers/NAME/NUMBER` (slots, see `etcd_commit.py`) and `.writers/NAME/watch`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from copy import copy
from itertools import islice
from typing import Any, TypeVar

import structlog
from typing_extensions import override

from cluster.clock import Clock, Entropy
from cluster.coordination import etcd_messages
from cluster.coordination.coordination import (
    RECORDS_MAX,
    Conflict,
    Done,
    LeasingCoordination,
    OnChange,
    Outcome,
    Record,
    Snapshot,
    Transaction,
    Unavailable,
)
from cluster.coordination.etcd_client import (
    ALREADY_EXISTS,
    OUT_OF_RANGE,
    Access,
    Deadline,
    EtcdClient,
    EtcdStatus,
    Refused,
)
from cluster.coordination.etcd_commit import EtcdCommit, Slot
from cluster.coordination.etcd_lease import EtcdLease
from cluster.coordination.etcd_watch import EtcdWatch
from cluster.coordination.etcd_wire import NoAnswer, Wire
from cluster.tasks import start_logged

T = TypeVar("T")

PAGE = 500
"""Records of one answer: some megabytes even if all carry the longest policies."""
_PAGES_AT_ONCE = 10
_ANSWER_BYTES = 1 << 20
"""As many pages are one answer, up to this size: etcd counts all records for each answer, and a
longer one may come too late from a busy member."""
WRITERS = ".writers/"
_WRITERS = WRITERS.encode()
_LEASE_ID_BITS = 63
_SPREAD = 0.3
"""Watches are tested after so much less than the time of silence, at most."""


class EtcdCoordination(LeasingCoordination):
    """Keeps the records in etcd."""

    def __init__(
        self,
        access: Access,
        wire: Wire,
        *,
        prefix: str,
        name: str,
        clock: Clock,
        entropy: Entropy,
        deadline_s: float = 6.0,
        silence_s: float = 3.0,
        page: int = PAGE,
        logs_outages: bool = True,
    ) -> None:
        """`name` is this host's; no two processes at a time may bear the same one below a prefix.

        `deadline_s` is for all tries at a transaction or a page of a read, `silence_s` the time
        after which a watch is tested at the latest. The wire is closed with it.
        """
        self._client = EtcdClient(access, wire, logs_outages=logs_outages)
        self._name = name
        self._set_prefix(prefix)
        self._clock = clock
        self._entropy = entropy
        self._deadline_s = deadline_s
        self._silence_s = silence_s
        # Each process waits for another time: all hear of the write of the first one, in time.
        self._patience_s = silence_s * (1 - _SPREAD * (entropy.bits128() % 1000) / 1000)
        self._page = page
        self._process = f"{entropy.bits128():032x}"
        self._touches = 0
        self._owner: EtcdCoordination | None = None
        self._parts: list[EtcdCoordination] = []
        self._touching: tuple[frozenset[bytes], asyncio.Task[int | NoAnswer | Refused]] | None = (
            None
        )
        """The marks that are being written."""
        self._log = structlog.get_logger("etcd")

    def _set_prefix(self, prefix: str) -> None:
        self._prefix = prefix.encode()
        self._writer = f"{prefix}{WRITERS}{self._name}/".encode()
        self._mark = self._writer + b"watch"
        self._free_slots: list[Slot] = []
        self._slots = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._watches: list[EtcdWatch] = []

    def below(self, folder: str) -> EtcdCoordination:
        """The records whose keys begin with this, over the same connections. It may be closed by
        itself, and is closed with this one.

        This one should not watch all records, and shows the keys of those writers among them.
        """
        part = copy(self)
        part._set_prefix(self._prefix.decode() + folder)
        part._owner, part._parts, part._touching = self, [], None
        self._parts.append(part)
        return part

    @override
    async def close(self) -> None:
        """Leases end by themselves."""
        for part in self._parts:
            await part.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._watches.clear()
        if self._owner is None:
            await self._client.close()

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return start_logged(self._tasks, work, self._log)

    # -- read --------------------------------------------------------------------------------------

    @override
    async def read_all(self) -> Snapshot | Unavailable:
        deadline = Deadline(self._deadline_s)
        while True:
            try:
                return await self._read_pages()
            except NoAnswer as error:
                return Unavailable(str(error))
            except Refused as error:
                if error.code != OUT_OF_RANGE or not deadline.left_s():
                    return Unavailable(str(error))  # else its revision was compacted meanwhile

    async def _read_pages(self) -> Snapshot:
        """All records, as of the revision of the first page. Raises NoAnswer, Refused.

        The time is for each page: those of 100,000 queues take seconds, and more on a machine that
        is busy.
        """
        records: list[Record] = []
        begin, end, revision = self._prefix, etcd_messages.prefix_end(self._prefix), 0
        limit, most = self._page, self._page * _PAGES_AT_ONCE
        while True:
            message = etcd_messages.Range(begin, end, limit=limit, revision=revision)
            try:
                answer = await self._client.ask(
                    etcd_messages.RANGE,
                    message,
                    etcd_messages.RangeAnswer,
                    Deadline(self._deadline_s),
                )
            except NoAnswer:
                if limit == self._page:
                    raise
                limit = most = self._page  # the records that come now may be much longer
                continue
            revision = revision or answer.header.revision
            records += self._records(answer.kvs)
            if not answer.more:
                return Snapshot(revision, records)
            begin = answer.kvs[-1].key + b"\0"
            limit = max(self._page, min(_fitting(answer.kvs), most))

    @override
    async def read(self, keys: Collection[str]) -> Snapshot | Unavailable:
        """One transaction, so all are of one revision."""
        assert len(keys) <= RECORDS_MAX
        steps = [
            etcd_messages.Step(request_range=etcd_messages.Range(self._prefix + key.encode()))
            for key in keys
        ]
        try:
            deadline = Deadline(self._deadline_s)
            answer = await self._client.ask(
                etcd_messages.TXN,
                etcd_messages.Txn([], steps, []),
                etcd_messages.TxnAnswer,
                deadline,
            )
        except (NoAnswer, Refused) as error:
            return Unavailable(str(error))
        found = [each.response_range for each in answer.responses if each.response_range]
        records = [record for each in found for record in self._records(each.kvs)]
        return Snapshot(answer.header.revision, sorted(records))

    def _records(self, found: list[etcd_messages.KeyValue]) -> list[Record]:
        named = [(self._key_of(kv.key), kv) for kv in found]
        return [Record(key, kv.value, kv.mod_revision) for key, kv in named if key is not None]

    def _key_of(self, key: bytes) -> str | None:
        name = key.removeprefix(self._prefix)
        return None if name.startswith(_WRITERS) else name.decode()

    # -- commit ------------------------------------------------------------------------------------

    @override
    async def commit(self, transaction: Transaction) -> Outcome:
        assert len(transaction.changes) <= RECORDS_MAX
        assert len(transaction.conditions) <= RECORDS_MAX
        return await asyncio.shield(self._start(self._commit(transaction)))

    async def _commit(self, transaction: Transaction) -> Outcome:
        slot = self._free_slots.pop() if self._free_slots else self._new_slot()
        try:
            commit = EtcdCommit(self._client, slot, transaction, self._prefix, self._deadline_s)
            outcome = await commit.run()
            if isinstance(outcome, Done | Conflict):
                self.expect(outcome.revision)
            return outcome
        finally:
            self._free_slots.append(slot)

    def _new_slot(self) -> Slot:
        """One more transaction at a time than ever before."""
        self._slots += 1
        return Slot(self._writer + b"%d" % self._slots, self._mark, self._process)

    # -- watch -------------------------------------------------------------------------------------

    @override
    async def watch(self, after: Snapshot, on_change: OnChange) -> None:
        watch = EtcdWatch(
            self._client,
            self._prefix,
            key_of=self._key_of,
            read_all=self.read_all,
            touch=self._touch,
            silence_s=self._patience_s,
        )
        self._watches.append(watch)
        self._start(watch.run(after, on_change))

    @override
    def expect(self, revision: int) -> None:
        for watch in self._watches:
            watch.expect(revision)

    def test_watches(self) -> None:
        """Test all watches now, also of its parts: a host that fell silent may have taken a member
        of etcd with it."""
        for watch in self._watches:
            watch.test()
        for part in self._parts:
            part.test_watches()

    async def _touch(self) -> int:
        """Write the marks of all quiet watches of this process at once, since a write of several
        costs etcd as much as a write of one. Each reports its own, and need not be tested next; so
        do those of other processes, which is dearer than the write: others are left out."""
        whole = self
        while whole._owner is not None:
            whole = whole._owner
        if whole._touching is None or self._mark not in whole._touching[0]:
            marks = frozenset({self._mark, *islice(whole._watched_marks(), RECORDS_MAX - 1)})
            whole._touching = marks, whole._start(whole._write(marks))
        touching = whole._touching
        try:
            written = await asyncio.shield(touching[1])
        finally:
            if whole._touching is touching:
                whole._touching = None
        if isinstance(written, Exception):
            raise written
        return written

    def _watched_marks(self) -> Iterator[bytes]:
        if any(watch.is_quiet for watch in self._watches):
            yield self._mark
        for part in self._parts:
            yield from part._watched_marks()

    async def _write(self, marks: Iterable[bytes]) -> int | NoAnswer | Refused:
        """The revision at which these marks were written, with a value that is written once."""
        self._touches += 1
        value = f"{self._process} {self._touches}".encode()
        steps = [
            etcd_messages.Step(request_put=etcd_messages.Put(mark, value)) for mark in sorted(marks)
        ]
        message, deadline = etcd_messages.Txn([], steps, []), Deadline(self._silence_s)
        kind = etcd_messages.TxnAnswer
        try:
            answer = await self._client.ask(etcd_messages.TXN, message, kind, deadline)
        except (NoAnswer, Refused) as error:
            return error
        return answer.header.revision

    # -- leases ------------------------------------------------------------------------------------

    @override
    async def grant(self, ttl_s: int, on_gone: Callable[[], None]) -> EtcdLease | Unavailable:
        lease_id = self._entropy.bits128() % (1 << _LEASE_ID_BITS) or 1
        monotonic_s = self._clock.monotonic_s
        lease = EtcdLease(self._client, lease_id, monotonic_s, on_gone)
        sent_s = monotonic_s()
        try:
            message = etcd_messages.Grant(lease_id, ttl_s)
            deadline = Deadline(min(self._deadline_s, ttl_s))
            answer = await self._client.ask(
                etcd_messages.GRANT, message, etcd_messages.LeaseAnswer, deadline
            )
            ttl_s = answer.TTL
        except NoAnswer as error:
            return Unavailable(str(error))
        except Refused as error:
            if error.code != ALREADY_EXISTS:
                return Unavailable(str(error))  # else an earlier try was carried out
        lease.granted(sent_s, ttl_s, self._start)
        return lease

    async def end_lease(self, lease_id: int) -> None:
        """End a lease of a process that is gone, if etcd can be reached and has it still: its
        records need not be waited for."""
        try:
            await self._client.ask(
                etcd_messages.REVOKE,
                etcd_messages.LeaseNamed(lease_id),
                etcd_messages.LeaseAnswer,
                Deadline(self._deadline_s),
            )
        except (NoAnswer, Refused):
            return

    # -- operation ---------------------------------------------------------------------------------

    async def members(self, limit_s: float | None = None) -> list[EtcdStatus]:
        """State of each member; those that take longer than the limit are not reached."""
        return await self._client.states(limit_s or self._deadline_s)


def _fitting(found: list[etcd_messages.KeyValue]) -> int:
    """The records like these that fit into one answer."""
    return _ANSWER_BYTES * len(found) // sum(len(kv.key) + len(kv.value) for kv in found)
