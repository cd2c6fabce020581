"""Delivery at most once: a receive takes its messages for good.

A taken message is in flight with a lease that ends at no time, so after a crash or a failover no
receive gets it either. The host that wrote the answer to the client then has it removed; one that
could not write it gives it back. After a minute without news of either a pulse removes it.
"""

from __future__ import annotations

from itertools import islice

from visibility.contract.at_most_once_tag import delivers_at_most_once
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.limits import TAKEN_UNTIL_MS
from visibility.contract.model import QueueDefinition, QueueSettings, Receipt, Request
from visibility.contract.operations import Operation, ReceiveMessage
from visibility.contract.stored_message import Lease
from visibility.rules.decided import Outcome
from visibility.rules.events import Event
from visibility.rules.hold_messages import delete_in_flight
from visibility.rules.operation_kinds import NOTHING, OperationKind, Operations
from visibility.state.in_flight import TAKEN_MS
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

_STEP_MESSAGES = 250
"""Messages that one step removes."""


class RemoveTaken(Operation, frozen=True):
    """Remove messages whose answer was written to the client; answers None. The request's parts
    are the Receipts of the deliveries."""


def hidden_until_ms(settings: QueueSettings, operation: ReceiveMessage, until_ms: int) -> int:
    """The end of the leases of a receive, which would be `until_ms` without the queue's tags.

    Raises InvalidParameterValue for the id of an attempt, which would get the messages again.
    """
    if not delivers_at_most_once(settings.own_tags):
        return until_ms
    if operation.receive_request_attempt_id:
        raise InvalidParameterValue(
            "Value for parameter ReceiveRequestAttemptId is invalid. Reason: The queue delivers "
            "each message at most once, so it is not given to a second attempt."
        )
    return TAKEN_UNTIL_MS


def decide_remove_taken(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Remove those that are still there."""
    queue = shard.queue(request.queue.queue_id)
    leases: list[Lease] = []
    for receipt in request.parts:
        assert isinstance(receipt, Receipt)
        entry = queue.entries.get(receipt.sequence)
        if entry is None or not entry.lease.is_taken:
            continue
        if entry.lease.receive_count == receipt.delivery and receipt.sequence in queue.taken:
            leases.append(entry.lease)
    if not leases:
        return None, ()
    return None, delete_in_flight(shard, queue, request.queue, leases, stamp.now_ms)[1]


def end_taken(
    shard: ShardState, queue: QueueState, definition: QueueDefinition, stamp: Stamp
) -> tuple[tuple[Event, ...], int | None]:
    """Remove messages of whose answer nothing was heard: a step of pulses."""
    if not queue.taken:
        return (), None
    leases: list[Lease] = []
    for sequence in islice(queue.taken, _STEP_MESSAGES):
        lease = queue.entries[sequence].lease
        if lease.received_at_ms + TAKEN_MS > stamp.now_ms:
            if not leases:
                return (), lease.received_at_ms + TAKEN_MS
            break
        leases.append(lease)
    _, events = delete_in_flight(shard, queue, definition, leases, stamp.now_ms)
    return events, stamp.now_ms


OPERATIONS: Operations = {RemoveTaken: OperationKind(decide_remove_taken, None, NOTHING)}
