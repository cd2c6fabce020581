"""Plans of message move tasks: what a task would do, before anything moves."""

from __future__ import annotations

from visibility.contract.model import Request
from visibility.contract.operations import PlanMove
from visibility.contract.outcomes import MovePlan, Planned
from visibility.contract.stored_message import StoredMessage
from visibility.rules.decided import Outcome
from visibility.rules.move_tasks import is_hidden, selected, target_of
from visibility.state.stamp import Stamp
from visibility.state.state import QueueState, ShardState

IN_FLIGHT = "InFlight"
GONE = "MessageGone"
_STEP_MESSAGES = 1000
_STEP_BYTES = 4 << 20


def decide_plan_move(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """The plan of a step, or of the named messages. Raises InvalidParameterValue."""
    operation = request.operation
    assert isinstance(operation, PlanMove)
    queue = shard.queue(request.queue.queue_id)
    if operation.sequences is not None:
        chosen = selected(operation.sequences)
        found = shard.rows.unless_quarantined(queue, chosen)
        return _plan(shard, request, queue, found, gone=len(chosen) - len(found)), ()
    first = max(operation.from_sequence, queue.floor)
    page = shard.rows.line(
        queue.queue_id,
        first,
        max(queue.next_sequence, first),
        messages=_STEP_MESSAGES,
        size=_STEP_BYTES,
        quarantined=queue.quarantined,
        spans=queue.spans,
    )
    return _plan(shard, request, queue, page.messages, page.next_sequence), ()


def _plan(
    shard: ShardState,
    request: Request,
    queue: QueueState,
    messages: list[tuple[int, StoredMessage]],
    next_sequence: int | None = None,
    gone: int = 0,
) -> MovePlan:
    destination_arn = None if request.destination is None else request.destination.arn
    targets: dict[str, Planned] = {}
    refused = {GONE: gone} if gone else {}
    for sequence, message in messages:
        target = target_of(shard, request.queue, destination_arn, request.targets, message)
        if is_hidden(queue, sequence):
            target = IN_FLIGHT
        if isinstance(target, str):
            refused[target] = refused.get(target, 0) + 1
        else:
            known = targets.get(target.arn, _NOTHING)
            targets[target.arn] = Planned(known.messages + 1, known.size + message.size)
    return MovePlan(targets, refused, next_sequence)


_NOTHING = Planned(0, 0)
