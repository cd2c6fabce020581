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
from cluster.catalog.catalog_records import name_of
from cluster.catalog.part_rules import NewParts, add_parts, drain_parts, move_part, replace_parts
from cluster.catalog.queue_rules import Commit, Decision
from cluster.catalog.queue_view import QueueView
from cluster.coordination.coordination import (
    Conflict,
    Coordination,
    Outcome,
    Transaction,
)
from cluster.fleet.plan_records import CHANGES, MANAGER, MadeChange, change_id_of
from cluster.fleet.plan_table import Change, Kind
from cluster.fleet.reasons import Why, reason
from cluster.parts.part_readings import above_share, new_parts, read_all_parts
from cluster.shards.queue_watch import PRINCIPAL
from cluster.shards.router import Router
from visibility.contract.errors import QueueError
from visibility.contract.model import QueueDefinition

CATALOG = "catalog/"


_CHANGED = "the queue has changed since this plan: look at the plan again"
_UNDONE_BY = {Kind.SPLIT: Kind.SHRINK, Kind.SHRINK: Kind.SPLIT, Kind.MOVE: Kind.MOVE}


class StepRefused(Exception):
    """The change cannot be made; the text says why."""


def not_available(view: QueueView, change: Change, queue: QueueDefinition | None) -> str:
    """The reason why a change cannot be made; empty if it can, as far as it is known without a look
    at the parts."""
    if queue is None:
        return "the queue is gone"
    is_standard = not queue.settings.fifo
    if is_standard and change.kind is not Kind.MOVE and queue.part_number in change.drains:
        return "the home of a queue cannot be drained: it can move"
    issued = {part.queue_id: part.first_sequence for part in queue.all_parts()}
    try:
        decided(view, queue, change, NewParts(change.opens, issued), now_ms=0)
    except QueueError as error:
        return error.message.rstrip(".")
    return ""


def decided(
    view: QueueView, queue: QueueDefinition, change: Change, new: NewParts, now_ms: int
) -> Decision:
    """The new state of the queue. Raises the errors of the rules of parts."""
    if change.kind is Kind.MOVE:
        return move_part(view, queue, change.drains[0], new, now_ms)
    if queue.settings.fifo:
        return replace_parts(view, queue, new, now_ms)
    if change.opens:
        return add_parts(view, queue, new)
    return drain_parts(view, queue, change.drains, now_ms)


def made_of(
    change: Change, by: str, at_ms: int, before: QueueDefinition, decision: Decision
) -> MadeChange:
    """The record of a change, with what it made of the queue."""
    (after,) = (each for each in decision.entries.values() if isinstance(each, QueueDefinition))
    had = {part.part_number for part in before.all_parts()}
    added = tuple(part.number for part in after.parts if part.number not in had)
    home = str(after.queue_id) if after.queue_id != before.queue_id else ""
    return MadeChange(change_id_of(change), at_ms, by, change, added, home)


def undoing(made: MadeChange, queue: QueueDefinition | None) -> Change:
    """The change that undoes one: parts that were added drain, or as many are added as drain, or a
    part moves back. What closed is never opened again. Raises StepRefused."""
    change = made.change
    if queue is None:
        raise StepRefused("the queue is gone")
    open_now = {
        part.part_number: part.shard
        for part in queue.all_parts()
        if not part.parts or part.part.is_open
    }
    drains = tuple(number for number in made.added if number in open_now)
    if made.added and not drains:
        raise StepRefused(f"the parts that change {made.change_id} added drain, or are gone")
    kind = _UNDONE_BY[change.kind]
    if queue.settings.fifo and kind is not Kind.MOVE:
        drains = tuple(open_now)
    leaves = tuple(open_now[number] for number in drains)
    opens = change.leaves if change.drains else ()
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
    """Makes the steps of one plan."""

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
        found = self._catalog.queue_of_id(int(change.queue)) if change.queue else None
        return found and self._catalog.find(name_of(found))

    async def make(self, change: Change, by: str, conditions: Mapping[str, int]) -> MadeChange:
        """Make a change that this release can make. `conditions` are revisions of records below
        MANAGER. Raises StepRefused, ServiceUnavailable, and errors of the rules of parts."""
        queue = self.queue_of(change)
        if queue is not None and queue.version != change.version:
            raise StepRefused(_CHANGED)
        refusal = not_available(self._catalog, change, queue)
        if refusal or queue is None:
            raise StepRefused(refusal)
        new = await self._new(queue, change) if change.opens else NewParts((), {})
        known: list[MadeChange] = []

        def decide() -> Decision:
            current = self._catalog.queue_of_id(queue.queue_id)
            if current is None or current.version != change.version:
                raise StepRefused(_CHANGED)
            now_ms = self._now_ms()
            decision = decided(self._catalog, current, change, new, now_ms)
            known[:] = [made_of(change, by, now_ms, current, decision)]
            return decision._replace(commit=self._committing(known[0], conditions))

        await self._catalog.change_parts(decide)
        return known[0]

    async def _new(self, queue: QueueDefinition, change: Change) -> NewParts:
        caller = Caller(queue.account, queue.region, PRINCIPAL)
        request_id = f"{self._bits128():032x}"
        readings = await read_all_parts(self._router, queue, caller, request_id)
        if change.kind is not Kind.MOVE and (
            refusal := above_share(queue, readings, len(change.opens))
        ):
            raise StepRefused(refusal)
        return new_parts(change.opens, readings)

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
