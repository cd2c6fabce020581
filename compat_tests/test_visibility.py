"""Visibility timeouts, and deleting what was received."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from compat_tests.facade import (
    SHORT_S,
    Client,
    counts,
    eventually,
    receive,
    refusal,
)

MakeQueue = Callable[..., str]


def change(client: Client, url: str, handle: str, seconds: int) -> None:
    members = {"QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": seconds}
    assert client.call("ChangeMessageVisibility", **members) == {}


def delete(client: Client, url: str, handle: str) -> None:
    assert client.call("DeleteMessage", QueueUrl=url, ReceiptHandle=handle) == {}


@pytest.fixture
def loaded(queue: str, current: Client) -> str:
    """A queue with one message."""
    current.call("SendMessage", QueueUrl=queue, MessageBody="x")
    return queue


def test_received_message_is_hidden(sqs: Client, loaded: str) -> None:
    assert len(receive(sqs, loaded)) == 1

    assert receive(sqs, loaded) == []
    assert counts(sqs, loaded) == (0, 1, 0)


def test_queues_timeout_hides_until_it_ends(current: Client, make_queue: MakeQueue) -> None:
    url = make_queue(VisibilityTimeout=str(SHORT_S))
    current.call("SendMessage", QueueUrl=url, MessageBody="x")
    start = time.monotonic()
    receive(current, url)

    assert receive(current, url) == []
    eventually(lambda: bool(receive(current, url)))

    assert time.monotonic() - start > 0.9 * SHORT_S


def test_timeout_of_the_receive_overrides_the_queues_once(sqs: Client, loaded: str) -> None:
    receive(sqs, loaded, VisibilityTimeout=0)

    (again,) = receive(sqs, loaded, AttributeNames=["ApproximateReceiveCount"])

    assert again["Attributes"]["ApproximateReceiveCount"] == "2"
    assert receive(sqs, loaded) == []


def test_change_to_zero_shows_at_once(sqs: Client, loaded: str) -> None:
    (first,) = receive(sqs, loaded)

    change(sqs, loaded, first["ReceiptHandle"], 0)

    assert counts(sqs, loaded) == (1, 0, 0)
    (again,) = receive(sqs, loaded)
    assert again["MessageId"] == first["MessageId"]
    assert receive(sqs, loaded) == [], "it does not stick to later receives"


def test_change_extends_from_now(current: Client, loaded: str) -> None:
    (first,) = receive(current, loaded, VisibilityTimeout=SHORT_S)
    change(current, loaded, first["ReceiptHandle"], 60)

    time.sleep(SHORT_S + 0.3)

    assert receive(current, loaded) == []
    assert counts(current, loaded) == (0, 1, 0)


def test_older_handle_changes_visibility(sqs: Client, loaded: str) -> None:
    (first,) = receive(sqs, loaded, VisibilityTimeout=0)
    receive(sqs, loaded)

    change(sqs, loaded, first["ReceiptHandle"], 0)

    assert len(receive(sqs, loaded)) == 1


def test_change_after_the_timeout_ended_is_no_error(sqs: Client, loaded: str) -> None:
    (first,) = receive(sqs, loaded, VisibilityTimeout=0)

    change(sqs, loaded, first["ReceiptHandle"], 30)


def test_change_after_delete_is_refused(sqs: Client, loaded: str) -> None:
    (first,) = receive(sqs, loaded)
    handle = first["ReceiptHandle"]
    delete(sqs, loaded, handle)

    members = {"QueueUrl": loaded, "ReceiptHandle": handle, "VisibilityTimeout": 0}
    error = refusal(sqs, "ChangeMessageVisibility", **members)

    assert error.code == "InvalidParameterValue"
    assert error.message == (
        f"Value {handle} for parameter ReceiptHandle is invalid. Reason: Message does not exist or "
        "is not available for visibility timeout change."
    )


def test_total_beyond_twelve_hours_is_refused(sqs: Client, loaded: str) -> None:
    (first,) = receive(sqs, loaded)
    members = {"QueueUrl": loaded, "ReceiptHandle": first["ReceiptHandle"]}

    error = refusal(sqs, "ChangeMessageVisibility", **members, VisibilityTimeout=43200)
    sqs.call("ChangeMessageVisibility", **members, VisibilityTimeout=43000)

    assert error.code == "InvalidParameterValue"
    assert "beyond the limit [43200 seconds]" in error.message


# -- delete -----------------------------------------------------------------------------------------------------------


def test_deleted_message_is_gone_and_deleting_again_is_fine(sqs: Client, loaded: str) -> None:
    (got,) = receive(sqs, loaded)

    for _ in range(3):
        delete(sqs, loaded, got["ReceiptHandle"])

    assert counts(sqs, loaded) == (0, 0, 0)


def test_old_handle_deletes_after_the_timeout_ended(sqs: Client, loaded: str) -> None:
    (got,) = receive(sqs, loaded, VisibilityTimeout=0)
    assert counts(sqs, loaded) == (1, 0, 0)

    delete(sqs, loaded, got["ReceiptHandle"])

    assert counts(sqs, loaded) == (0, 0, 0)
    assert receive(sqs, loaded) == []


def test_older_handle_deletes_nothing_after_a_newer_receive(sqs: Client, loaded: str) -> None:
    (first,) = receive(sqs, loaded, VisibilityTimeout=0)
    (second,) = receive(sqs, loaded)

    delete(sqs, loaded, first["ReceiptHandle"])

    assert counts(sqs, loaded) == (0, 1, 0)
    delete(sqs, loaded, second["ReceiptHandle"])
    assert counts(sqs, loaded) == (0, 0, 0)


def test_returning_message_comes_before_later_ones(sqs: Client, queue: str) -> None:
    for body in ("first", "second"):
        sqs.call("SendMessage", QueueUrl=queue, MessageBody=body)
    (first,) = receive(sqs, queue, 1)

    change(sqs, queue, first["ReceiptHandle"], 0)

    assert receive(sqs, queue, 1)[0]["Body"] == "first"


def test_handle_of_another_queue_is_refused(
    sqs: Client, loaded: str, make_queue: MakeQueue
) -> None:
    (got,) = receive(sqs, loaded)

    error = refusal(sqs, "DeleteMessage", QueueUrl=make_queue(), ReceiptHandle=got["ReceiptHandle"])

    assert error.code == "ReceiptHandleIsInvalid"
    assert counts(sqs, loaded) == (0, 1, 0)


def test_tampered_handle_is_refused(sqs: Client, loaded: str) -> None:
    (got,) = receive(sqs, loaded)
    handle = got["ReceiptHandle"]
    middle = len(handle) // 2
    tampered = handle[:middle] + ("A" if handle[middle] != "A" else "B") + handle[middle + 1 :]

    error = refusal(sqs, "DeleteMessage", QueueUrl=loaded, ReceiptHandle=tampered)

    assert error.code == "ReceiptHandleIsInvalid"
    assert error.message == f'The input receipt handle "{tampered}" is not a valid receipt handle.'
