"""OperatorContext: the parts of the service that the operators' API works with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from cluster.catalog.catalog import Catalog
from cluster.keys.key_owners import NamedKey
from cluster.parts.part_requests import to_part
from cluster.parts.split_moves import OF_TASKS
from cluster.shards.router import Router
from sqs_api.admin.asked import Asked
from sqs_api.admin.browser_sessions import BrowserSessions
from sqs_api.admin.every_host import EveryHost
from sqs_api.archiving.lake_questions import ArchivedMessages
from sqs_api.cloudwatch.metric_actions import Reader
from sqs_api.cloudwatch.metric_charts import Charts
from sqs_api.gateway.deletions import Deletions
from sqs_api.gateway.payload import Payloads
from sqs_api.gateway.queue_actions import QueueActions
from sqs_api.gateway.sealer import Sealer
from sqs_api.operators.arrival_counts import Arrivals
from sqs_api.operators.marks import Marks
from sqs_api.operators.permission_answers import FindKey
from sqs_api.operators.readings import Readings
from sqs_api.operators.scan_turns import ScanTurns
from sqs_api.operators.user_admin import UserAdmin
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.operations import Operation, SendMessage
from visibility.contract.outcomes import Answer


class OperatorContext(NamedTuple):
    """The parts of one process."""

    catalog: Catalog
    router: Router
    deletions: Deletions
    payloads: Payloads
    sealer: Sealer
    readings: Readings
    wall_s: Callable[[], float]
    monotonic_s: Callable[[], float]
    bits128: Callable[[], int]
    hosts: EveryHost
    account: str
    """Owner of the service."""
    actions: QueueActions
    history: Callable[[str, str], Reader]
    """Reads the history of the queues of an account in a region."""
    charts: Charts
    arrivals: Arrivals
    archive: ArchivedMessages
    user_admin: UserAdmin
    """Users and access keys."""
    find_key: FindKey
    named_keys: Callable[[], list[NamedKey]]
    """Every key that queues may name, the built-in one, too."""
    marks: Marks
    scans: ScanTurns
    sessions: BrowserSessions | None
    """None in open mode."""
    grafana_url: str | None

    @property
    def now_ms(self) -> int:
        """The time of now."""
        return int(self.wall_s() * 1000)

    def queues_of(self, asked: Asked) -> list[QueueDefinition]:
        """The queues of the asked account in the caller's region."""
        place = (asked.account, asked.caller.region)
        return [queue for queue in self.catalog if (queue.account, queue.region) == place]

    async def ask(
        self, asked: Asked, operation: Operation, queue: QueueDefinition, **more: Any
    ) -> Answer:
        """Have the shard of a queue decide, or that of a part, on whichever host leads it; a queue
        of several parts is its home. For sends and move tasks the queue is the whole one. Raises
        QueueError."""
        request_id = asked.request_id(operation, queue) or f"{self.bits128():032x}"
        request = Request(operation, queue, asked.caller, request_id, **more)
        if isinstance(operation, OF_TASKS):
            return await self.actions.moves.ask(request, asked.age_ms)
        if queue.parts and isinstance(operation, SendMessage):
            return await self.actions.send(request)
        if queue.parts:
            request = to_part(request, queue)
        return await self.router.ask(request, asked.age_ms)
