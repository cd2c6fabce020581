"""Plans of message move tasks: what a task would do, before anything moves."""

from __future__ import annotations

import msgspec

from visibility.contract.errors import QueueError, ServiceUnavailable
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.move_task import MessageFilter
from visibility.contract.operations import Operation
from visibility.contract.outcomes import MovePlan, Planned
from visibility.contract.stored_message import StoredMessage
from visibility.rules.decided import Outcome
from visibility.rules.failure_pages import FailureWalk
from visibility.rules.move_steps import Search, edited_in, target_of
from visibility.rules.operation_kinds import OperationKind, Operations
from visibility.rules.orders import order_of
from visibility.rules.selected import is_hidden, selected
from visibility.state.noted_spans import Walked
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

IN_FLIGHT = "InFlight"
HELD = "Held"
GONE = "MessageGone"
_STEP_MESSAGES = 1000
_STEP_BYTES = 4 << 20
_FILTERED_BYTES = 1 << 20
_GROUPS_MAX = 10_000
"""Groups with messages that stay, which a plan carries from step to step."""
SAMPLES_MAX = 10
"""Messages that show what an edit does."""
_NOTHING = Planned(0, 0)


class PlanMove(Operation, frozen=True):
    """Tell what a move task would do; answers `outcomes.MovePlan`.

    With `sequences` it is about these messages, otherwise about one bounded step of all messages,
    from `from_sequence` on, or of those that match a filter. Earlier steps planned `planned`
    messages, which take their time at this rate, and left messages of `groups` in their places.
    With an `edit`, the plan names the first ones that move.
    """

    sequences: list[int] | None = None
    from_sequence: int = 0
    filter: MessageFilter | None = None
    rate: int = 0
    planned: int = 0
    groups: list[bytes] = msgspec.field(default_factory=list)
    edit: str = ""


def decide_plan_move(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """The plan of a step, or of the named messages. Raises InvalidParameterValue, and
    ServiceUnavailable while a key is not there yet."""
    operation = request.operation
    assert isinstance(operation, PlanMove)
    queue = shard.queue(request.queue.queue_id)
    planning = _Planning(shard, queue, request, operation, stamp)
    if operation.sequences is not None:
        chosen = selected(operation.sequences)
        found = shard.rows.unless_quarantined(queue, chosen)
        planning.refuse(GONE, len(chosen) - len(found))
        return planning.plan(found, None), ()
    first = max(operation.from_sequence, queue.floor)
    until = max(queue.next_sequence, first)
    if planning.may_skip and operation.filter is not None and operation.filter.failure is not None:
        walk = FailureWalk(shard, queue, operation.filter.failure, Walked())
        found_by = walk.page(first, until, messages=_STEP_MESSAGES, size=_FILTERED_BYTES)
        cursor = found_by.cursor
        planning.passed_by(found_by.looked_at(cursor) - len(found_by.messages))
        return planning.plan(found_by.messages, cursor if cursor < until else None), ()
    page = shard.rows.line(
        queue.queue_id,
        first,
        until,
        messages=_STEP_MESSAGES,
        size=_FILTERED_BYTES if operation.filter or operation.edit else _STEP_BYTES,
        quarantined=queue.quarantined,
        spans=queue.spans,
    )
    return planning.plan(page.messages, page.next_sequence), ()


class _Planning:
    """One step of a plan."""

    def __init__(
        self,
        shard: ShardState,
        queue: QueueState,
        request: Request,
        wanted: PlanMove,
        stamp: Stamp,
    ) -> None:
        self._shard = shard
        self._queue = queue
        self._request = request
        self._locks_groups = order_of(request.queue.settings).locks_groups
        self._wanted = wanted
        self._now_ms = stamp.now_ms
        self._targets: dict[str, Planned] = {}
        self._refused: dict[str, int] = {}
        self._samples: list[int] = []
        self._groups = dict.fromkeys(wanted.groups)
        self._planned = wanted.planned
        self._passed = self._expiring = self._overtaking = 0

    @property
    def may_skip(self) -> bool:
        """False if messages that stay must be looked at, too: others may overtake them."""
        return not self._locks_groups

    def passed_by(self, messages: int) -> None:
        """Count messages that do not match."""
        self._passed += messages

    def refuse(self, reason: str, messages: int = 1) -> None:
        """Count messages that stay."""
        if messages:
            self._refused[reason] = self._refused.get(reason, 0) + messages

    def plan(self, found: list[tuple[int, StoredMessage]], next_sequence: int | None) -> MovePlan:
        """The plan for these messages."""
        for sequence, message in found:
            target = self._target(sequence, message)
            if isinstance(target, QueueDefinition):
                self._add(message, target)
                if self._wanted.edit and len(self._samples) < SAMPLES_MAX:
                    self._samples.append(sequence)
                continue
            if target is None:
                self._passed += 1
            else:
                self.refuse(target)
            if self._locks_groups and len(self._groups) < _GROUPS_MAX:
                self._groups[message.group] = None
        return MovePlan(
            self._targets,
            self._refused,
            next_sequence,
            self._passed,
            self._expiring,
            self._overtaking,
            list(self._groups),
            self._samples,
        )

    def _target(self, sequence: int, message: StoredMessage) -> QueueDefinition | str | None:
        """A message's target, or the reason why it stays; None if the filter excludes it."""
        if is_hidden(self._queue, sequence):
            return HELD if sequence in self._queue.holds else IN_FLIGHT
        source, wanted, to = self._request.queue, self._wanted.filter, self._request.destination
        try:
            if wanted is not None:
                search = Search(self._shard, source, wanted, self._request.targets)
                if not search.matches(sequence, message):
                    return None
            arn = None if to is None else to.arn
            target = target_of(self._shard, source, arn, self._request.targets, message)
            return self._edited(message, target)
        except ServiceUnavailable:
            raise
        except QueueError as refusal:
            return refusal.code

    def _edited(
        self, message: StoredMessage, target: QueueDefinition | str
    ) -> QueueDefinition | str:
        """The target, or the reason why the message cannot be edited. Raises QueueError."""
        if isinstance(target, str) or not self._wanted.edit:
            return target
        request = self._request
        changed = edited_in(
            self._shard, request.queue, self._wanted.edit, request.targets, message, target
        )
        return changed if isinstance(changed, str) else target

    def _add(self, message: StoredMessage, target: QueueDefinition) -> None:
        known = self._targets.get(target.arn, _NOTHING)
        is_too_large = message.size > target.settings.maximum_message_size
        self._targets[target.arn] = Planned(
            known.messages + 1, known.size + message.size, known.too_large + is_too_large
        )
        rate = self._wanted.rate
        moves_at_ms = self._now_ms + (self._planned * 1000 // rate if rate else 0)
        retention_ms = self._request.queue.settings.retention_ms
        self._expiring += message.retained_from_ms + retention_ms <= moves_at_ms
        self._overtaking += message.group in self._groups
        self._planned += 1


OPERATIONS: Operations = {PlanMove: OperationKind(decide_plan_move, MovePlan)}
