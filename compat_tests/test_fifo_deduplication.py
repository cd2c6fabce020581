"""Deduplication of FIFO queues and its attributes: a duplicate gets the original's answer, not
stored.

The engine's own tests cover the end of the five minutes, on a virtual clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.conftest import MakeFifo, NodeFactory
from compat_tests.facade import (
    Client,
    ClientError,
    bodies,
    counts,
    create_fifo_queue,
    receive,
    receive_count,
    refusal,
    send_to_group,
)
from compat_tests.test_queues import DEFAULTS, attributes
from compat_tests.test_send import string
from compat_tests.test_visibility import delete

Names = Callable[[], str]

BY_GROUP = {"DeduplicationScope": "messageGroup"}
BY_CONTENT = {"ContentBasedDeduplication": "true"}
NO_ID = (
    "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId "
    "provided explicitly"
)


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


@pytest.mark.parametrize("identity", ["d" * 128, "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"])
def test_id_is_accepted(sqs: Client, fifo: str, identity: str) -> None:
    send(sqs, fifo, "g", "x", identity)

    (got,) = receive(sqs, fifo, AttributeNames=["MessageDeduplicationId"])
    assert got["Attributes"] == {"MessageDeduplicationId": identity}


def test_queue_made_again_knows_no_ids(sqs: Client, fifo: str) -> None:
    first = send(sqs, fifo, "g", "x", "d")
    sqs.call("DeleteQueue", QueueUrl=fifo)
    name = fifo.rsplit("/", 1)[1].removesuffix(".fifo")

    assert create_fifo_queue(sqs, name) == fifo
    assert send(sqs, fifo, "g", "y", "d")[0] != first[0]

    assert bodies(receive_count(sqs, fifo, 1)) == "y"


# -- scope -----------------------------------------------------------------------------------------


def test_scope_message_group_with_content(sqs: Client, make_fifo: MakeFifo) -> None:
    url = make_fifo(**BY_GROUP, **BY_CONTENT)

    for group in ("a", "b", "a", "b"):
        send_to_group(sqs, url, group, "x")

    assert counts(sqs, url) == (2, 0, 0)


def test_scope_message_group_needs_no_throughput_limit(sqs: Client, make_fifo: MakeFifo) -> None:
    url = make_fifo(**BY_GROUP)

    found = attributes(sqs, url, "DeduplicationScope", "FifoThroughputLimit")

    assert found == {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perQueue"}


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


def test_content_based_deduplication_is_switched_by_set_attributes(sqs: Client, fifo: str) -> None:
    members = {"QueueUrl": fifo, "MessageBody": "x", "MessageGroupId": "g"}
    assert refusal(sqs, "SendMessage", **members).message == NO_ID

    sqs.call("SetQueueAttributes", QueueUrl=fifo, Attributes=BY_CONTENT)
    first = sqs.call("SendMessage", **members)
    again = sqs.call("SendMessage", **members)
    off = {"ContentBasedDeduplication": "false"}
    sqs.call("SetQueueAttributes", QueueUrl=fifo, Attributes=off)

    assert again["MessageId"] == first["MessageId"]
    error = refusal(sqs, "SendMessage", **members)
    assert (error.code, error.message) == ("InvalidParameterValue", NO_ID)
    assert counts(sqs, fifo) == (1, 0, 0)


# -- attributes of the queue -----------------------------------------------------------------------


def test_fresh_fifo_queue_has_exactly_the_attributes_of_aws(sqs: Client, fifo: str) -> None:
    found = attributes(sqs, fifo)

    for name in ("CreatedTimestamp", "LastModifiedTimestamp", "QueueArn"):
        del found[name]
    assert found == {
        **DEFAULTS,
        "ContentBasedDeduplication": "false",
        "DeduplicationScope": "queue",
        "FifoQueue": "true",
        "FifoThroughputLimit": "perQueue",
    }


def test_fifo_attributes_come_back(sqs: Client, fifo: str) -> None:
    given = {
        "ContentBasedDeduplication": "true",
        "DeduplicationScope": "messageGroup",
        "FifoThroughputLimit": "perMessageGroupId",
    }

    sqs.call("SetQueueAttributes", QueueUrl=fifo, Attributes=given)

    assert attributes(sqs, fifo, *given) == given


def test_queue_type_does_not_change(sqs: Client, fifo: str) -> None:
    members = {"QueueUrl": fifo, "Attributes": {"FifoQueue": "true"}}
    assert sqs.call("SetQueueAttributes", **members) == {}

    error = refusal(sqs, "SetQueueAttributes", QueueUrl=fifo, Attributes={"FifoQueue": "false"})

    assert error.code == "InvalidAttributeValue"
    assert error.message == (
        "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported."
    )


@pytest.mark.parametrize("attribute", ["DeduplicationScope", "FifoThroughputLimit"])
def test_unknown_choice_is_refused(sqs: Client, fifo: str, attribute: str) -> None:
    error = refusal(sqs, "SetQueueAttributes", QueueUrl=fifo, Attributes={attribute: "galaxy"})

    assert error.code == "InvalidAttributeValue"


def test_name_and_type_go_together(sqs: Client, fresh_name: Names) -> None:
    name = fresh_name()

    suffix_only = refusal(sqs, "CreateQueue", QueueName=f"{name}.fifo")
    type_only = refusal(sqs, "CreateQueue", QueueName=name, Attributes={"FifoQueue": "true"})
    long = refusal(
        sqs, "CreateQueue", QueueName="a" * 76 + ".fifo", Attributes={"FifoQueue": "true"}
    )

    codes = [error.code for error in (suffix_only, type_only, long)]
    assert codes == ["InvalidParameterValue"] * 3, "the suffix counts to the 80 characters"


def test_create_compares_fifo_attributes(sqs: Client, fresh_name: Names) -> None:
    name = fresh_name()
    url = create_fifo_queue(sqs, name)
    assert create_fifo_queue(sqs, name) == url
    assert create_fifo_queue(sqs, name, ContentBasedDeduplication="false") == url

    with pytest.raises(ClientError) as refused:
        create_fifo_queue(sqs, name, ContentBasedDeduplication="true")

    assert refused.value.code == "QueueAlreadyExists"
    assert refused.value.message == (
        "A queue already exists with the same name and a different value for attribute "
        "ContentBasedDeduplication"
    )


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
