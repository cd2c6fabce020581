"""The records of a machine with several workers: the supervisor has them open, and workers read,
change and watch them over their conversations.

`SharedRecords` is the worker's side, `RecordsSession` the supervisor's. Each worker has views of
its own over them, as a host of a cluster has over etcd. Keys of messages never cross: a worker
unwraps them itself, and seals only with keys of blocks that it made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
from typing_extensions import override

from cluster.coordination import coordination
from cluster.coordination.part import Part
from cluster.tasks import start_task
from sqs_api.workers.conversation import (
    Answered,
    Changed,
    CommitRecords,
    Conversation,
    ReadRecords,
    WatchRecords,
)

if TYPE_CHECKING:
    from cluster.coordination.sqlite_coordination import SqliteCoordination

_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        coordination.Snapshot,
        coordination.Done,
        coordination.Conflict,
        coordination.LeaseLost,
        coordination.Unknown,
        coordination.Unavailable,
    )
}
_GONE = "the supervisor has ended"
_WATCHING = coordination.Done(0)


class SharedRecords(coordination.Coordination):
    """The records of the supervisor, as a worker reads and changes them."""

    def __init__(self, send: Callable[[Any], bool]) -> None:
        self._send = send
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._watches: dict[int, coordination.OnChange] = {}
        self._is_over = False

    def below(self, folder: str) -> coordination.Coordination:
        """The records whose keys begin with this."""
        return Part(self, folder)

    @override
    async def read_all(self) -> coordination.Snapshot | coordination.Unavailable:
        return await self._read(None)

    @override
    async def read(self, keys: Collection[str]) -> coordination.Snapshot | coordination.Unavailable:
        return await self._read(list(keys))

    async def _read(
        self, keys: list[str] | None
    ) -> coordination.Snapshot | coordination.Unavailable:
        found = await self._ask(partial(ReadRecords, keys=keys))
        if isinstance(found, coordination.Unknown):
            return coordination.Unavailable(found.reason)
        assert isinstance(found, coordination.Snapshot | coordination.Unavailable)
        return found

    @override
    async def commit(self, transaction: coordination.Transaction) -> coordination.Outcome:
        assert not transaction.leases, "a single host has none"
        outcome: coordination.Outcome = await self._ask(
            partial(
                CommitRecords,
                conditions=transaction.conditions,
                changes=transaction.changes,
            )
        )
        return outcome

    @override
    async def watch(self, after: coordination.Snapshot, on_change: coordination.OnChange) -> None:
        number = next(self._numbers)
        self._watches[number] = on_change
        await self._ask(lambda request: WatchRecords(request, after.revision), number)

    @override
    def expect(self, revision: int) -> None:
        """Watches are never stuck while the supervisor lives."""

    @override
    async def close(self) -> None:
        self._watches.clear()

    async def _ask(self, message: Callable[[int], Any], number: int | None = None) -> Any:
        """The outcome; Unknown if the supervisor ended meanwhile, Unavailable if it had before."""
        request = next(self._numbers) if number is None else number
        future = asyncio.get_running_loop().create_future()
        if self._is_over or not self._send(message(request)):
            return coordination.Unavailable(_GONE)
        self._asked[request] = future
        # A commit goes on if the caller is cancelled.
        return await asyncio.shield(future)

    # -- what the supervisor says ------------------------------------------------------------------

    def answered(self, message: Answered) -> None:
        """The outcome of a request is here."""
        future = self._asked.pop(message.request)
        if not future.done():
            value = msgspec.msgpack.decode(message.value, type=_KINDS[message.kind])
            future.set_result(value)

    def changed(self, message: Changed) -> None:
        """Records changed."""
        on_change = self._watches.get(message.watch)
        if on_change is not None:
            on_change(coordination.Change(message.revision, message.records, message.revisions))

    def lost(self) -> None:
        """The supervisor is gone."""
        self._is_over = True
        asked, self._asked = self._asked, {}
        for future in asked.values():
            if not future.done():
                future.set_result(coordination.Unknown(_GONE))


class RecordsSession:
    """The records as one worker uses them; the supervisor has it."""

    def __init__(self, records: SqliteCoordination, worker: Conversation[Any]) -> None:
        self._records = records
        self._worker = worker
        self._watches: list[coordination.OnChange] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def asked(self, message: ReadRecords | CommitRecords | WatchRecords) -> None:
        """Do it, and answer. Requests begin in the order in which they were made."""
        start_task(self._tasks, self._answer(message))

    async def _answer(self, message: ReadRecords | CommitRecords | WatchRecords) -> None:
        outcome = await self._outcome(message)
        value = msgspec.Raw(msgspec.msgpack.encode(outcome))
        self._worker.send(Answered(message.request, type(outcome).__name__, value))

    async def _outcome(
        self, message: ReadRecords | CommitRecords | WatchRecords
    ) -> coordination.Outcome | coordination.Snapshot:
        records = self._records
        if isinstance(message, CommitRecords):
            return await records.commit(
                coordination.Transaction(message.conditions, message.changes)
            )
        if isinstance(message, WatchRecords):
            on_change = partial(self._report, message.request)
            self._watches.append(on_change)
            await records.watch(coordination.Snapshot(message.after, []), on_change)
            return _WATCHING
        if message.keys is None:
            return await records.read_all()
        return await records.read(message.keys)

    def _report(self, watch: int, change: coordination.Change) -> None:
        revisions = dict(change.revisions)
        self._worker.send(Changed(watch, change.revision, dict(change.records), revisions))

    def end(self) -> None:
        """The worker is gone: report nothing more to it. What it asked for is done all the same."""
        for on_change in self._watches:
            self._records.unwatch(on_change)
