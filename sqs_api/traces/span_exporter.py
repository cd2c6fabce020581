"""SpanExporter: sends spans to a collector by OTLP over HTTP, in JSON.

Bounded and off the path of requests: what does not fit, or is not taken in time, is dropped.
"""

from __future__ import annotations

from collections import deque

import aiohttp
import msgspec
import structlog

from sqs_api.parts import Feature, Process
from sqs_api.periodic import Every
from sqs_api.settings.config import installed_version
from sqs_api.traces.spans import Span, Spans
from sqs_api.webhook.webhook_delivery import HttpPost, Post

TRACES_PATH = "/v1/traces"
EXPORT_S = 2.0
"""Interval of exports."""
ANSWER_S = 3.0
"""Time for the collector to answer; a stop waits as long at most."""
_SPANS_MAX = 4096
_BATCH_MAX = 512
_HEADERS = {"content-type": "application/json"}


class SpanExporter:
    """Sends to one collector."""

    def __init__(self, post: Post, version: str, host: str) -> None:
        """`host`: the name of this host of a cluster, empty of a single one."""
        self._post = post
        self._spans: deque[Span] = deque()
        self._dropped = 0
        self._is_failing = False
        texts = {"service.name": "holdfast", "service.version": version}
        if host:
            texts["service.instance.id"] = host
        self._resource = {
            "attributes": [
                {"key": key, "value": {"stringValue": text}} for key, text in texts.items()
            ]
        }
        self._log = structlog.get_logger("traces")

    def add(self, span: Span) -> None:
        """Keep a span for the next export; drop the oldest above the limit."""
        if len(self._spans) >= _SPANS_MAX:
            self._spans.popleft()
            self._dropped += 1
        self._spans.append(span)

    async def export(self) -> None:
        """Send all spans. After a failure the next export tries again."""
        while self._spans:
            batch = [self._spans.popleft() for _ in range(min(_BATCH_MAX, len(self._spans)))]
            reason = await self._send(batch)
            if reason:
                dropped = max(0, len(self._spans) + len(batch) - _SPANS_MAX)
                self._dropped += dropped
                self._spans.extendleft(reversed(batch[dropped:]))
                if not self._is_failing:
                    self._log.warning("spans_not_exported", reason=reason)
                self._is_failing = True
                return
            if self._is_failing:
                self._is_failing = False
                self._log.info("spans_exported_again", dropped=self._dropped)

    async def _send(self, batch: list[Span]) -> str:
        """The reason of a failure; empty if the collector took the spans."""
        scope = {"scope": {"name": "holdfast"}, "spans": batch}
        content = {"resourceSpans": [{"resource": self._resource, "scopeSpans": [scope]}]}
        try:
            status = await self._post(msgspec.json.encode(content), _HEADERS)
        except (aiohttp.ClientError, OSError) as error:
            return str(error) or type(error).__name__
        return "" if 200 <= status < 300 else f"status {status}"


def tracing(process: Process) -> Feature:
    """Export spans of messages, if there is a collector; a stop exports what is left."""
    settings, _, entropy, opened = process
    if settings.otlp_endpoint is None:
        return Feature()
    post = HttpPost(settings.otlp_endpoint.rstrip("/") + TRACES_PATH, ANSWER_S)
    exporter = SpanExporter(post, installed_version(), settings.host_name or "")
    opened.push_async_callback(exporter.export)
    return Feature(
        on_opened=(Spans(exporter.add, entropy.bits128).received,),
        periodic=(Every(EXPORT_S, exporter.export),),
    )
