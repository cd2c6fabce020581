"""Files of the data folder reveal no bodies, no senders and no secrets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from compat_tests.node_process import NodeProcess

SECRETS = {
    "body": "body-that-nobody-may-read",
    "second body": "zweiter-körper-that-nobody-may-read",
    "attribute": "attribute-value-that-nobody-may-read",
    "attribute name": "attribute-name-that-nobody-may-read",
    "group": "group-of-customer-4711",
    "deduplication id": "deduplication-of-order-4711",
    "trace header": "Root=1-5759e988-bd862e3fe1be46a994272793",
}


def _send(queues: Any, **attributes: str) -> str:
    url: str = queues.create_queue(QueueName="q.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    queues.send_message(
        QueueUrl=url,
        MessageBody=SECRETS["body"],
        MessageGroupId=SECRETS["group"],
        MessageDeduplicationId=SECRETS["deduplication id"],
        MessageAttributes={
            SECRETS["attribute name"]: {
                "DataType": "String",
                "StringValue": SECRETS["attribute"],
            }
        },
        MessageSystemAttributes={
            "AWSTraceHeader": {"DataType": "String", "StringValue": SECRETS["trace header"]}
        },
    )
    standard: str = queues.create_queue(QueueName="standard", Attributes=attributes)["QueueUrl"]
    for delay in (0, 900):
        queues.send_message(
            QueueUrl=standard, MessageBody=SECRETS["second body"], DelaySeconds=delay
        )
    queues.receive_message(QueueUrl=standard)
    return standard


def _found(folder: Path, texts: dict[str, str]) -> set[str]:
    """The texts that occur in a file of the folder, in a form that a search finds."""
    content = b"\0".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
    forms = {name: (text.encode(), text.encode("utf-16-le")) for name, text in texts.items()}
    return {name for name, seen in forms.items() if any(form in content for form in seen)}


def _client(node: NodeProcess) -> Any:
    keys = node.credentials
    return boto3.client(
        "sqs",
        endpoint_url=node.url,
        region_name=keys.region,
        aws_access_key_id=keys.access_key_id,
        aws_secret_access_key=keys.secret_access_key,
    )


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path).start()
    yield process
    process.close()


@pytest.mark.slow
def test_nothing_of_a_message_or_a_key_can_be_read_from_the_folder(node: NodeProcess) -> None:
    _send(_client(node))
    texts = SECRETS | {"secret access key": node.credentials.secret_access_key}
    node.freeze()  # files come and go while it runs
    assert _found(node.data, texts) == set()
    node.resume()
    node.stop()
    assert _found(node.data, texts) == set()

    node.start()
    (message,) = _client(node).receive_message(
        QueueUrl=f"{node.url}/000000000000/q.fifo",
        MessageAttributeNames=["All"],
        MessageSystemAttributeNames=["All"],
    )["Messages"]
    shown = json.dumps(message, ensure_ascii=False)
    assert [name for name, text in SECRETS.items() if text not in shown] == ["second body"]


@pytest.mark.slow
def test_a_queue_that_declines_encryption_can_be_read(node: NodeProcess) -> None:
    """Proves that the search above can find something."""
    _send(_client(node), SqsManagedSseEnabled="false")
    node.stop()

    assert _found(node.data, SECRETS) == {"second body"}
