"""Metrics of the listener."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from typing_extensions import override

from sqs_api.gateway.metrics import Source
from sqs_api.gateway.request_memory import RequestMemory
from sqs_api.http.http_limits import ListenerCounters
from sqs_api.http.tls import Tls

_Reason = TypeVar("_Reason", bound=str)


class ListenerMetrics(Source):
    """A source of `Metrics`."""

    def __init__(
        self,
        counters: ListenerCounters,
        memory: RequestMemory,
        tls: Tls | None,
        polls_not_waited: Callable[[], int],
        *,
        wall_s: Callable[[], float],
    ) -> None:
        self._counters = counters
        self._memory = memory
        self._tls = tls
        self._polls_not_waited = polls_not_waited
        self._wall_s = wall_s

    @override
    async def read(self) -> None:
        """These are all in memory."""

    @override
    def collect(self) -> Iterator[Metric]:
        counters = self._counters
        yield _gauge("connections", "Open connections.", counters.connections)
        yield _gauge(
            "request_memory_bytes",
            "Bytes of large requests that are not answered, and of answers that are not read.",
            self._memory.held_bytes,
        )
        yield _gauge(
            "answer_memory_bytes",
            "The part of the request memory that answers hold.",
            self._memory.answer_bytes,
        )
        yield _count("connections_accepted", "Connections that came to be.", counters.accepted)
        yield _counts("refused", "Connections and requests turned away.", counters.refused)
        yield _counts("timeouts", "Connections that ended for being late.", counters.timeouts)
        yield _counts("too_large", "Requests refused for their size.", counters.too_large)
        yield _count(
            "polls_not_waited",
            "Long polls answered at once, since too many wait.",
            self._polls_not_waited(),
        )
        if self._tls is not None:
            yield _gauge(
                "tls_certificate_expires_seconds",
                "When the certificate in use expires, since 1970.",
                self._tls.expires_at_s,
            )
            yield _gauge(
                "tls_certificate_expired",
                "1 once the certificate in use has expired: clients refuse it.",
                self._wall_s() >= self._tls.expires_at_s,
            )
            yield _gauge(
                "tls_certificate_stale",
                "1 while the files on disk cannot be used and older ones are.",
                self._tls.is_stale,
            )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"holdfast_{name}", text, value=float(value))


def _count(name: str, text: str, value: int) -> Metric:
    return CounterMetricFamily(f"holdfast_{name}", text, value=float(value))


def _counts(name: str, text: str, values: Mapping[_Reason, int]) -> Metric:
    family = CounterMetricFamily(f"holdfast_listener_{name}", text, labels=("reason",))
    for reason, count in values.items():
        family.add_metric((str(reason),), count)
    return family
