"""Services of a host with several workers: TLS, webhooks, traces and the archive do once what they
do once with one worker, wherever a connection landed."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from compat_tests.facade import eventually
from compat_tests.lake_files import rows
from compat_tests.made_certificates import Authority
from compat_tests.node_process import NodeProcess, run_command
from compat_tests.workers import worker_of

pytestmark = pytest.mark.slow

_CONNECTIONS = 12
"""That all land on one of two workers happens once in two thousand runs."""
_SECRET = "whsec_" + base64.b64encode(b"a key of twenty-four bytes").decode()
_TRACE = "0af7651916cd43dd8448eb211c80319c"


class _Receiver:
    """Takes webhooks and spans."""

    def __init__(self) -> None:
        self.announced: list[str] = []
        """The queues with dead letters."""
        self.spans: list[str] = []
        """The ids of the messages of spans."""
        receiver = self

        class Post(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path == "/v1/traces":
                    receiver.spans += _messages_of(content)
                else:
                    receiver.announced.append(content["data"]["name"])
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Post)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def _messages_of(content: Any) -> list[str]:
    spans = (
        span
        for resource in content["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    )
    return [
        each["value"]["stringValue"]
        for span in spans
        for each in span["attributes"]
        if each["key"] == "messaging.message.id"
    ]


class _Service:
    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.pair = self.authority.sign("first")
        self.receiver = _Receiver()
        self.lake = folder / "lake"
        self.node = NodeProcess(
            folder,
            *("--workers", "2", "--aws-waits", "off"),
            *("--tls-certificate", str(self.pair.certificate), "--tls-key", str(self.pair.key)),
            *("--webhook-url", self.receiver.url, "--otlp-endpoint", self.receiver.url),
            *("--lake", str(self.lake), "--archive-seal-s", "1", "--snapshot-every-s", "0"),
            variables={"HOLDFAST_WEBHOOK_SECRET": _SECRET},
        )
        self.node.start()

    def client(self) -> Any:
        """A client with a connection of its own."""
        credentials = self.node.credentials
        return boto3.client(
            "sqs",
            endpoint_url=self.node.url,
            region_name=credentials.region,
            aws_access_key_id=credentials.access_key_id,
            aws_secret_access_key=credentials.secret_access_key,
            verify=str(self.authority.file),
            config=Config(max_pool_connections=1),
        )


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Service]:
    made = _Service(tmp_path_factory.mktemp("services"))
    yield made
    made.node.close()
    made.receiver.server.shutdown()
    made.receiver.server.server_close()


@pytest.fixture(scope="module")
def clients(service: _Service) -> Iterator[list[Any]]:
    made = [service.client() for _ in range(_CONNECTIONS)]
    yield made
    for client in made:
        client.close()


def _queues(client: Any, name: str, **given: Any) -> list[str]:
    """A queue of each worker, as new ones go round."""
    return [client.create_queue(QueueName=f"{name}{n}", **given)["QueueUrl"] for n in range(2)]


def test_dead_letters_are_announced_once(service: _Service, clients: list[Any]) -> None:
    receiver = service.receiver
    for url in _queues(clients[0], "dead"):
        _make_dead_letter(clients, url)
    eventually(lambda: {"dead0", "dead1"} <= set(receiver.announced))
    _make_dead_letter(clients, clients[0].create_queue(QueueName="late")["QueueUrl"])
    eventually(lambda: "late" in receiver.announced)

    # A later look has found the others again.
    assert Counter(receiver.announced) == {"dead0": 1, "dead1": 1, "late": 1}


def _make_dead_letter(clients: list[Any], dead: str) -> None:
    answer = clients[1].get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])
    arn = answer["Attributes"]["QueueArn"]
    given = {
        "RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1}),
        "VisibilityTimeout": "0",
    }
    name = "source-of-" + arn.rpartition(":")[2]
    source = clients[2].create_queue(QueueName=name, Attributes=given)["QueueUrl"]
    clients[3].send_message(QueueUrl=source, MessageBody="x")
    for client in clients[4:6]:
        client.receive_message(QueueUrl=source)


def test_each_receive_has_one_span(service: _Service, clients: list[Any]) -> None:
    urls = _queues(clients[0], "traced")
    text = {"DataType": "String", "StringValue": f"00-{_TRACE}-b7ad6b7169203331-01"}
    sent = set()
    for number, client in enumerate(clients):
        answer = client.send_message(
            QueueUrl=urls[number % 2], MessageBody="x", MessageAttributes={"traceparent": text}
        )
        sent.add(answer["MessageId"])
    received: set[str] = set()
    for number in range(4 * _CONNECTIONS):
        got = clients[number % _CONNECTIONS].receive_message(QueueUrl=urls[number // 2 % 2])
        received |= {message["MessageId"] for message in got.get("Messages", [])}
    assert received == sent

    eventually(lambda: set(service.receiver.spans) == sent)
    assert len(service.receiver.spans) == len(sent)


def test_deleted_messages_of_all_workers_are_archived_once(
    service: _Service, clients: list[Any]
) -> None:
    urls = _queues(clients[0], "archived", tags={"holdfast:archive": "all"})
    for number, client in enumerate(clients):
        client.send_message(QueueUrl=urls[number % 2], MessageBody=str(number))
    for number in range(4 * _CONNECTIONS):
        url = urls[number // 2 % 2]
        client = clients[number % _CONNECTIONS]
        for message in client.receive_message(QueueUrl=url).get("Messages", []):
            client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    eventually(lambda: len(rows(service.lake)) >= _CONNECTIONS)
    bodies = Counter(row["body"] for row in rows(service.lake))
    assert bodies == Counter(map(str, range(_CONNECTIONS)))


def test_all_workers_take_over_a_new_certificate(service: _Service, clients: list[Any]) -> None:
    """And open connections go on."""
    second = service.authority.sign("second")
    for file, place in zip(second, service.pair, strict=True):
        new = place.with_suffix(".new")
        new.write_bytes(file.read_bytes())
        new.replace(place)

    eventually(lambda: {_subject(service) for _ in range(_CONNECTIONS)} == {"second"})
    for client in clients:
        client.list_queues()
    metrics = run_command("metrics", "--data", str(service.node.data))
    assert metrics.returncode == 0, metrics.stderr
    assert worker_of(service.node, 0) != worker_of(service.node, 1)


def _subject(service: _Service) -> str:
    host, port = "127.0.0.1", int(service.node.url.rpartition(":")[2])
    context = ssl.create_default_context(cafile=str(service.authority.file))
    with (
        socket.create_connection((host, port)) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as client,
    ):
        peer = client.getpeercert()
        assert peer is not None
        return str(peer["subject"][0][0][1])
