"""The definitions of a simulation's queues, some of which are kept in parts; the rules of the
catalog change them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import partial
from random import Random
from typing import Any, cast

import msgspec
from typing_extensions import override

from cluster.catalog import later_parts, queue_rules
from cluster.catalog.catalog_records import KeptQueue, QueueName, name_of
from cluster.catalog.deleted_queues import KeptQueues
from cluster.catalog.lost_parts import give_up_parts
from cluster.catalog.part_rules import (
    NewParts,
    add_parts,
    drain_parts,
    move_part,
    remove_part,
    replace_parts,
)
from cluster.catalog.queue_rules import Decision, Waits
from cluster.fleet.plan_records import MadeChange
from cluster.fleet.plan_table import Change
from cluster.fleet.steps import decided, made_of
from cluster.parts.split_queues import SplitQueues
from cluster.shards.router import Router
from cluster.tests.virtual_time import LoopClock
from visibility.contract.errors import QueueDoesNotExist, UnsupportedOperation
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.operations import (
    ChangeMessageVisibility,
    ChangeMessageVisibilityBatch,
    DeleteMessage,
    DeleteMessageBatch,
    ReceiveMessage,
    SendMessage,
    SendMessageBatch,
)
from visibility.rows.row_values import NotedParts
from visibility.rules.acknowledge import ReturnMessages
from visibility.rules.at_most_once import RemoveTaken
from visibility.rules.noted_parts import note_of
from visibility.rules.queues import ReadCounters
from visibility.state.waiters import OnAnswer, Room, Ticket
from visibility.tests.prepared import KnownQueues

_OF_ALL_PARTS = (
    SendMessage,
    SendMessageBatch,
    ReceiveMessage,
    DeleteMessage,
    DeleteMessageBatch,
    ChangeMessageVisibility,
    ChangeMessageVisibilityBatch,
    ReturnMessages,
    RemoveTaken,
)
_LAG_S_MAX = 3.0


class KnownParts(KnownQueues):
    """In place of the catalog."""

    def __init__(self) -> None:
        super().__init__()
        self._clock = LoopClock()
        self.revision = 0
        """The number of changes."""
        self.kept = KeptQueues(0)
        self.purged_at_ms: dict[int, int] = {}
        self.draining: frozenset[int] = frozenset()
        """Shards of clusters that are emptied, or have left."""
        self.before: dict[QueueName, list[tuple[float, QueueDefinition]]] = {}
        """Former definitions of queues that had parts, each with the time at which it ended."""
        self.unheard: set[int] = set()
        """Shards that had no leader since etcd was restored."""
        self.are_gateways_new = False
        """True if gateways hold requests until all were heard."""
        self.told: Callable[[QueueDefinition], object] = lambda part: None
        """Called with each part of a queue whose parts have changed."""
        self.changed: Callable[[str], object] = lambda name: None
        """Called with the name of a queue whose parts change."""

    @override
    def define(self, queue: QueueDefinition) -> QueueDefinition:
        self.revision += 1
        return super().define(queue)

    def find(self, name: QueueName) -> QueueDefinition | None:
        """The whole queue of that name, None if there is none."""
        found = (queue for queue in self.queues.values() if name_of(queue) == name)
        return next((queue for queue in found if queue.is_home), None)

    def successor(self, queue_id: int) -> QueueDefinition | None:
        """See `QueueView.successor`."""
        while queue_id in self.purged:
            queue_id = self.purged[queue_id]
        return self.queues.get(queue_id)

    def draining_shards(self) -> frozenset[int]:
        """See `QueueView`."""
        return self.draining

    def when_caught_up(self, then: Callable[[], None]) -> None:
        """See `QueueView`; here it always shows everything."""
        asyncio.get_running_loop().call_soon(then)

    def split(self, queue: QueueDefinition, added: NewParts) -> None:
        """Add parts."""
        self._check_heard()
        self._apply(queue, add_parts(cast(Any, self), queue, added))

    def replace(self, queue: QueueDefinition, added: NewParts) -> None:
        """Put new parts into the place of those of a FIFO queue."""
        self._check_heard()
        self._apply(queue, replace_parts(cast(Any, self), queue, added, self._clock.now_ms()))

    def drain(self, queue: QueueDefinition, numbers: list[int]) -> None:
        """Let parts drain."""
        self._check_heard()
        self._apply(queue, drain_parts(cast(Any, self), queue, numbers, self._clock.now_ms()))

    def move(self, queue: QueueDefinition, number: int, added: NewParts) -> None:
        """Put a new part in the place of one."""
        self._check_heard()
        self._apply(queue, move_part(cast(Any, self), queue, number, added, self._clock.now_ms()))

    def make(self, queue: QueueDefinition, change: Change, added: NewParts) -> MadeChange:
        """Make a change of the manager."""
        self._check_heard()
        decision = decided(cast(Any, self), queue, change, added, self._clock.now_ms())
        made = made_of(change, "manager", 0, queue, decision)
        self._apply(queue, decision)
        return made

    def remove(self, part: QueueDefinition) -> None:
        """Remove a part that is empty."""
        self._apply(part, remove_part(cast(Any, self), part.queue_id, part.version, 0))

    def give_up(self, queue: QueueDefinition, lost: Collection[int], shards: list[int]) -> None:
        """Give up the parts on shards that are lost."""
        self._apply(queue, give_up_parts(cast(Any, self), queue, lost, shards, 0))

    @override
    def write_back(self, noted: Mapping[bytes, NotedParts]) -> list[QueueDefinition]:
        written: list[QueueDefinition] = []
        for name, note in noted.items():
            decision = later_parts.write_back(cast(Any, self), name, note)
            queue = decision.made()
            if queue is not None:
                assert not later_parts.taken_ids(cast(Any, self), name, note), "ids are issued once"
                self._apply(queue, decision)
                written.append(queue)
        return written

    def set_back(self, before: QueueDefinition, purged: frozenset[int]) -> bool:
        """Give a queue the parts that it had before; False if they are the same, or it was purged
        since."""
        now = self.find(name_of(before))
        if now is None or note_of(now) == note_of(before):
            return False
        own = {part.queue_id for queue in (now, before) for part in queue.all_parts()}
        since = self.purged.keys() - purged
        if own & {*since, *(self.purged[each] for each in since)}:
            return False
        self.changed(now.name)
        for part in now.all_parts():
            del self.queues[part.queue_id]
        for part in older_parts(now, before).all_parts():
            self.define(part)
        self.before[name_of(before)] = []
        return True

    def _check_heard(self) -> None:
        """Parts are changed once all shards said which they know."""
        if self.unheard:
            raise UnsupportedOperation("etcd was restored, and a shard has no leader yet.")

    @override
    def purge(self, queue: QueueDefinition) -> QueueDefinition:
        if not self.before:
            return super().purge(queue)
        no_waits = Waits(0, 0)
        self._apply(queue, queue_rules.purge(cast(Any, self), queue, 0, no_waits))
        purged = self.find(name_of(queue))
        assert purged is not None
        return purged

    def _apply(self, queue: QueueDefinition, decision: Decision) -> None:
        name = name_of(queue)
        before = self.find(name)
        assert before is not None
        now_s = asyncio.get_running_loop().time()
        self.changed(queue.name)
        self.before.setdefault(name, []).append((now_s, before))
        for entry in decision.entries.values():
            if isinstance(entry, KeptQueue) and entry.continued_as:
                self.purged[entry.queue.queue_id] = entry.continued_as
            elif isinstance(entry, QueueDefinition):
                for part in before.all_parts():
                    del self.queues[part.queue_id]
                for part in entry.all_parts():
                    self.define(part)
                for part in entry.all_parts():
                    self.told(part)
            elif isinstance(entry, int):
                self.issued = max(self.issued, entry)

    def as_of(self, name: QueueName, at_s: float) -> QueueDefinition | None:
        """The queue as it was at a time."""
        for until_s, queue in self.before.get(name, ()):
            if at_s < until_s:
                return queue
        return self.find(name)


class Lagging:
    """The view of a gateway that hears of changes late."""

    def __init__(self, known: KnownParts, random: Random) -> None:
        self._known = known
        self._random = random

    def find(self, name: QueueName) -> QueueDefinition | None:
        """The queue as it was a moment ago."""
        now_s = asyncio.get_running_loop().time()
        return self._known.as_of(name, now_s - self._random.choice((0, 0.01, 1, _LAG_S_MAX)))

    def when_caught_up(self, then: Callable[[], None]) -> None:
        """Call it when a late view shows what is known now."""
        asyncio.get_running_loop().call_later(_LAG_S_MAX, then)


class CheckedRouter:
    """Has leaders decide by the present definitions, as a host does with another host's
    requests."""

    def __init__(self, router: Router, known: KnownParts) -> None:
        self._router = router
        self._known = known

    def submit(self, request: Request, on_answer: OnAnswer, room: Room | None = None) -> Ticket:
        """See `Router`."""
        return self._renewed(request, on_answer, partial(self._router.submit, room=room))

    def offer(self, request: Request, on_answer: OnAnswer) -> Ticket:
        """See `Router`."""
        return self._renewed(request, on_answer, self._router.offer)

    def _renewed(
        self, request: Request, on_answer: OnAnswer, submit: Callable[[Request, OnAnswer], Ticket]
    ) -> Ticket:
        renewed = self._known.renewed(request)
        if renewed is None:
            asyncio.get_running_loop().call_soon(on_answer, QueueDoesNotExist())
            return Ticket(request, on_answer)
        return submit(renewed, on_answer)

    def give_back(self, request: Request, received: Ticket | None) -> None:
        """See `Router`."""
        self.submit(request, lambda answer: None)

    def cancel(self, ticket: Ticket) -> bool:
        """See `Router`."""
        return self._router.cancel(ticket)

    def leads(self, number: int) -> bool:
        """See `Router`."""
        return self._router.leads(number)

    def has_leader(self, number: int) -> bool:
        """See `Router`."""
        return self._router.has_leader(number)

    async def ask(self, request: Request) -> object:
        """See `Router`."""
        return await self._router.ask(request)


def is_of_all_parts(request: Request) -> bool:
    """True for a request that the gateway takes to several parts."""
    return bool(request.queue.parts) and type(request.operation) in _OF_ALL_PARTS


def is_of_counters(request: Request) -> bool:
    """True for a question to all parts."""
    return bool(request.queue.parts) and type(request.operation) is ReadCounters


class _LateQueues(SplitQueues):
    """Takes each request for the queue as the gateway's view shows it, which hears late."""

    @override
    def submit(self, request: Request, on_answer: OnAnswer, room: Room | None = None) -> Ticket:
        queue = self._view.find(name_of(request.queue)) or request.queue
        request = msgspec.structs.replace(request, queue=queue)
        return super().submit(request, on_answer, room)


def split_queues(router: Router, known: KnownParts, random: Random) -> SplitQueues:
    """A gateway's way to queues of several parts."""

    class Entropy:
        """Chance from the seed."""

        bits128 = staticmethod(lambda: random.getrandbits(128))

        def secret(self, size: int) -> bytes:
            """See `Entropy.secret`."""
            return random.randbytes(size)

    checked = cast(Any, CheckedRouter(router, known))
    return _LateQueues(checked, Lagging(known, random), Entropy(), LoopClock().wall_s)


def older_parts(queue: QueueDefinition, before: QueueDefinition) -> QueueDefinition:
    """The queue as it is now, with the parts that it had before."""
    return msgspec.structs.replace(
        queue,
        queue_id=before.queue_id,
        shard=before.shard,
        version=before.version,
        parts=before.parts,
        last_part=before.last_part,
        number=before.number,
        gone=before.gone,
    )
