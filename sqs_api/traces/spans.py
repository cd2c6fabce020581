"""Spans: one from the send to the receive of each message that carries a trace, as a child of the
sender's span.

Each receive makes a span, also from a dead-letter queue or after a redrive; all spans of a message
begin at its send. The trace is the message attribute `traceparent` (W3C Trace Context), or
AWSTraceHeader (AWS X-Ray), whose Root has the 32 digits of the trace id behind its version. Names
follow OpenTelemetry's conventions for messaging; the form is that of OTLP in JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from visibility.content.content import trace_of
from visibility.contract.model import QueueDefinition
from visibility.contract.stored_message import Lease, StoredMessage

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_ROOT = re.compile(r"1-([0-9a-f]{8})-([0-9a-f]{24})")
_PARENT = re.compile(r"[0-9a-f]{16}")
_SAMPLED_FLAG = 1
_CONSUMER = 5
"""SPAN_KIND_CONSUMER."""
_NANOS = 1_000_000

Span = dict[str, Any]


class Spans:
    """Makes spans."""

    def __init__(self, add: Callable[[Span], None], bits128: Callable[[], int]) -> None:
        """Pass each span to `add`."""
        self._add = add
        self._bits128 = bits128

    def received(
        self, queue: QueueDefinition, lease: Lease, message: StoredMessage, data: bytes
    ) -> None:
        """Make the span of a message that is received; `data` is its content."""
        context = read_trace(*trace_of(data))
        if context is None:
            return
        self._add(
            {
                "traceId": context.trace_id,
                "spanId": f"{self._bits128() >> 64 or 1:016x}",
                "parentSpanId": context.span_id,
                "name": f"receive {queue.name}",
                "kind": _CONSUMER,
                "startTimeUnixNano": str(message.sent_at_ms * _NANOS),
                "endTimeUnixNano": str(max(message.sent_at_ms, lease.received_at_ms) * _NANOS),
                "attributes": _attributes(queue, lease, message),
            }
        )


def _attributes(
    queue: QueueDefinition, lease: Lease, message: StoredMessage
) -> list[dict[str, Any]]:
    texts = {
        "messaging.system": "aws_sqs",
        "messaging.operation.type": "receive",
        "messaging.operation.name": "ReceiveMessage",
        "messaging.destination.name": queue.name,
        "messaging.message.id": message.message_id,
        "cloud.account.id": queue.account,
        "cloud.region": queue.region,
    }
    if message.dead_letter_source_arn is not None:
        texts["holdfast.dead_letter_source"] = message.dead_letter_source_arn
    found: list[dict[str, Any]] = [
        {"key": key, "value": {"stringValue": text}} for key, text in texts.items()
    ]
    count = {"intValue": str(lease.receive_count)}
    return [*found, {"key": "holdfast.receive_count", "value": count}]


class TraceContext(NamedTuple):
    """The span of the sender; ids are hexadecimal."""

    trace_id: str
    span_id: str


def read_trace(traceparent: str | None, trace_header: str | None) -> TraceContext | None:
    """The sender's span; None without one, or if the sender does not sample it."""
    return _from_traceparent(traceparent or "") or _from_trace_header(trace_header or "")


def _from_traceparent(text: str) -> TraceContext | None:
    found = _TRACEPARENT.fullmatch(text.strip())
    if found is None or not int(found[3], 16) & _SAMPLED_FLAG:
        return None
    return _valid(found[1], found[2])


def _from_trace_header(text: str) -> TraceContext | None:
    parts = dict(part.strip().partition("=")[::2] for part in text.split(";"))
    root, parent = _ROOT.fullmatch(parts.get("Root", "")), parts.get("Parent", "")
    if root is None or not _PARENT.fullmatch(parent) or parts.get("Sampled") != "1":
        return None
    return _valid(root[1] + root[2], parent)


def _valid(trace_id: str, span_id: str) -> TraceContext | None:
    """None for an id of zeros, which names nothing."""
    return TraceContext(trace_id, span_id) if int(trace_id, 16) and int(span_id, 16) else None
