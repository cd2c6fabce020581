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


# -- delete ----------------------------------------------------------------------------------------


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
