"""Receipt handles and their refusals. Visibility timeouts and deletes are in the transcripts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compat_tests.facade import Client, counts, receive, refusal

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


def test_older_handle_changes_visibility(sqs: Client, loaded: str) -> None:
    (first,) = receive(sqs, loaded, VisibilityTimeout=0)
    receive(sqs, loaded)

    change(sqs, loaded, first["ReceiptHandle"], 0)

    assert len(receive(sqs, loaded)) == 1


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


# -- delete ----------------------------------------------------------------------------------------


def test_handle_of_another_queue_is_refused(
    sqs: Client, loaded: str, make_queue: MakeQueue
) -> None:
    """In the words that users of AWS report."""
    (got,) = receive(sqs, loaded)
    handle, other = got["ReceiptHandle"], make_queue()
    words = f'The receipt handle "{handle}" is not valid for this queue.'

    error = refusal(sqs, "DeleteMessage", QueueUrl=other, ReceiptHandle=handle)
    entries = [{"Id": "a", "ReceiptHandle": handle}]
    (failed,) = sqs.call("DeleteMessageBatch", QueueUrl=other, Entries=entries)["Failed"]

    assert (error.status, error.code, error.message) == (404, "ReceiptHandleIsInvalid", words)
    assert (failed["Code"], failed["Message"]) == ("ReceiptHandleIsInvalid", words)
    assert counts(sqs, loaded) == (0, 1, 0)


def test_tampered_handle_is_refused(sqs: Client, loaded: str) -> None:
    (got,) = receive(sqs, loaded)
    handle = got["ReceiptHandle"]
    middle = len(handle) // 2
    tampered = handle[:middle] + ("A" if handle[middle] != "A" else "B") + handle[middle + 1 :]

    error = refusal(sqs, "DeleteMessage", QueueUrl=loaded, ReceiptHandle=tampered)

    assert error.code == "ReceiptHandleIsInvalid"
    assert error.message == f'The input receipt handle "{tampered}" is not a valid receipt handle.'
