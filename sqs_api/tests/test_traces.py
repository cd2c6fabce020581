"""Spans from send to receive, as a collector gets them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from structlog.testing import capture_logs

from sqs_api.tests.operator_client import make_dead_letters
from sqs_api.tests.served import Served, serving
from sqs_api.traces.span_exporter import SpanExporter
from sqs_api.traces.spans import TraceContext, read_trace

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
XRAY = f"Root=1-{TRACE[:8]}-{TRACE[8:]};Parent={SPAN};Sampled=1"


@pytest.mark.parametrize(
    ("traceparent", "trace_header", "found"),
    [
        (PARENT, None, True),
        (None, XRAY, True),
        (None, f"Self=x; {XRAY};Lineage=a:b", True),
        ("garbage", XRAY, True),
        (f"01-{TRACE}-{SPAN}-03-more", None, True),
        (PARENT[:-1] + "0", None, False),
        (None, XRAY.replace("Sampled=1", "Sampled=0"), False),
        (None, XRAY.replace(";Sampled=1", ""), False),
        (f"00-{'0' * 32}-{SPAN}-01", None, False),
        (f"00-{TRACE}-{'0' * 16}-01", None, False),
        (f"ff-{TRACE}-{SPAN}-01", None, False),
        (PARENT.upper(), None, False),
        (None, "Root=1-1-2;Parent=x;Sampled=1", False),
        (None, "", False),
        (None, None, False),
    ],
)
def test_the_senders_span_is_read(
    traceparent: str | None, trace_header: str | None, *, found: bool
) -> None:
    expected = TraceContext(TRACE, SPAN) if found else None
    assert read_trace(traceparent, trace_header) == expected


class Collector:
    """Takes spans at /v1/traces, as an OpenTelemetry collector does."""

    def __init__(self) -> None:
        self.resources: list[dict[str, Any]] = []
        self.spans: list[dict[str, Any]] = []
        self.status = 200
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        assert request.content_type == "application/json"
        content = await request.json()
        if self.status == 200:
            for resource in content["resourceSpans"]:
                self.resources.append(resource["resource"])
                for scope in resource["scopeSpans"]:
                    self.spans += scope["spans"]
        return web.json_response({}, status=self.status)


@pytest_asyncio.fixture
async def collector() -> AsyncIterator[Collector]:
    taking = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", taking.take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    taking.url = f"http://{host}:{port}/"
    yield taking
    await runner.cleanup()


def attributes(thing: dict[str, Any]) -> dict[str, str]:
    return {each["key"]: next(iter(each["value"].values())) for each in thing["attributes"]}


async def send_traced(served: Served, queue: str, **given: Any) -> str:
    sent = await served.call("SendMessage", QueueUrl=queue, MessageBody="x", **given)
    return str(sent["MessageId"])


async def test_a_span_from_send_to_receive_reaches_the_collector(
    data: Path, collector: Collector
) -> None:
    text = {"DataType": "String", "StringValue": PARENT}
    header = {"AWSTraceHeader": {"DataType": "String", "StringValue": XRAY}}
    async with serving(data, otlp_endpoint=collector.url) as served:
        await served.call("CreateQueue", QueueName="q")
        ids = [
            await send_traced(served, "q", MessageAttributes={"traceparent": text}),
            await send_traced(served, "q", MessageSystemAttributes=header),
        ]
        await send_traced(served, "q")
        await served.call("ReceiveMessage", QueueUrl="q", MaxNumberOfMessages=10)
    # A stop exports what is left.

    assert [attributes(span)["messaging.message.id"] for span in collector.spans] == ids
    for span in collector.spans:
        assert (span["traceId"], span["parentSpanId"], span["kind"]) == (TRACE, SPAN, 5)
        assert len(span["spanId"]) == 16
        assert span["name"] == "receive q"
        assert 0 < int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
        assert attributes(span)["messaging.system"] == "aws_sqs"
        assert attributes(span)["holdfast.receive_count"] == "1"
    assert len({span["spanId"] for span in collector.spans}) == 2
    assert attributes(collector.resources[0])["service.name"] == "holdfast"


async def test_a_trace_goes_on_in_the_dead_letter_queue_and_after_a_redrive(
    data: Path, collector: Collector
) -> None:
    text = {"DataType": "String", "StringValue": PARENT}
    async with serving(data, otlp_endpoint=collector.url) as served:
        await make_dead_letters(served)
        await send_traced(served, "source", MessageAttributes={"traceparent": text})
        for _ in range(2):
            await served.call("ReceiveMessage", QueueUrl="source")
        await served.call("ReceiveMessage", QueueUrl="dead", VisibilityTimeout=0)
        arn = "arn:aws:sqs:us-east-1:000000000000:dead"
        await served.call("StartMessageMoveTask", SourceArn=arn)
        await served.call("ReceiveMessage", QueueUrl="source", WaitTimeSeconds=20)

    names = [span["name"] for span in collector.spans]
    assert names == ["receive source", "receive dead", "receive source"]
    assert {span["traceId"] for span in collector.spans} == {TRACE}
    source = "arn:aws:sqs:us-east-1:000000000000:source"
    assert attributes(collector.spans[1])["holdfast.dead_letter_source"] == source


async def test_without_a_collector_nothing_is_traced(data: Path) -> None:
    async with serving(data) as served:
        assert not any(feature.on_opened for feature in served.node.worker.features)


async def test_spans_wait_for_a_collector_that_is_away_and_are_bounded() -> None:
    batches: list[list[str]] = []
    statuses = [503, 200]

    async def post(body: bytes, headers: Mapping[str, str]) -> int:
        spans = json.loads(body)["resourceSpans"][0]["scopeSpans"][0]["spans"]
        batches.append([span["spanId"] for span in spans])
        return statuses.pop(0) if statuses else 200

    exporter = SpanExporter(post, "0", "a")
    for number in range(5000):
        exporter.add({"spanId": str(number)})
    await exporter.export()
    assert [len(batch) for batch in batches] == [512]
    exporter.add({"spanId": "last"})
    await exporter.export()

    latest = [*map(str, range(5000 - 4095, 5000)), "last"]
    assert [span for batch in batches[1:] for span in batch] == latest
    assert max(map(len, batches)) == 512


async def test_the_oldest_spans_are_dropped_also_if_more_come_during_a_failed_export() -> None:
    sent: list[str] = []

    async def post(body: bytes, headers: Mapping[str, str]) -> int:
        if not sent:
            sent.append("the first try")
            for number in range(4096, 4196):
                exporter.add({"spanId": str(number)})
            return 503
        spans = json.loads(body)["resourceSpans"][0]["scopeSpans"][0]["spans"]
        sent.extend(span["spanId"] for span in spans)
        return 200

    exporter = SpanExporter(post, "0", "a")
    for number in range(4096):
        exporter.add({"spanId": str(number)})
    await exporter.export()
    with capture_logs() as logs:
        await exporter.export()

    assert sent[1:] == [*map(str, range(100, 4196))]
    assert [line["dropped"] for line in logs] == [100]
