"""Steps: makes one change of a plan, by one transaction on the queue's record.

The record of the change is in the same transaction, and so are the conditions of whoever makes it.
Either all is there or nothing: a process that dies meanwhile leaves no half of a change, and what
follows, new parts and draining ones, is the work of the shards' leaders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from auth.caller import Caller
from cluster.catalog.catalog import Catalog
from cluster.catalog.part_rules import NewParts, add_parts, drain_parts
from cluster.catalog.queue_rules import Commit, Decision
from cluster.coordination.coordination import (
    Conflict,
    Coordination,
    Outcome,
    Transaction,
)
from cluster.fleet.plan_records import CHANGES, MANAGER, MadeChange, change_id_of
from cluster.fleet.plan_table import Change, Kind
from cluster.fleet.reasons import Why, reason
from cluster.parts.part_readings import read_parts, too_many_in_flight
from cluster.shards.queue_watch import PRINCIPAL
from cluster.shards.router import Router
from visibility.contract.model import QueueDefinition
from visibility.contract.queue_parts import PARTS_MAX

CATALOG = "catalog/"


class StepRefused(Exception):
    """The change cannot be made; the text says why."""


def not_available(change: Change, queue: QueueDefinition | None) -> str:
    """The reason why this release cannot make a change; empty if it can."""
    if change.kind is Kind.GROW_HAND:
        return "new queues go to four clusters of an account, and to no fifth one yet"
    if change.kind is Kind.MOVE:
        return "parts cannot be moved yet"
    if queue is None:
        return "the queue is gone"
    if queue.settings.fifo:
        return "a FIFO queue cannot be split or shrunk by the manager yet"
    if len(queue.parts) + len(change.opens) > PARTS_MAX:
        return f"the queue would have more than {PARTS_MAX} parts, those that drain included"
    home = queue.parts[0].number if queue.parts else 0
    return "the home of a queue cannot be drained yet" if home in change.drains else ""


def undoing(made: MadeChange, queue: QueueDefinition | None) -> Change:
    """The change that undoes one: parts that were added drain, or as many are added as drain. What
    closed is never opened again. Raises StepRefused."""
    change = made.change
    if queue is None:
        raise StepRefused("the queue is gone")
    open_now = {part.number: part.shard for part in queue.parts if part.is_open}
    drains = tuple(number for number in made.added if number in open_now)
    if made.added and not drains:
        raise StepRefused(f"the parts that change {made.change_id} added drain, or are gone")
    kind = Kind.SHRINK if made.added else Kind.SPLIT
    leaves = tuple(open_now[number] for number in drains)
    opens = () if made.added else change.leaves
    return Change(
        kind=kind,
        reason=reason(Why.UNDO, undone=made.change_id),
        account=change.account,
        queue=change.queue,
        version=queue.version,
        drains=drains,
        leaves=leaves,
        opens=opens,
        taken=(0.0,) * len(leaves),
        given=(0.0,) * len(opens),
    )


class Steps:
    """Belongs to one event loop."""

    def __init__(
        self,
        root: Coordination,
        catalog: Catalog,
        router: Router,
        now_ms: Callable[[], int],
        bits128: Callable[[], int],
    ) -> None:
        """`root` has all records of the fleet."""
        self._root = root
        self._catalog = catalog
        self._router = router
        self._now_ms = now_ms
        self._bits128 = bits128

    def queue_of(self, change: Change) -> QueueDefinition | None:
        """The queue of a change, None if it is gone, or for a change of no queue."""
        queue = self._catalog.queue_of_id(int(change.queue)) if change.queue else None
        return queue if queue is not None and queue.is_home else None

    async def make(self, change: Change, by: str, conditions: Mapping[str, int]) -> MadeChange:
        """Make a change that this release can make. `conditions` are revisions of records below
        MANAGER. Raises StepRefused, ServiceUnavailable, and errors of the rules of parts."""
        queue = self.queue_of(change)
        refusal = not_available(change, queue)
        if refusal or queue is None:
            raise StepRefused(refusal)
        sequences = await self._sequences(queue, len(change.opens)) if change.opens else {}
        known: list[MadeChange] = []

        def decide() -> Decision:
            current = self._catalog.queue_of_id(queue.queue_id)
            if current is None or current.version != change.version:
                raise StepRefused("the queue has changed since this plan: look at the plan again")
            if change.opens:
                decision = add_parts(self._catalog, current, NewParts(change.opens, sequences))
            else:
                decision = drain_parts(self._catalog, current, change.drains)
            known[:] = [self._made(change, by, current, decision)]
            return decision._replace(commit=self._committing(known[0], conditions))

        await self._catalog.change_parts(decide)
        return known[0]

    async def _sequences(self, queue: QueueDefinition, count: int) -> dict[int, int]:
        caller = Caller(queue.account, queue.region, PRINCIPAL)
        request_id = f"{self._bits128():032x}"
        readings = await read_parts(self._router, queue, caller, request_id)
        found = {queue_id: each for queue_id, each in readings.items() if each is not None}
        if len(found) < len(readings):
            raise StepRefused("a part of the queue does not answer: try again")
        if refusal := too_many_in_flight(queue, found, count):
            raise StepRefused(refusal)
        return {queue_id: each.next_sequence for queue_id, each in found.items()}

    def _made(
        self, change: Change, by: str, before: QueueDefinition, decision: Decision
    ) -> MadeChange:
        had = {part.number for part in before.parts} | {0}
        after = (each for each in decision.entries.values() if isinstance(each, QueueDefinition))
        added = tuple(
            part.number for queue in after for part in queue.parts if part.number not in had
        )
        return MadeChange(change_id_of(change), self._now_ms(), by, change, added)

    def _committing(self, made: MadeChange, conditions: Mapping[str, int]) -> Commit:
        key = MANAGER + CHANGES + made.change_id
        also = {MANAGER + name: revision for name, revision in conditions.items()}

        async def commit(of_catalog: Transaction) -> Outcome:
            outcome = await self._root.commit(
                Transaction(
                    {CATALOG + name: at for name, at in of_catalog.conditions.items()}
                    | also
                    | {key: 0},
                    {CATALOG + name: value for name, value in of_catalog.changes.items()}
                    | {key: msgspec.json.encode(made)},
                )
            )
            if isinstance(outcome, Conflict):
                raise StepRefused(
                    "the queue, or who plans, has changed meanwhile: look at the plan again"
                )
            return outcome

        return commit
