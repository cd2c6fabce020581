"""OwnerMetrics: the metrics of an account's queues, for holders of its access keys.

    GET /_holdfast/queue-metrics    signed; the Prometheus text format

The root of an account reads those of all its queues, a user those of the queues on which its
policies allow holdfast:ReadMetrics. In a cluster every host answers for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import msgspec
from aiohttp import web
from aiohttp.web_request import BaseRequest
from prometheus_client.core import GaugeMetricFamily, Metric

from auth.auth_errors import AuthError
from auth.caller import Caller
from cluster.catalog.queue_view import QueueView
from sqs_api.admin.admin_access import AdminAccess, AdminRequest, Operator
from sqs_api.admin.admin_pages import error_page
from sqs_api.admin.every_host import EveryHost
from sqs_api.admin.queue_metrics import capped, dead_letter_queue_ids, families, fullest
from sqs_api.admin.queue_samples import QueueSample, QueueSamples, add_up_all
from sqs_api.admin.routes import READ_METRICS, RESERVED
from sqs_api.gateway.access import Access, Asker
from sqs_api.gateway.audit import AuditLog
from sqs_api.gateway.metrics import METRICS_TYPE, written
from visibility.contract.model import QueueDefinition

QUEUE_METRICS = RESERVED + "queue-metrics"
_SLICE = 100
"""Queues whose permission is checked before other work may run."""
_decode_account = msgspec.msgpack.Decoder(str).decode
_decode_samples = msgspec.msgpack.Decoder(list[QueueSample]).decode


class OwnerMetrics:
    """Answers the page."""

    def __init__(
        self,
        *,
        queues: QueueView,
        samples: QueueSamples,
        hosts: EveryHost,
        admin: AdminAccess,
        access: Access,
        audit: AuditLog | None,
        wall_s: Callable[[], float],
        queues_max: int,
    ) -> None:
        """`queues_max`: number of queues with labels of their own."""
        self._queues = queues
        self._samples = samples
        self._hosts = hosts
        self._admin = admin
        self._access = access
        self._audit = audit
        self._wall_s = wall_s
        self._queues_max = queues_max
        hosts.serve(READ_METRICS, self._answer_part)

    async def __call__(self, request: BaseRequest, sent: AdminRequest) -> web.Response:
        """The page."""
        if request.raw_path.partition("?")[0] != QUEUE_METRICS:
            return web.Response(status=404, text="not found\n")
        if request.method != "GET":
            return web.Response(status=405, headers={"Allow": "GET"})
        caller: Caller | None = None
        try:
            caller = self._admin.signer(sent, may_be_page=True)
            operator = self._admin.operator(sent, caller)
            readable = await self._readable(operator, sent)
        except AuthError as refusal:
            if self._audit is not None:
                self._audit.denied(READ_METRICS, caller, sent.source_ip, None, refusal.code)
            return error_page(403, refusal.message)
        page = await written(await self._families(caller.account, readable))
        return web.Response(body=page, headers={"Content-Type": METRICS_TYPE})

    async def _readable(self, operator: Operator, sent: AdminRequest) -> list[QueueDefinition]:
        """The account's queues that the caller may read. Raises AccessDenied if it may read none,
        unless it owns the account."""
        caller = operator.caller
        own = [queue for queue in self._queues if queue.account == caller.account]
        if operator.is_trusted or caller.user is None:
            return own
        asker = Asker(caller, sent, sent.headers)
        readable: list[QueueDefinition] = []
        for number, queue in enumerate(own, 1):
            if self._access.allows_action(READ_METRICS, queue.arn, queue.account, asker):
                readable.append(queue)
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        if not readable:
            every = f"arn:aws:sqs:{caller.region}:{caller.account}:*"
            self._access.check_action(READ_METRICS, every, caller.account, asker)
        return readable

    async def _families(self, account: str, readable: list[QueueDefinition]) -> Iterator[Metric]:
        heard = await self._hosts.ask(READ_METRICS, msgspec.msgpack.encode(account))
        samples = add_up_all(map(_decode_samples, heard.parts))
        depths = {queue_id: sample.report.stored for queue_id, sample in samples.items()}
        shown = fullest(readable, depths, self._queues_max)
        now_ms = self._wall_s() * 1000
        seen = capped(samples, readable, shown, dead_letter_queue_ids(self._queues))
        return _with_missing(families(seen, now_ms), len(heard.missing))

    async def _answer_part(self, body: bytes) -> bytes:
        """The samples of this host, of an account's queues."""
        account = _decode_account(body)
        queues = [queue for queue in self._queues if queue.account == account]
        detailed = fullest(queues, self._samples.depths(), self._queues_max)
        return msgspec.msgpack.encode(await self._samples.read(queues, detailed))


def _with_missing(found: Iterator[Metric], missing: int) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "holdfast_hosts_missing",
        "Hosts of the cluster that did not answer: their part is not in the other numbers.",
        value=float(missing),
    )
    yield from found
