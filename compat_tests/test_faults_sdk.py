"""Traffic through boto3: the same bytes, its retries, and its failures."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from compat_tests.benchmarks.bench_wire import Endpoint, Refused
from compat_tests.facade import Credentials
from compat_tests.faults import retrying_caller
from compat_tests.faults.drain import drain
from compat_tests.faults.fault_history import (
    Delivery,
    Failure,
    History,
    Outage,
    Outcome,
    Queue,
    Removal,
)
from compat_tests.faults.retrying_caller import Caller, Letter, Received, Reply, caller
from compat_tests.faults.run import endpoint_of
from compat_tests.faults.sdk import SdkConnection, protocols
from compat_tests.node_process import NodeProcess

KEY = Credentials("AKIAIOSFODNN7EXAMPLE", "secret", "us-east-1")


class Server(ThreadingHTTPServer):
    """Answers with one status after the other, and then with the last one."""

    def __init__(self, *statuses: int) -> None:
        super().__init__(("127.0.0.1", 0), _Page)
        self.statuses = list(statuses)
        self.asked = 0
        self.body = b'{"QueueUrls": []}'
        self.refusal = b'{"__type": "com.amazonaws#Broken"}'


class _Page(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        statuses = self.server.statuses
        status = statuses[min(self.server.asked, len(statuses) - 1)]
        self.server.asked += 1
        body = self.server.body if status == 200 else self.server.refusal
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


@contextmanager
def serving(*statuses: int) -> Iterator[tuple[Server, Endpoint]]:
    server = Server(*statuses)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        yield server, Endpoint("fake", url, KEY, None, by_sdk=True)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def test_retries_are_counted() -> None:
    with serving(503, 200) as (server, endpoint):
        connection = SdkConnection(endpoint)
        answer = await connection.call("ListQueues", b"{}")

    assert json.loads(answer) == {"QueueUrls": []}
    assert (connection.retries, server.asked) == (1, 2)


@pytest.mark.parametrize(("seconds", "unknown"), [(1.2, 0), (3.0, 1)])
async def test_an_empty_answer_after_a_failover_may_hide_a_receive(
    seconds: float, unknown: int
) -> None:
    class Late(Caller):
        async def call(self, action: str, expected: str | None = None, **members: Any) -> Reply:
            return Reply(Outcome.DONE, {}, 10.0, 10.0 + seconds)

    history = History()
    endpoint = Endpoint("fake", "http://127.0.0.1:1", KEY, None, by_sdk=True)

    received = await Late(endpoint, history).receive(Queue("q", "u"), 1)

    assert received == []
    assert history.unknown_receives["q"] == unknown


async def test_a_call_that_fails_in_spite_of_them_is_an_error_of_the_service() -> None:
    with serving(500) as (server, endpoint):
        connection = SdkConnection(endpoint)
        with pytest.raises(Refused, match=r"^500 "):
            await connection.call("ListQueues", b"{}")

    assert server.asked == connection.retries + 1 > 2


@pytest.mark.parametrize(("away", "faults"), [("near", 1), ("far", 0)])
async def test_only_calls_on_queues_of_a_stopped_cluster_may_fail(away: str, faults: int) -> None:
    history = History(outages=[Outage(frozenset({away}), 0.0)])
    handle = base64.b64encode(b'{"sourceArn": "arn:aws:sqs:r:1:far"}').decode()
    with serving(500) as (_, endpoint):
        async with caller(endpoint, history) as calls:
            await calls.call("PurgeQueue", QueueUrl=f"{endpoint.url}/1/far")
            assert len(history.faults) == faults
            await calls.call("CancelMessageMoveTask", TaskHandle=handle)
            await calls.call("ListMessageMoveTasks", SourceArn="arn:aws:sqs:r:1:far")
            assert len(history.faults) == 3 * faults
            history.outages[0].ended = 0.0
            await calls.call("PurgeQueue", QueueUrl=f"{endpoint.url}/1/far")

    assert len(history.faults) == 3 * faults + 1
    failed = {Failure.OUTAGE: 3 - 3 * faults, Failure.FAULT: 3 * faults + 1}
    assert history.failed == Counter(failed)
    if not faults:
        told = "4 calls, of which 4 failed: 3 on queues of a cluster that stood still, 1 5xx"
        assert history.summary().endswith(told)


@pytest.mark.parametrize(
    ("statuses", "failure", "refusals"),
    [
        ((400,), Failure.EXPECTED, 0),
        ((404,), Failure.REFUSED, 1),
        ((500, 404), Failure.REPEATED, 0),
    ],
)
async def test_refusals_are_counted_by_what_they_mean(
    statuses: tuple[int, ...], failure: Failure, refusals: int
) -> None:
    history = History()
    with serving(*statuses) as (_, endpoint):
        async with caller(endpoint, history) as calls:
            await calls.call("PurgeQueue", ": 400 ", QueueUrl=f"{endpoint.url}/1/q")

    assert history.failed == {failure: 1}
    assert len(history.refusals) == refusals


@asynccontextmanager
async def not_answering(*, closes: bool) -> AsyncIterator[Endpoint]:
    """A server that closes each connection at its first request, or never answers."""
    ending, handlers = asyncio.Event(), set[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(1)
            if not closes:
                await ending.wait()
        finally:
            writer.close()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield Endpoint("fake", f"http://127.0.0.1:{port}", KEY, None)
    finally:
        ending.set()
        server.close()
        await server.wait_closed()
        await asyncio.gather(*handlers)


@pytest.mark.parametrize(("closes", "failure"), [(True, Failure.CLOSED), (False, Failure.HUNG)])
async def test_calls_that_hang_are_counted_apart_from_connections_that_close(
    monkeypatch: pytest.MonkeyPatch, *, closes: bool, failure: Failure
) -> None:
    history = History()
    monkeypatch.setattr(retrying_caller, "CALL_S", 40.0 if closes else 0.05)
    async with not_answering(closes=closes) as endpoint, caller(endpoint, history) as calls:
        reply = await calls.call("ListQueues")
    assert reply.outcome is Outcome.UNKNOWN
    assert history.failed == {failure: 1}

    async with caller(endpoint, history) as calls:  # nobody listens any more
        await calls.call("ListQueues")
    assert history.failed == Counter({Failure.CLOSED: 1}) + Counter({failure: 1})


async def test_callers_take_the_protocols_in_turn() -> None:
    taken = []

    class Kept(Caller):
        async def _ask(self, action: str, body: bytes) -> bytes:
            taken.append(self._protocol)
            return b""

    history = History()
    endpoint = Endpoint("fake", "", KEY, None, by_sdk=True, protocols=("json", "query"))
    for _ in range(3):
        await Kept(endpoint, history).call("ListQueues")

    assert taken == ["json", "query", "json"]


async def test_a_send_that_was_repeated_is_noted() -> None:
    history = History()
    letter = Letter("plain/1", "plain/1|x", {})
    with serving(503, 200) as (_, endpoint):
        async with caller(endpoint, history) as calls:
            await calls.send(Queue("plain", endpoint.url), [letter])
            await calls.send(Queue("order.fifo", endpoint.url), [letter])

    assert history.repeated == {"plain/1"}
    assert not history.faults


async def test_a_refusal_after_a_retry_may_be_for_what_the_first_attempt_did() -> None:
    history = History()
    with serving(503, 400) as (_, endpoint):
        async with caller(endpoint, history) as calls:
            retried = await calls.call("DeleteQueue", QueueUrl=endpoint.url)
            at_once = await calls.call("DeleteQueue", "Broken", QueueUrl=endpoint.url)

    assert (retried.outcome, at_once.outcome) == (Outcome.UNKNOWN, Outcome.REFUSED)


async def test_so_may_be_the_refusal_of_an_entry() -> None:
    history = History()
    delivery = Delivery("plain/1", "plain", "", "id", 1, 0.0, 1.0, 30.0)
    received = [Received(delivery, "handle")]
    with serving(503, 200) as (server, endpoint):
        server.body = (
            b'{"Failed": [{"Id": "0", "SenderFault": true, "Code": "MessageNotInflight"}]}'
        )
        async with caller(endpoint, history) as calls:
            for _ in range(2):
                await calls.change(Queue("plain", endpoint.url), received, 0)

    outcomes = [change.outcome for change in history.changes]
    assert outcomes == [Outcome.UNKNOWN, Outcome.REFUSED]


def test_content_is_the_same_as_through_the_small_client(node: NodeProcess) -> None:
    data = base64.b64encode(b"\x00\xff").decode()
    attributes = {"Bytes": {"DataType": "Binary", "BinaryValue": data}}
    digests = []

    async def exchange(endpoint: Endpoint) -> None:
        history = History()
        async with caller(endpoint, history) as calls:
            name = f"sdk-{endpoint.by_sdk}-{endpoint.protocols[0]}"
            made = await calls.call("CreateQueue", QueueName=name)
            queue = Queue("sdk", made.answer["QueueUrl"])
            assert await calls.send(queue, [Letter("sdk/1", "sdk/1|x", attributes)])
            assert await calls.receive(queue, 30, wait_s=5)
        digests.extend([history.sends[0].content, history.deliveries[0].content])

    of_node = endpoint_of(node)
    asyncio.run(exchange(of_node))
    for protocol in protocols():
        asyncio.run(exchange(of_node._replace(by_sdk=True, protocols=(protocol,))))

    assert len(set(digests)) == 1


@pytest.mark.parametrize("was_deleted", [False, True])
async def test_a_queue_that_a_host_denies_is_empty_only_if_it_was_deleted(
    *, was_deleted: bool
) -> None:
    history = History()
    with serving(400, 200) as (server, endpoint):
        server.refusal = b'{"__type": "x#QueueDoesNotExist", "message": "It does not exist."}'
        counters = ("", "NotVisible", "Delayed")
        zeros = {f"ApproximateNumberOfMessages{each}": "0" for each in counters}
        server.body = json.dumps({"Attributes": zeros}).encode()
        history.queues["q"] = Queue("q", f"{endpoint.url}/1/q")
        if was_deleted:
            history.removals.append(Removal("q", 0.0, 1.0, Outcome.DONE))

        assert await drain(endpoint, history, patience_s=0.0)

    assert (server.asked > 1) is not was_deleted
    assert bool(history.refusals) is not was_deleted
