"""Deduplication of FIFO queues and its attributes: a duplicate gets the original's answer, not
stored.

The engine's own tests cover the end of the five minutes, on a virtual clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.conftest import MakeFifo, NodeFactory
from compat_tests.facade import (
    Client,
    bodies,
    counts,
    create_fifo_queue,
    delete,
    receive,
    receive_count,
    send_to_group,
)
from compat_tests.test_send import string

Names = Callable[[], str]

BY_GROUP = {"DeduplicationScope": "messageGroup"}
BY_CONTENT = {"ContentBasedDeduplication": "true"}


def send(client: Client, url: str, group: str, body: str, identity: str) -> tuple[str, int]:
    """Send with this deduplication id; returns MessageId and SequenceNumber."""
    answer = send_to_group(client, url, group, body, MessageDeduplicationId=identity)
    return answer["MessageId"], int(answer["SequenceNumber"])


# -- duplicates ------------------------------------------------------------------------------------


def test_duplicate_is_answered_as_the_original_and_dropped(sqs: Client, fifo: str) -> None:
    first = send(sqs, fifo, "g", "first", "d")

    again = send(sqs, fifo, "g", "second", "d")

    assert again == first
    assert counts(sqs, fifo) == (1, 0, 0)
    (got,) = receive(sqs, fifo, AttributeNames=["All"])
    assert got["Body"] == "first"
    assert (got["MessageId"], int(got["Attributes"]["SequenceNumber"])) == first
    assert got["Attributes"]["MessageDeduplicationId"] == "d"


def test_answer_to_a_duplicate_has_the_digest_of_its_own_body(sqs: Client, fifo: str) -> None:
    send(sqs, fifo, "g", "first", "d")

    answer = send_to_group(sqs, fifo, "g", "second", MessageDeduplicationId="d")

    assert answer["MD5OfMessageBody"] == hashlib.md5(b"second").hexdigest(), "clients check it"


def test_duplicates_within_one_batch_are_one_message(sqs: Client, fifo: str) -> None:
    entries = [
        {"Id": name, "MessageBody": name, "MessageGroupId": "g", "MessageDeduplicationId": identity}
        for name, identity in (("a", "d1"), ("b", "d2"), ("c", "d1"))
    ]

    answer = sqs.call("SendMessageBatch", QueueUrl=fifo, Entries=entries)

    a, b, c = answer["Successful"]
    assert [entry["Id"] for entry in (a, b, c)] == ["a", "b", "c"]
    assert (c["MessageId"], c["SequenceNumber"]) == (a["MessageId"], a["SequenceNumber"])
    assert b["MessageId"] != a["MessageId"]
    assert bodies(receive(sqs, fifo)) == "a b"
    again = sqs.call("SendMessageBatch", QueueUrl=fifo, Entries=entries)
    assert [e["MessageId"] for e in again["Successful"]] == [e["MessageId"] for e in (a, b, c)]
    assert counts(sqs, fifo) == (0, 2, 0)


def test_identical_ids_are_no_duplicates_in_another_queue(sqs: Client, make_fifo: MakeFifo) -> None:
    one, other = make_fifo(), make_fifo()

    assert send(sqs, one, "g", "x", "d")[0] != send(sqs, other, "g", "x", "d")[0]

    assert counts(sqs, one) == counts(sqs, other) == (1, 0, 0)


def test_queue_made_again_knows_no_ids(sqs: Client, fifo: str) -> None:
    first = send(sqs, fifo, "g", "x", "d")
    sqs.call("DeleteQueue", QueueUrl=fifo)
    name = fifo.rsplit("/", 1)[1].removesuffix(".fifo")

    assert create_fifo_queue(sqs, name) == fifo
    assert send(sqs, fifo, "g", "y", "d")[0] != first[0]

    assert bodies(receive_count(sqs, fifo, 1)) == "y"


# -- by content ------------------------------------------------------------------------------------


def test_content_is_the_body_alone(sqs: Client, make_fifo: MakeFifo) -> None:
    url = make_fifo(**BY_CONTENT)
    first = send_to_group(sqs, url, "g", "höld fast")

    again = send_to_group(sqs, url, "g", "höld fast", MessageAttributes={"k": string("x")})

    assert again["MessageId"] == first["MessageId"]
    assert again["SequenceNumber"] == first["SequenceNumber"]
    (got,) = receive(sqs, url, AttributeNames=["All"], MessageAttributeNames=["All"])
    digest = hashlib.sha256("höld fast".encode()).hexdigest()
    assert got["Attributes"]["MessageDeduplicationId"] == digest
    assert "MessageAttributes" not in got


def test_explicit_id_that_equals_a_content_is_a_duplicate(sqs: Client, make_fifo: MakeFifo) -> None:
    url = make_fifo(**BY_CONTENT)
    first = send_to_group(sqs, url, "g", "x")

    again = send(sqs, url, "g", "y", hashlib.sha256(b"x").hexdigest())

    assert again[0] == first["MessageId"]


# -- beyond one queue and one process --------------------------------------------------------------


def test_ids_survive_kill(start_node: NodeFactory, fresh_name: Names) -> None:
    node = start_node("--aws-waits", "off")
    client = Boto3Client(node.url, node.credentials)
    queue = create_fifo_queue(client, fresh_name())
    grouped = create_fifo_queue(client, fresh_name(), **BY_GROUP)
    purged = create_fifo_queue(client, fresh_name())
    waiting = send(client, queue, "g", "waiting", "d1")
    deleted = send(client, queue, "h", "deleted", "d2")
    (got,) = [message for message in receive(client, queue) if message["Body"] == "deleted"]
    delete(client, queue, got["ReceiptHandle"])
    in_group = send(client, grouped, "g", "x", "d")
    client.call("SetQueueAttributes", QueueUrl=grouped, Attributes={"DeduplicationScope": "queue"})
    send(client, purged, "g", "x", "d")
    client.call("PurgeQueue", QueueUrl=purged)

    node.kill()
    node.start()

    assert send(client, queue, "g", "x", "d1") == waiting
    assert send(client, queue, "h", "x", "d2") == deleted
    assert send(client, grouped, "g", "x", "d") == in_group
    assert send(client, grouped, "h", "x", "d") != in_group, "the scope is that of the creation"
    send(client, purged, "g", "x", "d")
    assert counts(client, queue) == (0, 1, 0)
    assert counts(client, grouped) == (2, 0, 0)
    assert counts(client, purged) == (1, 0, 0)
    later = send(client, queue, "g", "x", "d3")
    assert later[1] > deleted[1], "sequence numbers go on"
    client.close()
