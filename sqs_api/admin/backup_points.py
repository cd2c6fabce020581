"""The one point in time of a backup, on a single host and in a cluster (rule 31).

In a cluster the host that was asked copies its own rows, once they have all that the leaders had
committed; a host of each other cluster of the fleet does the same (`cluster_parts.py`). What makes
the copies one point: while they are made no message that another shard took is cleared, and no
queue changes. All hosts hold still (`quiesce.py`). What happened all the same, on a host that could
not be asked, shows in the terms of the copied rows and in the records. Then the copies are made
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
from typing_extensions import override

from cluster.catalog.catalog import Catalog
from cluster.clock import Entropy
from cluster.coordination.coordination import Coordination
from cluster.copies.backup import BackupDraft, CopiedStore
from cluster.peers.questions import Question, Questions
from cluster.replication.replicated_store import ReplicatedStore
from cluster.shards.delivery import Deliveries
from sqs_api.admin.cluster_parts import (
    BackupPoint,
    OtherPart,
    OwnPart,
    digest_of_queues,
    part_folder,
    read_records,
)
from sqs_api.admin.quiesce import ACTION, LedShard, Quiesce, Step, StepDone
from sqs_api.admin.row_copies import Disturbed, RowCopies
from storage.copies.manifest import NO_FLEET, BackupRefused, PartOfFleet

_TRIES = 3
_PAUSE_S = 1.0
"""Before another try: shards get their leaders."""
_HOLD_S = 20.0
"""Time for a host to hold still: a delivery to a shard without a leader is tried for 10 s."""
_ANSWER_S = 5.0


class OwnPoint(BackupPoint):
    """The point of a single host."""

    def __init__(self, quiesce: Quiesce) -> None:
        self._quiesce = quiesce

    @override
    async def copy(self, draft: BackupDraft, stores: Mapping[int, tuple[str, CopiedStore]]) -> int:
        async with self._quiesce():
            checkpoints = {name: store.checkpoint for name, store in stores.values()}
            await asyncio.to_thread(draft.take, checkpoints)
        return 0


@asynccontextmanager
async def quiesce(deliveries: Deliveries, catalog: Catalog) -> AsyncIterator[None]:
    """Meanwhile no message goes from shard to shard, and this host changes no queue."""
    async with deliveries.paused(), catalog.unchanging():
        yield


class OtherCluster(NamedTuple):
    """Another cluster of the fleet: its hosts, those that run first, and its shards."""

    hosts: Sequence[str]
    shards: range


class ClusterPoint(BackupPoint):
    """The point of a fleet, often of one cluster."""

    def __init__(
        self,
        cluster: str,
        questions: Questions,
        root: Coordination,
        stores: Callable[[], Mapping[int, ReplicatedStore]],
        entropy: Entropy,
        number: int,
        others: Callable[[], Mapping[int, OtherCluster]],
    ) -> None:
        """`root` has all records of the fleet; `number` is that of this cluster, `others` are the
        others of the fleet, by number."""
        self.cluster = cluster
        self.own = OwnPart(cluster, number, RowCopies(stores), root)
        """Serves other clusters' hosts."""
        self._number = number
        self._others = others
        self._questions = questions
        self._root = root
        self._stores = stores
        self._rows = RowCopies(stores)
        self._entropy = entropy
        self._parts: list[OtherPart] = []
        self._target = Path()

    @override
    def folder(self, target: Path) -> Path:
        """Each cluster of several has one of its own."""
        self._target = target
        return part_folder(target, self._number) if self._others() else target

    @override
    async def copy(self, draft: BackupDraft, stores: Mapping[int, tuple[str, CopiedStore]]) -> int:
        names = {number: name for number, (name, _) in stores.items()}
        token = f"{self._entropy.bits128():032x}"
        self._parts = [
            OtherPart(self._questions, number, each.hosts, each.shards, token)
            for number, each in sorted(self._others().items())
        ]
        self.part = PartOfFleet(token, self._number) if self._parts else NO_FLEET
        await asyncio.gather(*[part.begin(self._target) for part in self._parts])
        tries = _TRIES
        while True:
            draft.check()
            try:
                return await self._try(draft, names)
            except Disturbed as disturbed:
                tries -= 1
                if not tries:
                    raise BackupRefused(f"{disturbed}; try again") from disturbed
                await asyncio.sleep(_PAUSE_S)

    @override
    async def finish(self) -> None:
        await asyncio.gather(*[part.finish() for part in self._parts])

    @override
    async def discard(self) -> None:
        await asyncio.gather(*[part.discard() for part in self._parts])

    async def _try(self, draft: BackupDraft, names: Mapping[int, str]) -> int:
        token = f"{self._entropy.bits128():032x}"
        hosts = [*self._questions.hosts, *(host for part in self._parts for host in part.hosts)]
        records: dict[str, bytes] = {}
        last_stamp_ms = 0
        try:
            held = await self._ask_all(hosts, Step("hold", token), _HOLD_S)
            still = [host for host, done in held.items() if done.is_held]
            if busy := sorted(held.keys() - still):
                raise BackupRefused(f"another backup holds host {busy[0]} still: try again later")
            before = await read_records(self._root, self.part)
            led = await self._led(still)
            last_stamp_ms = max(
                await asyncio.gather(
                    self._rows.copy(draft, names, led), *[part.rows(led) for part in self._parts]
                )
            )
            records = await read_records(self._root, self.part)
            copied = [part.records() for part in self._parts]
            catalogs = {digest_of_queues(each) for each in (before, records)}
            if len({*catalogs, *await asyncio.gather(*copied)}) > 1:
                raise Disturbed("a host that does not answer changed queues")
        finally:
            released = await self._ask_all(hosts, Step("release", token), _ANSWER_S)
        if lost := [host for host in still if host not in released or not released[host].is_held]:
            raise Disturbed(f"host {lost[0]} did not hold still until all was copied")
        await asyncio.to_thread(draft.put_records, records)
        await asyncio.gather(*[part.keep() for part in self._parts])
        return last_stamp_ms

    async def _led(self, hosts: list[str]) -> dict[int, LedShard]:
        """Each shard of the fleet as its leader, one of these hosts, has it."""
        said = await self._ask_all(hosts, Step("led", ""), _ANSWER_S)
        led = {point.shard: point for done in said.values() for point in done.led}
        shards = {*self._stores(), *(shard for part in self._parts for shard in part.shards)}
        if missing := sorted(shards - led.keys()):
            raise Disturbed(f"no host that answers leads shard {missing[0]}")
        return led

    async def _ask_all(self, hosts: list[str], step: Step, wait_s: float) -> dict[str, StepDone]:
        """The answers of those that answer in time."""
        question = Question(ACTION, b"", msgspec.json.encode(step))
        answers = await self._questions.ask_all(hosts, question, wait_s)
        return {
            host: msgspec.json.decode(each.body, type=StepDone)
            for host, each in answers.items()
            if each is not None and each.status == 200
        }
