"""Holdfast.TransactMessages, called by boto3 with the model of `holdfast sdk-model`."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError as BotocoreError

from compat_tests.clients.boto3_client import Boto3Client, connect
from compat_tests.clients.raw import JSON, RawClient
from compat_tests.conftest import NodeFactory
from compat_tests.facade import (
    Client,
    Credentials,
    counts,
    create_fifo_queue,
    receive,
    receive_count,
)
from compat_tests.node_process import NodeProcess, run_command

_MESSAGES = 120
_KILLS = 3
_RETRIES = {"mode": "standard", "total_max_attempts": 20}


def transacting(
    endpoint: str,
    key: Credentials,
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
    retries: dict[str, Any] = _RETRIES,
) -> Any:
    """A boto3 client of the model."""
    done = run_command("sdk-model", "--to", str(models))
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("AWS_DATA_PATH", str(models))
    return boto3.Session(
        aws_access_key_id=key.access_key_id,
        aws_secret_access_key=key.secret_access_key,
        region_name=key.region,
    ).client(
        "holdfast",
        endpoint_url=endpoint,
        config=Config(retries=retries),
    )


@pytest.fixture
def holdfast(node: NodeProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return transacting(node.url, node.credentials, tmp_path, monkeypatch)


def delete(url: str, message: dict[str, Any]) -> dict[str, Any]:
    return {"Delete": {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]}}


def send(url: str, body: str, **members: Any) -> dict[str, Any]:
    return {"Send": {"QueueUrl": url, "MessageBody": body, **members}}


def cancelled(holdfast: Any, *items: dict[str, Any]) -> list[str]:
    with pytest.raises(holdfast.exceptions.TransactionCanceledException) as found:
        holdfast.transact_messages(TransactItems=list(items))
    return [reason["Code"] for reason in found.value.response["CancellationReasons"]]


def test_a_message_is_consumed_and_two_are_produced(
    current: Boto3Client, holdfast: Any, make_queue: Callable[..., str]
) -> None:
    orders, bills = make_queue(), make_queue()
    current.call("SendMessage", QueueUrl=orders, MessageBody="order")
    (order,) = receive(current, orders)
    attributes = {"kind": {"DataType": "String", "StringValue": "bill"}}

    answer = holdfast.transact_messages(
        TransactItems=[
            delete(orders, order),
            send(bills, "bill", MessageAttributes=attributes),
            send(bills, "later", DelaySeconds=600),
        ]
    )

    assert answer["Results"][0] == {}
    (bill,) = receive(current, bills, MessageAttributeNames=["All"])
    sent = answer["Results"][1]
    assert (bill["Body"], bill["MessageId"]) == ("bill", sent["MessageId"])
    assert bill["MD5OfBody"] == sent["MD5OfMessageBody"]
    assert bill["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert counts(current, orders) == (0, 0, 0)
    assert counts(current, bills) == (0, 1, 1)


def test_a_fault_of_one_entry_cancels_all(
    current: Boto3Client, holdfast: Any, make_queue: Callable[..., str]
) -> None:
    orders, bills = make_queue(), make_queue()
    current.call("SendMessage", QueueUrl=orders, MessageBody="order")
    (order,) = receive(current, orders)
    current.call("DeleteMessage", QueueUrl=orders, ReceiptHandle=order["ReceiptHandle"])

    gone = cancelled(holdfast, send(bills, "bill"), delete(orders, order))
    missing = cancelled(holdfast, send(bills, "bill"), send(bills + "-missing", "bill"))
    bad = cancelled(holdfast, send(bills, "bill"), send(bills, "\x00"))

    assert gone == ["None", "TransactionConflict"]
    assert missing == ["None", "AWS.SimpleQueueService.NonExistentQueue"]
    assert bad == ["None", "InvalidMessageContents"]
    assert counts(current, bills) == (0, 0, 0)


def test_a_token_is_for_one_transaction(
    current: Boto3Client, holdfast: Any, make_queue: Callable[..., str]
) -> None:
    bills = make_queue()
    token = {"ClientRequestToken": bills[-40:]}
    first = holdfast.transact_messages(TransactItems=[send(bills, "bill")], **token)
    again = holdfast.transact_messages(TransactItems=[send(bills, "bill")], **token)

    assert again["Results"] == first["Results"]
    assert counts(current, bills) == (1, 0, 0)
    with pytest.raises(holdfast.exceptions.IdempotentParameterMismatchException):
        holdfast.transact_messages(TransactItems=[send(bills, "other")], **token)


def test_a_client_that_goes_away_without_its_answer_repeats_the_transaction(
    raw: RawClient, current: Boto3Client, make_queue: Callable[..., str]
) -> None:
    orders, bills = make_queue(), make_queue()
    current.call("SendMessage", QueueUrl=orders, MessageBody="order")
    (order,) = receive(current, orders)
    items = [delete(orders, order), send(bills, "bill")]
    body = json.dumps({"TransactItems": items, "ClientRequestToken": bills[-40:]}).encode()
    given = {"Content-Type": JSON, "X-Amz-Target": "Holdfast.TransactMessages"}
    headers = {
        "Host": urlsplit(raw.url).netloc,
        "Content-Length": str(len(body)),
        **raw.signed_headers("POST", raw.url + "/", given, body),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    where = urlsplit(raw.url)
    with socket.create_connection((where.hostname, where.port), timeout=30) as unread:
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        unread.sendall(f"POST / HTTP/1.1\r\n{lines}\r\n".encode() + body)

    answer = raw.send("POST", raw.url + "/", headers=given, body=body)

    assert answer.status == 200, answer.text
    assert counts(current, orders) == (0, 0, 0)
    assert counts(current, bills) == (1, 0, 0)


def test_what_is_too_much_is_refused_as_a_whole(
    current: Boto3Client, holdfast: Any, make_queue: Callable[..., str]
) -> None:
    bills = make_queue()
    big = "x" * 600_000
    with pytest.raises(holdfast.exceptions.BatchRequestTooLong):
        holdfast.transact_messages(TransactItems=[send(bills, big), send(bills, big)])
    with pytest.raises(holdfast.exceptions.TooManyEntriesInBatchRequest):
        holdfast.transact_messages(TransactItems=[send(bills, "x")] * 101)
    with pytest.raises(holdfast.exceptions.EmptyBatchRequest):
        holdfast.transact_messages(TransactItems=[])
    assert counts(current, bills) == (0, 0, 0)
    holdfast.transact_messages(TransactItems=[send(bills, str(place)) for place in range(100)])
    assert counts(current, bills) == (100, 0, 0)


@pytest.mark.parametrize("mode", ["legacy", "standard"])
def test_a_transaction_that_is_only_throttled_is_repeated(
    node: NodeProcess,
    current: Boto3Client,
    make_queue: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
) -> None:
    other, url = make_queue(), make_queue()
    current.call("TagQueue", QueueUrl=url, Tags={"holdfast:throttle-depth": "1"})
    current.call("SendMessage", QueueUrl=url, MessageBody="a")
    retries = {"mode": mode, "total_max_attempts": 2}
    holdfast = transacting(node.url, node.credentials, tmp_path, monkeypatch, retries)

    with pytest.raises(BotocoreError) as caught:
        holdfast.transact_messages(TransactItems=[send(other, "b"), send(url, "b")])

    assert caught.value.response["Error"]["Code"] == "RequestThrottled"
    assert caught.value.response["ResponseMetadata"]["RetryAttempts"] == 1
    assert counts(current, other) == (0, 0, 0)
    gone = cancelled(holdfast, send(other + "-missing", "b"), send(url, "b"))
    assert gone == ["AWS.SimpleQueueService.NonExistentQueue", "None"]


def test_groups_keep_their_order(
    current: Boto3Client, holdfast: Any, fresh_name: Callable[[], str]
) -> None:
    orders = create_fifo_queue(current, fresh_name(), ContentBasedDeduplication="true")
    group = {"MessageGroupId": "g"}
    for body in ("1", "2"):
        current.call("SendMessage", QueueUrl=orders, MessageBody=body, **group)
    (first,) = receive(current, orders, 1)

    items = delete(orders, first), send(orders, "3", **group), send(orders, "2", **group)
    answer = holdfast.transact_messages(TransactItems=list(items))

    sent = [result.get("SequenceNumber") for result in answer["Results"]]
    assert sent[0] is None
    assert int(sent[1]) > int(sent[2])
    assert [message["Body"] for message in receive(current, orders)] == ["2", "3"]


def _produce(
    service: NodeProcess, holdfast: Any, orders: str, made: list[str], failures: list[str]
) -> None:
    """Consume orders and produce to other queues, until there are none."""
    client = connect(service.url, service.credentials, retries=_RETRIES)
    empty = 0
    try:
        while empty < 3:
            found = client.receive_message(QueueUrl=orders, WaitTimeSeconds=2, VisibilityTimeout=2)
            empty = 0 if found.get("Messages") else empty + 1
            for order in found.get("Messages", ()):
                items = [delete(orders, order), *(send(url, order["Body"]) for url in made)]
                with suppress(holdfast.exceptions.TransactionCanceledException):
                    holdfast.transact_messages(TransactItems=items)
    except Exception as error:  # the test shows it
        failures.append(repr(error))
    finally:
        client.close()


@pytest.mark.slow
def test_kills_make_no_half_transaction(
    start_node: NodeFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = start_node("--shards", "3", "--aws-waits", "off")
    holdfast = transacting(service.url, service.credentials, tmp_path, monkeypatch)
    client: Client = Boto3Client(service.url, service.credentials)
    orders, *made = (
        client.call("CreateQueue", QueueName=name)["QueueUrl"] for name in ("orders", "b", "c", "d")
    )
    for number in range(_MESSAGES):
        client.call("SendMessage", QueueUrl=orders, MessageBody=str(number))
    failures: list[str] = []
    workers = [
        threading.Thread(target=_produce, args=(service, holdfast, orders, made, failures))
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for _ in range(_KILLS):
        service.kill()
        service.start()
    for worker in workers:
        worker.join()

    assert not failures
    assert counts(client, orders) == (0, 0, 0)
    expected = Counter(map(str, range(_MESSAGES)))
    for url in made:
        bodies = [message["Body"] for message in receive_count(client, url, _MESSAGES)]
        assert Counter(bodies) == expected
        assert not receive(client, url)
    client.close()
