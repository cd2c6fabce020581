"""Monitoring: CloudWatch's calls on SQS's endpoint, from a request that is not SQS's to its answer.

The gateway asks it once a request was refused as one of SQS, so that SQS's requests pay nothing:
clients sign these for the service `monitoring`. A user needs cloudwatch:ACTION, and sees the queues
of its account and region.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import msgspec
import structlog
from typing_extensions import override

from auth.auth_errors import AuthError
from auth.caller import Caller
from cluster.catalog.queue_view import QueueView
from sqs_api.admin.every_host import EveryHost
from sqs_api.admin.queue_samples import QueueSamples
from sqs_api.cloudwatch.history import HISTORY_CHECK_S, History
from sqs_api.cloudwatch.metric_actions import (
    Found,
    Reader,
    Wanted,
    get_metric_data,
    get_metric_statistics,
    list_metrics,
)
from sqs_api.cloudwatch.metric_charts import Charts
from sqs_api.cloudwatch.metric_statistics import Datapoint, Window, datapoints
from sqs_api.cloudwatch.metric_table import SENT, SIZE
from sqs_api.cloudwatch.recorder import Recorder
from sqs_api.cloudwatch.requests import (
    REQUESTS,
    GetMetricData,
    GetMetricStatistics,
    MonitoringRefusal,
    MonitoringRequest,
    read_request,
)
from sqs_api.cloudwatch.series import Points
from sqs_api.cloudwatch.wires import (
    BODY_BYTES_MAX,
    Members,
    Protocol,
    Written,
    protocol_of,
    read_action,
    write_refusal,
    write_result,
)
from sqs_api.gateway.access import Access, Asker
from sqs_api.gateway.client import Authenticate
from sqs_api.gateway.other_services import OtherAnswer, OtherRequest, OtherService
from sqs_api.parts import Feature
from sqs_api.periodic import Every
from visibility.contract.actions import Action, AnsweredBy
from visibility.contract.errors import InternalError

_ACTIONS = {name: Action(request, None, AnsweredBy.BOTH, ()) for name, request in REQUESTS.items()}
_POINTS = "cloudwatch:points"
_NAMES = "cloudwatch:names"

SERVICE = "monitoring"
"""The service that clients sign for."""


class _WindowAsked(msgspec.Struct, array_like=True):
    """From one minute to before another: the metrics of each queue."""

    begin: int
    end: int
    with_hours: bool
    metrics: dict[str, list[str]]


class _PointsAsked(msgspec.Struct, array_like=True):
    account: str
    region: str
    windows: list[_WindowAsked]


class _NamesAsked(msgspec.Struct, array_like=True):
    account: str
    region: str
    since: int


_PointsHeard = list[dict[str, dict[str, Points]]]
"""For each window the points by queue and metric."""
_decode_points = msgspec.msgpack.Decoder(_PointsHeard).decode
_decode_names = msgspec.msgpack.Decoder(list[str]).decode


class Monitoring(OtherService):
    """Answers the calls."""

    def __init__(
        self,
        queues: QueueView,
        samples: QueueSamples,
        hosts: EveryHost,
        authenticate: Authenticate,
        access: Access,
        wall_s: Callable[[], float],
        queues_max: int,
        recorder: Recorder | None,
    ) -> None:
        """`queues_max`: number of queues with a history in memory; a `recorder` stores that of
        all."""
        self._history = History(queues, samples, wall_s, queues_max, recorder)
        self._recorder = recorder
        self.charts = Charts(self._history, recorder, hosts)
        self._hosts = hosts
        self._authenticate = authenticate
        self._access = access
        self._wall_s = wall_s
        self._log = structlog.get_logger("monitoring")
        hosts.serve(_POINTS, self._points_here)
        hosts.serve(_NAMES, self._names_here)
        self.feature = Feature(
            services=(self,), periodic=(Every(HISTORY_CHECK_S, self._history.look),)
        )

    async def stop(self) -> None:
        """Store what was measured up to now."""
        if self._recorder is not None:
            await self._history.stop()
            await self._recorder.stop()

    def reader(self, account: str, region: str) -> HistoryReader:
        """Reads the queues of an account in a region."""
        return HistoryReader(self._history, self._hosts, account, region)

    @override
    def answer(self, request: OtherRequest) -> Awaitable[OtherAnswer] | None:
        protocol = protocol_of(request.target, request.headers, request.body)
        return None if protocol is None else self._answered(protocol, request)

    async def _answered(self, protocol: Protocol, request: OtherRequest) -> OtherAnswer:
        action, code, caller, is_denied = "", None, None, False
        try:
            caller = self._caller(request)
            action, read = read_action(protocol, request.target, request.headers, request.body)
            written = await self._answer(protocol, action, read, request, caller)
        except (MonitoringRefusal, AuthError) as refusal:
            written = write_refusal(protocol, refusal, request.request_id)
            code, is_denied = refusal.code, isinstance(refusal, AuthError)
        except Exception:
            self._log.exception("request_failed", request_id=request.request_id)
            written = write_refusal(protocol, InternalError(), request.request_id)
            code = InternalError.code
        return OtherAnswer(
            _ACTIONS.get(action),
            written.status,
            written.content_type,
            written.body,
            written.headers,
            code,
            is_denied,
            caller,
        )

    def _caller(self, request: OtherRequest) -> Caller:
        """The signer, established before anything is read. Raises AuthError, MonitoringRefusal."""
        method, target, headers, body, *_ = request
        caller = self._authenticate(method, target, headers, body, self._wall_s())
        if len(body) > BODY_BYTES_MAX:
            text = f"The request is larger than {BODY_BYTES_MAX} bytes."
            raise MonitoringRefusal("RequestEntityTooLarge", text, status=413)
        return caller

    async def _answer(
        self,
        protocol: Protocol,
        action: str,
        read: Callable[[], object],
        request: OtherRequest,
        caller: Caller,
    ) -> Written:
        if action not in REQUESTS:
            text = f"The action {action[:100]} is not valid for this web service."
            raise MonitoringRefusal("InvalidAction", text, "UnknownOperationException")
        asker = Asker(caller, request.sender, request.headers)
        self._access.administer(f"cloudwatch:{action}", asker, caller.account)
        asked = read_request(action, read(), from_text=protocol is Protocol.QUERY)
        result = await self._result(asked, self.reader(caller.account, caller.region))
        return write_result(protocol, action, result, request.request_id)

    async def _result(self, asked: MonitoringRequest, reader: HistoryReader) -> Members:
        if isinstance(asked, GetMetricData):
            return await get_metric_data(asked, reader)
        if isinstance(asked, GetMetricStatistics):
            return await get_metric_statistics(asked, reader)
        return await list_metrics(asked, reader)

    # -- this host's part --------------------------------------------------------------------------

    async def _points_here(self, body: bytes) -> bytes:
        asked = msgspec.msgpack.decode(body, type=_PointsAsked)
        answer: _PointsHeard = []
        for window in asked.windows:
            wanted = {
                (asked.account, asked.region, name): metrics
                for name, metrics in window.metrics.items()
            }
            found = await self._history.points(
                wanted, window.begin, window.end, with_hours=window.with_hours
            )
            answer.append({name[2]: points for name, points in found.items()})
        return msgspec.msgpack.encode(answer)

    async def _names_here(self, body: bytes) -> bytes:
        asked = msgspec.msgpack.decode(body, type=_NamesAsked)
        names = self._history.names(asked.account, asked.region, asked.since)
        return msgspec.msgpack.encode(sorted(names))


class HistoryReader(Reader):
    """Reads the queues of an account in a region, on all hosts; see `metric_actions.Reader`."""

    def __init__(self, history: History, hosts: EveryHost, account: str, region: str) -> None:
        self._history = history
        self._hosts = hosts
        self._account = account
        self._region = region

    @override
    async def datapoints(self, wanted: Iterable[Wanted]) -> Found:
        by_window: dict[Window, list[Wanted]] = {}
        for each in wanted:
            by_window.setdefault(each.window, []).append(each)
        windows = [
            _WindowAsked(window.begin, window.end, window.with_hours, _metrics(of_window))
            for window, of_window in by_window.items()
        ]
        asked = _PointsAsked(self._account, self._region, windows)
        heard = await self._hosts.ask(_POINTS, msgspec.msgpack.encode(asked))
        parts = [_decode_points(part) for part in heard.parts]
        found: dict[Wanted, dict[int, Datapoint]] = {}
        for place, (window, of_window) in enumerate(by_window.items()):
            for each in of_window:
                of_queue = [part[place].get(each.queue, {}) for part in parts]
                found[each] = datapoints(each.metric, of_queue, window, self._history.minute)
                await asyncio.sleep(0)
        return Found(found, not heard.missing, bool(heard.late))

    @override
    async def names(self, within_s: float) -> list[str]:
        since = self._history.minute - int(within_s) // 60
        asked = _NamesAsked(self._account, self._region, since)
        heard = await self._hosts.ask(_NAMES, msgspec.msgpack.encode(asked))
        return sorted({name for part in heard.parts for name in _decode_names(part)})


def _metrics(wanted: Iterable[Wanted]) -> dict[str, list[str]]:
    """The metrics of each queue, with those that others are computed with."""
    found: dict[str, set[str]] = {}
    for each in wanted:
        needed = {each.metric, SENT} if each.metric == SIZE else {each.metric}
        found.setdefault(each.queue, set()).update(needed)
    return {name: sorted(metrics) for name, metrics in found.items()}
