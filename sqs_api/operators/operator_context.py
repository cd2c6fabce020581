"""OperatorContext: the parts of the service that the operators' API works with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from cluster.catalog.catalog import Catalog
from cluster.parts.part_requests import to_part
from cluster.shards.router import Router
from sqs_api.admin.asked import Asked
from sqs_api.admin.every_host import EveryHost
from sqs_api.archiving.lake_questions import ArchivedMessages
from sqs_api.cloudwatch.metric_actions import Reader
from sqs_api.gateway.deletions import Deletions
from sqs_api.gateway.payload import Payloads
from sqs_api.gateway.queue_actions import QueueActions, not_of_parts
from sqs_api.gateway.sealer import Sealer
from sqs_api.operators.permission_answers import FindKey
from sqs_api.operators.readings import Readings
from sqs_api.operators.user_admin import UserAdmin
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.operations import Operation, StartMessageMoveTask
from visibility.contract.outcomes import Answer
from visibility.rules.move_plans import PlanMove
from visibility.rules.move_tasks import MoveSelected

_OF_WHOLE_QUEUES = (PlanMove, MoveSelected, StartMessageMoveTask)
"""Operations that take messages from a queue, and are not done for queues of several parts."""


class OperatorContext(NamedTuple):
    """Belongs to the event loop's thread."""

    catalog: Catalog
    router: Router
    deletions: Deletions
    payloads: Payloads
    sealer: Sealer
    readings: Readings
    wall_s: Callable[[], float]
    bits128: Callable[[], int]
    hosts: EveryHost
    account: str
    """Owner of the service."""
    actions: QueueActions
    history: Callable[[str, str], Reader]
    """Reads the history of the queues of an account in a region."""
    archive: ArchivedMessages
    user_admin: UserAdmin
    """Users and access keys."""
    find_key: FindKey

    @property
    def now_ms(self) -> int:
        """The time of now."""
        return int(self.wall_s() * 1000)

    async def ask(
        self, asked: Asked, operation: Operation, queue: QueueDefinition, **more: Any
    ) -> Answer:
        """Have the shard of a queue decide, or that of a part, on whichever host leads it; a queue
        of several parts is its home.

        Raises QueueError, among them UnsupportedOperation for what takes whole queues only.
        """
        if queue.parts and type(operation) in _OF_WHOLE_QUEUES:
            raise not_of_parts(queue)
        request_id = asked.request_id(operation, queue) or f"{self.bits128():032x}"
        request = Request(operation, queue, asked.caller, request_id, **more)
        if queue.parts:
            request = to_part(request, queue)
        return await self.router.ask(request, asked.age_ms)
