"""Spans: one from the send to the receive of each message that carries a trace, as a child of the
sender's span.

Each receive makes a span, also from a dead-letter queue or after a redrive; all spans of a message
begin at its send. Names follow OpenTelemetry's conventions
for messaging; the form is that of OTLP in JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqs_api.traces.context import read_trace
from visibility.content.content import trace_of
from visibility.contract.model import QueueDefinition
from visibility.contract.stored_message import Lease, StoredMessage

_CONSUMER = 5
"""SPAN_KIND_CONSUMER."""
_NANOS = 1_000_000

Span = dict[str, Any]


class Spans:
    """Makes spans, on the event loop's thread."""

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
