"""The benchmark's ratios, table and chart from made-up runs, and its client."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs
from xml.etree import ElementTree

import msgspec
import pytest

from compat_tests.benchmarks import elasticmq, goaws, query_wire, static_answer
from compat_tests.benchmarks.bench_results import write_results
from compat_tests.benchmarks.bench_wire import Endpoint, Refused, connect
from compat_tests.benchmarks.measurement import Measurement, measure
from compat_tests.benchmarks.report import CPU, FOLLOWER, Ratio, group, paired, table


def run(endpoint: str, cpu_us: float, **changed: float) -> Measurement:
    one = Measurement(
        scenario="send",
        connections=32,
        endpoint=endpoint,
        seconds=1.0,
        messages_per_second=1000.0,
        latency_of="SendMessage",
        p50_ms=1.0,
        p99_ms=2.0,
        cpu_us_per_message=cpu_us,
        follower_cpu_us_per_message=math.nan,
        resident_mib=90.0,
        client_busy=0.5,
        errors=0,
        duplicates=0,
        lost=0,
        actions={},
        complaints=[],
    )
    return msgspec.structs.replace(one, **changed)


def alternating(ours: list[float], theirs: list[float]) -> list[Measurement]:
    return [
        run(name, value)
        for pair in zip(ours, theirs, strict=True)
        for name, value in zip(("holdfast-fsync", "elasticmq"), pair, strict=True)
    ]


def test_a_ratio_is_taken_round_by_round() -> None:
    ours, theirs = group(alternating([10, 100, 40], [20, 400, 32]))
    assert paired(ours, theirs, CPU) == Ratio(0.5, 2, 3, 0.25, 1.25)


def test_the_cost_of_a_follower_is_compared_with_that_of_the_other_server() -> None:
    runs = alternating([10, 10, 10], [20, 20, 20])
    runs[::2] = [msgspec.structs.replace(one, follower_cpu_us_per_message=5) for one in runs[::2]]
    ours, theirs = group(runs)
    assert paired(ours, theirs, FOLLOWER) == Ratio(0.25, 3, 3, 0.25, 0.25)


def test_a_round_without_the_figure_does_not_count() -> None:
    ours, theirs = group(alternating([10, math.nan, 10], [math.nan, 5, 40]))
    assert paired(ours, theirs, CPU) == Ratio(0.25, 1, 1, 0.25, 0.25)
    nothing, too = group(alternating([math.nan], [math.nan]))
    assert math.isnan(paired(nothing, too, CPU).median)


def test_the_text_says_in_how_many_rounds_ours_was_lower() -> None:
    assert "0.50 (2 of 3)" in table(alternating([10, 100, 40], [20, 400, 30]))


def test_results_have_a_line_for_each_service_and_say_what_failed(tmp_path: Path) -> None:
    runs = [
        *alternating([10, 30], [20, 60]),
        run("moto", 5000, errors=3, lost=1),
        run("moto", 7000),
    ]
    write_results(tmp_path, runs, warm_up=60)
    text = (tmp_path / "RESULTS.md").read_text()
    assert "| SendMessage | 32 | holdfast-fsync | 20.0 | 1,000 | 1.00 | 2.00 |  |  |  |" in text
    elasticmqs = "| SendMessage | 32 | elasticmq | 40.0 | 1,000 | 1.00 | 2.00"
    assert f"{elasticmqs} | 0.50 | 0.50, 0.50 | 2 of 2 |" in text
    assert "- moto, SendMessage, 32 connections: 3 calls failed; messages lost" in text
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= 100


def test_the_chart_puts_services_in_the_order_of_their_cost(tmp_path: Path) -> None:
    write_results(tmp_path, [*alternating([10], [40]), run("moto", 900)], warm_up=60)
    chart = ElementTree.fromstring((tmp_path / "results.svg").read_text())
    place = {
        mark.findtext("{*}title", "").split(":")[0]: mark.get("transform", "")
        for mark in chart.iterfind("{*}g")
    }
    places = [
        float(place[name][len("translate(") :].split(",")[0])
        for name in ("holdfast-fsync", "elasticmq", "moto")
    ]
    assert places == sorted(set(places))


def test_without_maven_and_jar_elasticmq_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elasticmq, "JARS", tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("ELASTICMQ_JAR", raising=False)
    with pytest.raises(elasticmq.NotHere, match="neither mvn nor a jar"):
        elasticmq.command({})
    jar = tmp_path / "elasticmq.jar"
    monkeypatch.setenv("ELASTICMQ_JAR", str(jar))
    with pytest.raises(elasticmq.NotHere, match="names no file"):
        elasticmq.command({})
    jar.touch()
    assert str(jar) in elasticmq.command({"rest-sqs.bind-port": "1"})


def test_other_services_are_not_here_without_what_makes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(goaws, "FOLDER", tmp_path / "none")
    with pytest.raises(elasticmq.NotHere, match="no go"):
        goaws.command(tmp_path, 1)
    monkeypatch.setattr(static_answer, "FOLDER", tmp_path / "none")
    with pytest.raises(elasticmq.NotHere, match="not installed"):
        static_answer.command("granian-static", 1)


async def test_a_server_with_one_fixed_answer_is_asked_for_sends_only() -> None:
    asked: set[bytes] = set()
    body, writers = static_answer.BODY, []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while head := await reader.readuntil(b"\r\n\r\n"):
            asked.add(head.split(b"AmazonSQS.")[1].split(b"\r\n")[0])
            length = head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]
            await reader.readexactly(int(length))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    endpoint = Endpoint("granian-static", url, None, None, is_static=True)
    try:
        one = await measure("send", endpoint, 2, seconds=0.01)
    finally:
        server.close()
        for writer in writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
    assert one.correct, one.complaints
    assert asked == {b"SendMessage"}


def test_calls_and_answers_of_the_query_protocol_are_translated() -> None:
    entries = [{"Id": "1", "MessageBody": "a b"}, {"Id": "2", "MessageBody": "c"}]
    members = {"QueueUrl": "http://h/1/q", "Entries": entries, "Attributes": {"V": "6"}}
    form = parse_qs(query_wire.form_of("SendMessageBatch", msgspec.json.encode(members)).decode())
    assert {name: value for name, (value,) in form.items()} == {
        "Action": "SendMessageBatch",
        "Version": "2012-11-05",
        "QueueUrl": "http://h/1/q",
        "SendMessageBatchRequestEntry.1.Id": "1",
        "SendMessageBatchRequestEntry.1.MessageBody": "a b",
        "SendMessageBatchRequestEntry.2.Id": "2",
        "SendMessageBatchRequestEntry.2.MessageBody": "c",
        "Attribute.1.Name": "V",
        "Attribute.1.Value": "6",
    }
    message = "<Message><MessageId>m</MessageId><ReceiptHandle>h</ReceiptHandle><Body>b</Body>"
    sent = "<SendMessageBatchResultEntry> <Id>1</Id></SendMessageBatchResultEntry>"
    failed = "<BatchResultErrorEntry><Id>2</Id></BatchResultErrorEntry>"
    answer = f"<A><QueueUrl>u</QueueUrl>{message}</Message>{sent}{failed}</A>"
    assert msgspec.json.decode(query_wire.json_of(answer.encode())) == {
        "QueueUrl": "u",
        "MessageId": "m",
        "Messages": [{"ReceiptHandle": "h", "Body": "b"}],
        "Successful": [{"Id": "1"}],
        "Failed": [failed],
    }


async def test_the_client_reads_an_answer_in_chunks_in_any_pieces() -> None:
    head, body = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b'3\r\n{"a\r\n'
    answer = head + body + b'4\r\n": 1\r\n1\r\n}' + b"\r\n0\r\n\r\n"
    for cut in range(len(answer)):

        async def serve(
            reader: asyncio.StreamReader,
            writer: asyncio.StreamWriter,
            cut: int = cut,
        ) -> None:
            await reader.readuntil(b"\r\n\r\n{}")
            writer.write(answer[:cut])
            await writer.drain()
            await asyncio.sleep(0)
            writer.write(answer[cut:])
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        (connection,) = await connect(Endpoint("test", f"http://127.0.0.1:{port}", None, None), 1)
        try:
            assert await connection.call("ListQueues", b"{}") == b'{"a": 1}'
        finally:
            connection.close()
            server.close()


async def test_the_client_connects_again_after_an_answer_that_closes_and_only_then() -> None:
    served: list[bytes] = []

    async def answer_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(await reader.readuntil(b"\r\n\r\n{}"))
        said = b"Connection: close\r\n" if len(served) < 3 else b""
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n" + said + b"\r\n{}")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer_and_close, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    (connection,) = await connect(Endpoint("test", f"http://127.0.0.1:{port}", None, None), 1)
    try:
        for _ in range(3):
            assert await connection.call("ListQueues", b"{}") == b"{}"
        with pytest.raises((ConnectionError, Refused)):
            await connection.call("ListQueues", b"{}")
    finally:
        connection.close()
        server.close()
    assert not any(b"Authorization" in head for head in served)
