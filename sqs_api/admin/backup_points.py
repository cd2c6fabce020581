"""The one point in time of a backup, on a single host and in a cluster.

In a cluster the host that was asked copies its own rows, once they have all that the leaders had
committed. What makes the copies one point: while they are made no message that another shard took
is cleared, and no queue changes. All hosts hold still (`quiesce.py`). What happened
all the same, on a host that could not be asked, shows in the terms of the copied rows and in the
records. Then the copies are made again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec

from cluster.catalog.catalog import Catalog
from cluster.catalog.catalog_records import PREFIX as CATALOG
from cluster.clock import Entropy
from cluster.coordination.coordination import Coordination, Unavailable
from cluster.copies.backup import BackupDraft, CopiedStore
from cluster.members.copied_records import copied
from cluster.peers.questions import Question, Questions
from cluster.replication.replicated_store import ReplicatedStore
from cluster.shards.delivery import Deliveries
from sqs_api.admin.quiesce import ACTION, LedShard, Quiesce, Step, StepDone
from storage.copies.manifest import BackupRefused

_TRIES = 3
_PAUSE_S = 1.0
"""Before another try: shards get their leaders."""
_HOLD_S = 20.0
"""Time for a host to hold still: a delivery to a shard without a leader is tried for 10 s."""
_ANSWER_S = 5.0
_CAUGHT_UP_S = 10.0
_LOOK_S = 0.02


class BackupPoint(Protocol):
    """Copies the rows of shards, by the names of their folders, and all else."""

    cluster: str
    """Name of the cluster; empty on a single host."""

    async def copy(self, draft: BackupDraft, stores: Mapping[int, tuple[str, CopiedStore]]) -> int:
        """Returns the latest time of a copied row, 0 if that is now. Raises BackupRefused."""


class OwnPoint:
    """The point of a single host."""

    cluster = ""

    def __init__(self, quiesce: Quiesce) -> None:
        self._quiesce = quiesce

    async def copy(self, draft: BackupDraft, stores: Mapping[int, tuple[str, CopiedStore]]) -> int:
        """See `BackupPoint`."""
        async with self._quiesce():
            checkpoints = {name: store.checkpoint for name, store in stores.values()}
            await asyncio.to_thread(draft.take, checkpoints)
        return 0


@asynccontextmanager
async def quiesce(deliveries: Deliveries, catalog: Catalog) -> AsyncIterator[None]:
    """Meanwhile no message goes from shard to shard, and this host changes no queue."""
    async with deliveries.paused(), catalog.unchanging():
        yield


def _always() -> bool:
    return True


class _Disturbed(Exception):
    """Something changed while the copies were made; the text says what."""


class ClusterPoint:
    """The point of a cluster. Belongs to the event loop's thread."""

    def __init__(
        self,
        cluster: str,
        questions: Questions,
        root: Coordination,
        stores: Callable[[], Mapping[int, ReplicatedStore]],
        entropy: Entropy,
        is_alone: Callable[[], bool] = _always,
    ) -> None:
        """`root` has all records of the fleet; `is_alone` says that it has no other cluster."""
        self._is_alone = is_alone
        self.cluster = cluster
        self._questions = questions
        self._root = root
        self._stores = stores
        self._entropy = entropy

    async def copy(self, draft: BackupDraft, stores: Mapping[int, tuple[str, CopiedStore]]) -> int:
        """See `BackupPoint`."""
        if not self._is_alone():
            raise BackupRefused(
                "the fleet has several clusters, and a copy of one of them could have messages "
                "that moved twice or not at all: there is no backup of such a fleet yet"
            )
        names = {number: name for number, (name, _) in stores.items()}
        tries = _TRIES
        while True:
            draft.check()
            try:
                return await self._try(draft, names)
            except _Disturbed as disturbed:
                tries -= 1
                if not tries:
                    raise BackupRefused(f"{disturbed}; try again") from disturbed
                await asyncio.sleep(_PAUSE_S)

    async def _try(self, draft: BackupDraft, names: Mapping[int, str]) -> int:
        token = f"{self._entropy.bits128():032x}"
        hosts = self._questions.hosts
        records: dict[str, bytes] = {}
        last_stamp_ms = 0
        try:
            held = await self._ask_all(hosts, Step("hold", token), _HOLD_S)
            still = [host for host, done in held.items() if done.is_held]
            if busy := sorted(held.keys() - still):
                raise BackupRefused(f"another backup holds host {busy[0]} still: try again later")
            before = await self._records()
            last_stamp_ms = await self._copy_rows(draft, names, await self._led(still))
            records = await self._records()
            if _queues(records) != _queues(before):
                raise _Disturbed("a host that does not answer changed queues")
        finally:
            released = await self._ask_all(hosts, Step("release", token), _ANSWER_S)
        if lost := [host for host in still if host not in released or not released[host].is_held]:
            raise _Disturbed(f"host {lost[0]} did not hold still until all was copied")
        await asyncio.to_thread(draft.put_records, records)
        return last_stamp_ms

    async def _led(self, hosts: list[str]) -> dict[int, LedShard]:
        """Each shard as its leader, one of these hosts, has it."""
        said = await self._ask_all(hosts, Step("led", ""), _ANSWER_S)
        led = {point.shard: point for done in said.values() for point in done.led}
        if missing := sorted(self._stores().keys() - led.keys()):
            raise _Disturbed(f"no host that answers leads shard {missing[0]}")
        return led

    async def _copy_rows(
        self, draft: BackupDraft, names: Mapping[int, str], led: Mapping[int, LedShard]
    ) -> int:
        stores = {number: self._stores()[number] for number in names}
        await self._wait_for_rows(stores, led)
        checkpoints = {names[number]: store.checkpoint for number, store in stores.items()}
        rows = await asyncio.to_thread(draft.take_rows, checkpoints)
        for number, name in names.items():
            position = rows[name].position
            if position.index < led[number].committed or position.term > led[number].term:
                raise _Disturbed(f"shard {number} changed its leader or its rows")
        return max(each.last_stamp_ms for each in rows.values())

    async def _wait_for_rows(
        self, stores: Mapping[int, ReplicatedStore], led: Mapping[int, LedShard]
    ) -> None:
        """Wait until this host's rows have what the leaders had committed. Raises BackupRefused."""
        try:
            async with asyncio.timeout(_CAUGHT_UP_S):
                for number, store in stores.items():
                    while store.applied.index < led[number].committed:  # noqa: ASYNC110
                        await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise BackupRefused(
                f"the rows of shard {number} on this host lack what is committed: see holdfast "
                "cluster status, or have another host make the backup"
            ) from None
        for number, store in stores.items():
            if store.replica.damage:
                raise BackupRefused(
                    f"the rows of shard {number} on this host are damaged: have another host make "
                    "the backup"
                )

    async def _records(self) -> dict[str, bytes]:
        found = await self._root.read_all()
        if isinstance(found, Unavailable):
            raise BackupRefused(f"cannot read the cluster's records: {found.reason}")
        return copied(found.records)

    async def _ask_all(self, hosts: list[str], step: Step, wait_s: float) -> dict[str, StepDone]:
        """The answers of those that answer in time."""
        question = Question(ACTION, b"", msgspec.json.encode(step))
        answers = await self._questions.ask_all(hosts, question, wait_s)
        return {
            host: msgspec.json.decode(each.body, type=StepDone)
            for host, each in answers.items()
            if each is not None and each.status == 200
        }


def _queues(records: Mapping[str, bytes]) -> dict[str, bytes]:
    return {key: value for key, value in records.items() if key.startswith(CATALOG)}
