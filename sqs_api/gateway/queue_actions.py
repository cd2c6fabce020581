"""TABLE: the actions that the catalog answers, alone or with shards: those on queues and on message
move tasks.

Each is a coroutine of the operation, its caller and the base of queue URLs; none is in the hot
path. Move tasks name queues by ARN and live in the shard of their source.
"""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from auth.caller import Caller
from cluster.catalog.catalog import Catalog
from cluster.parts.split_moves import SplitMoves
from cluster.parts.split_queues import SplitQueues
from cluster.shards.queue_watch import QueueWatch
from cluster.shards.router import Router, answer_to
from sqs_api.gateway.deletions import Deletions
from visibility.contract import operations as op
from visibility.contract import results
from visibility.contract.attributes import checked_tags, needs_counters, shown_attributes
from visibility.contract.errors import (
    InvalidAddress,
    InvalidParameterValue,
    QueueError,
    ResourceNotFound,
    ServiceUnavailable,
)
from visibility.contract.limits import LIST_RESULTS
from visibility.contract.model import QueueCounters, QueueDefinition, Request
from visibility.contract.move_task import decode_handle
from visibility.contract.naming import is_account, queue_address, queue_url
from visibility.contract.operations import Operation
from visibility.contract.outcomes import Answer
from visibility.rules.move_tasks import check_start
from visibility.rules.queues import ReadCounters

_NO_COUNTERS = QueueCounters(0, 0, 0)
_SOURCE_GONE = "The resource that you specified for the SourceArn parameter doesn't exist."
_DESTINATION_GONE = (
    "The resource that you specified for the DestinationArn parameter doesn't exist."
)

MoveOperation = op.StartMessageMoveTask | op.CancelMessageMoveTask | op.ListMessageMoveTasks


class QueueActions:
    """Answers the catalog's actions."""

    def __init__(
        self,
        catalog: Catalog,
        router: Router,
        split: SplitQueues,
        deletions: Deletions,
        watch: QueueWatch,
    ) -> None:
        self._catalog = catalog
        self.dead_letter_queue = catalog.dead_letter_queue
        self._split = split
        self.moves = SplitMoves(router, catalog)
        self._deletions = deletions
        self._watch = watch

    def find(self, url: str, caller: Caller) -> QueueDefinition:
        """The queue a QueueUrl names, by its path alone; a bare name is the caller's own.

        Raises QueueDoesNotExist, InvalidAddress.
        """
        address = queue_address(url)
        account = address.account or caller.account
        return self._catalog.queue(account, caller.region, address.name)

    async def answer(
        self, operation: Operation, caller: Caller, base_url: str, request_id: str
    ) -> results.Result | None:
        """Carry out an operation that the caller may do. Raises QueueError."""
        action = ACTIONS[type(operation)]
        carry_out = partial(action, self, operation, caller, base_url, request_id)
        result: results.Result | None
        try:
            result = await carry_out()
        except ServiceUnavailable:
            raise
        except QueueError:
            if not self.may_lack_queues:
                raise
            await self.learn_all()  # another host may have changed what this refusal is for
            result = await carry_out()
        return result

    @property
    def may_lack_queues(self) -> bool:
        """True in a cluster: a queue that another host made may not be known here yet."""
        return self._catalog.is_shared

    async def learn_all(self) -> None:
        """Wait until all queues that were made before are known here. Raises ServiceUnavailable if
        that is not so soon."""
        if not await self._catalog.caught_up():
            raise ServiceUnavailable()

    # -- one coroutine an action -------------------------------------------------------------------

    async def _create_queue(
        self, operation: op.CreateQueue, caller: Caller, base_url: str, request_id: str
    ) -> results.CreateQueueResult:
        name = operation.queue_name or ""
        attributes = operation.attributes or {}
        tags = checked_tags(name, {}, operation.tags_on_create or {})
        queue = await self._catalog.create_queue(
            (caller.account, caller.region, name), attributes, tags
        )
        return results.CreateQueueResult(queue_url(base_url, queue.account, queue.name))

    async def _delete_queue(
        self, operation: op.DeleteQueue, caller: Caller, base_url: str, request_id: str
    ) -> None:
        await self._deletions.delete(self.find(operation.queue_url or "", caller))

    async def _purge_queue(
        self, operation: op.PurgeQueue, caller: Caller, base_url: str, request_id: str
    ) -> None:
        await self._deletions.purge(self.find(operation.queue_url or "", caller))

    async def _get_queue_url(
        self, operation: op.GetQueueUrl, caller: Caller, base_url: str, request_id: str
    ) -> results.GetQueueUrlResult:
        account = operation.queue_owner_aws_account_id
        if account is None:
            account = caller.account
        elif not is_account(account):
            raise InvalidAddress(f"The address {base_url}/ is not valid for this endpoint.")
        name = operation.queue_name or ""
        queue = self._catalog.queue(account, caller.region, name)
        return results.GetQueueUrlResult(queue_url(base_url, queue.account, queue.name))

    async def _list_queues(
        self, operation: op.ListQueues, caller: Caller, base_url: str, request_id: str
    ) -> results.ListQueuesResult:
        prefix = operation.queue_name_prefix or ""
        names = self._catalog.names(caller.account, caller.region, prefix)
        page, token = _page(names, operation.next_token, operation.max_results)
        urls = [queue_url(base_url, caller.account, name) for name in page]
        return results.ListQueuesResult(urls or None, token)

    async def _list_dead_letter_source_queues(
        self,
        operation: op.ListDeadLetterSourceQueues,
        caller: Caller,
        base_url: str,
        request_id: str,
    ) -> results.ListDeadLetterSourceQueuesResult:
        queue = self.find(operation.queue_url or "", caller)
        sources = {source.name: source for source in self._catalog.dead_letter_sources(queue)}
        page, token = _page(list(sources), operation.next_token, operation.max_results)
        urls = [queue_url(base_url, sources[name].account, name) for name in page]
        return results.ListDeadLetterSourceQueuesResult(urls, token)

    async def _get_queue_attributes(
        self, operation: op.GetQueueAttributes, caller: Caller, base_url: str, request_id: str
    ) -> results.GetQueueAttributesResult:
        queue = self.find(operation.queue_url or "", caller)
        counters = _NO_COUNTERS
        if needs_counters(operation.attribute_names):
            reading = Request(ReadCounters(), queue, caller, request_id)
            counters = await self._split.counters(reading)
        shown = shown_attributes(queue, operation.attribute_names, counters)
        return results.GetQueueAttributesResult(shown)

    async def send(self, request: Request) -> Answer:
        """Send to a queue of several parts, as its clients do. Raises QueueError."""
        return await answer_to(self._split.submit, request)

    async def _set_queue_attributes(
        self, operation: op.SetQueueAttributes, caller: Caller, base_url: str, request_id: str
    ) -> None:
        queue = self.find(operation.queue_url or "", caller)
        await self._catalog.set_attributes(queue, operation.attributes or {})
        await self._watch.confirmed(*(part.queue_id for part in queue.all_parts()))

    async def _add_permission(
        self, operation: op.AddPermission, caller: Caller, base_url: str, request_id: str
    ) -> None:
        queue = self.find(operation.queue_url or "", caller)
        label, accounts = operation.label or "", operation.aws_account_ids or ()
        await self._catalog.add_permission(queue, label, accounts, operation.actions or ())

    async def _remove_permission(
        self, operation: op.RemovePermission, caller: Caller, base_url: str, request_id: str
    ) -> None:
        queue = self.find(operation.queue_url or "", caller)
        await self._catalog.remove_permission(queue, operation.label or "")

    async def _list_queue_tags(
        self, operation: op.ListQueueTags, caller: Caller, base_url: str, request_id: str
    ) -> results.ListQueueTagsResult:
        queue = self.find(operation.queue_url or "", caller)
        return results.ListQueueTagsResult(queue.tags or None)

    async def _tag_queue(
        self, operation: op.TagQueue, caller: Caller, base_url: str, request_id: str
    ) -> None:
        queue = self.find(operation.queue_url or "", caller)
        await self._catalog.tag_queue(queue, operation.tags or {})

    async def _untag_queue(
        self, operation: op.UntagQueue, caller: Caller, base_url: str, request_id: str
    ) -> None:
        queue = self.find(operation.queue_url or "", caller)
        await self._catalog.untag_queue(queue, operation.tag_keys or ())

    async def _move_task(
        self, operation: MoveOperation, caller: Caller, base_url: str, request_id: str
    ) -> Answer:
        return await self.moves.ask(_move_request(operation, self._catalog, caller, request_id))


def _move_request(
    operation: MoveOperation, catalog: Catalog, caller: Caller, request_id: str
) -> Request:
    """The request to the shard that holds the source and its tasks.

    Raises ResourceNotFound, InvalidParameterValue.
    """
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
            # Only these were checked: meanwhile, a message's source queue may name another
            # dead-letter queue.
            targets = tuple(queue.arn for queue in sources)
    return Request(operation, source, caller, request_id, destination=destination, targets=targets)


def _queue(catalog: Catalog, arn: str, caller: Caller, refusal: str) -> QueueDefinition:
    """The queue; those of other regions are out of a request's reach, as at AWS's endpoints."""
    queue = catalog.queue_of_arn(arn)
    if queue is None or queue.region != caller.region:
        raise ResourceNotFound(refusal)
    return queue


def _page(
    names: Sequence[str], token: str | None, max_results: int | None
) -> tuple[Sequence[str], str | None]:
    """The names after the token, and the next token if a page was requested and more remain."""
    start = bisect_right(names, _name_in(token)) if token is not None else 0
    page = names[start : start + (max_results or LIST_RESULTS.high)]
    more = max_results is not None and start + len(page) < len(names)
    return page, urlsafe_b64encode(page[-1].encode()).decode() if more and page else None


def _name_in(token: str) -> str:
    try:
        name = b64decode(token, altchars=b"-_", validate=True).decode()
    except ValueError:
        name = ""
    if not name:
        raise InvalidParameterValue("Invalid or expired next token.")
    return name


ACTIONS: dict[type[Operation], Callable[[QueueActions, Any, Caller, str, str], Awaitable[Any]]] = {
    op.CreateQueue: QueueActions._create_queue,
    op.DeleteQueue: QueueActions._delete_queue,
    op.PurgeQueue: QueueActions._purge_queue,
    op.GetQueueUrl: QueueActions._get_queue_url,
    op.ListQueues: QueueActions._list_queues,
    op.ListDeadLetterSourceQueues: QueueActions._list_dead_letter_source_queues,
    op.GetQueueAttributes: QueueActions._get_queue_attributes,
    op.SetQueueAttributes: QueueActions._set_queue_attributes,
    op.AddPermission: QueueActions._add_permission,
    op.RemovePermission: QueueActions._remove_permission,
    op.ListQueueTags: QueueActions._list_queue_tags,
    op.TagQueue: QueueActions._tag_queue,
    op.UntagQueue: QueueActions._untag_queue,
    op.StartMessageMoveTask: QueueActions._move_task,
    op.CancelMessageMoveTask: QueueActions._move_task,
    op.ListMessageMoveTasks: QueueActions._move_task,
}
