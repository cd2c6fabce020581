"""The three actions on message move tasks: they name queues by ARN, and their tasks live in the source's shard."""

from __future__ import annotations

from auth.caller import Caller
from cluster.catalog.catalog import Catalog
from visibility.contract import operations as op
from visibility.contract.errors import ResourceNotFound
from visibility.contract.model import QueueDefinition, Request
from visibility.rules.move_tasks import check_start, decode_handle

_SOURCE_GONE = "The resource that you specified for the SourceArn parameter doesn't exist."
_DESTINATION_GONE = (
    "The resource that you specified for the DestinationArn parameter doesn't exist."
)

MoveOperation = op.StartMessageMoveTask | op.CancelMessageMoveTask | op.ListMessageMoveTasks


def move_request(
    operation: MoveOperation, catalog: Catalog, caller: Caller, request_id: str
) -> Request:
    """What the shard is asked. Raises ResourceNotFound, InvalidParameterValue."""
    destination = targets = None
    if isinstance(operation, op.CancelMessageMoveTask):
        source_arn = decode_handle(operation.task_handle or "").source_arn
    else:
        source_arn = operation.source_arn or ""
    source = _queue(catalog, source_arn, caller, _SOURCE_GONE)
    if isinstance(operation, op.StartMessageMoveTask):
        if operation.destination_arn is not None:
            destination = _queue(catalog, operation.destination_arn, caller, _DESTINATION_GONE)
        sources = catalog.dead_letter_sources(source)
        refusal = check_start(source, destination, is_dead_letter_queue=bool(sources))
        if refusal is not None:
            raise refusal
        if caller.user is not None or caller.account != source.account:
            # Only these were checked: a message may come from a queue that names another dead-letter queue by now.
            targets = tuple(queue.arn for queue in sources)
    return Request(operation, source, caller, request_id, destination=destination, targets=targets)


def _queue(catalog: Catalog, arn: str, caller: Caller, refusal: str) -> QueueDefinition:
    """The queue; those of other regions are out of a request's reach, as at AWS's endpoints."""
    queue = catalog.queue_of_arn(arn)
    if queue is None or queue.region != caller.region:
        raise ResourceNotFound(refusal)
    return queue
