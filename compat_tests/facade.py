"""One interface for every SQS action and every client.

A `Client` calls an action by AWS's name with AWS's members and returns AWS's members; a refusal is
a `ClientError`. The tests use this interface and run with every client.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

Members = dict[str, Any]
"""Members of a request or an answer under AWS's names."""

PATIENCE_S = 180.0
"""Time limit for waiting on a condition: no test fails because the machine is slow."""


class Credentials(NamedTuple):
    """An access key and where it is valid."""

    access_key_id: str
    secret_access_key: str
    region: str
    session_token: str | None = None


class ClientError(Exception):
    """A refusal as the client reports it.

    `code` is the query protocol's code, `query_code` the name of the JSON protocol's error shape
    (None where the client does not know it), `status` the HTTP status (None for the command line,
    which does not show it).
    """

    def __init__(
        self, code: str, message: str, *, status: int | None, query_code: str | None = None
    ) -> None:
        super().__init__(f"{status} {code} ({query_code}): {message}")
        self.code = code
        self.message = message
        self.status = status
        self.query_code = query_code


class Client(Protocol):
    """Something that can call SQS actions."""

    name: str
    protocol: str
    """The wire protocol: `json` or `query`."""

    def call(self, operation: str, **members: Any) -> Members:
        """Call the action and return the members of its answer; raises ClientError on a refusal."""

    def close(self) -> None:
        """Release processes and connections."""


def error_of_botocore(response: Members) -> ClientError:
    """The refusal in the form of botocore's ClientError."""
    error = response["Error"]
    return ClientError(
        error.get("Code", ""),
        error.get("Message", ""),
        status=response["ResponseMetadata"]["HTTPStatusCode"],
        query_code=error.get("QueryErrorCode"),
    )


def refusal(client: Client, operation: str, **members: Any) -> ClientError:
    """The refusal of this call; a call that succeeds fails the test."""
    try:
        answer = client.call(operation, **members)
    except ClientError as error:
        return error
    raise AssertionError(f"{operation} was expected to be refused but answered {answer}")


def receive(client: Client, url: str, count: int = 10, /, **members: Any) -> list[Members]:
    """At most `count` messages of one ReceiveMessage."""
    answer = client.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=count, **members)
    return list(answer.get("Messages", []))


def delete(client: Client, url: str, handle: str) -> None:
    """Delete a message."""
    assert client.call("DeleteMessage", QueueUrl=url, ReceiptHandle=handle) == {}


def receive_count(
    client: Client, url: str, count: int, *, within: float = PATIENCE_S, **members: Any
) -> list[Members]:
    """Exactly `count` messages, over as many receives as it takes."""
    found: list[Members] = []
    deadline = time.monotonic() + within
    while len(found) < count and time.monotonic() < deadline:
        found += receive(client, url, min(10, count - len(found)), WaitTimeSeconds=1, **members)
    assert len(found) == count, f"{len(found)} of {count} messages after {within} s"
    return found


def counts(client: Client, url: str) -> tuple[int, int, int]:
    """The queue's counters: visible, in flight, delayed."""
    names = [
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesNotVisible",
        "ApproximateNumberOfMessagesDelayed",
    ]
    answer = client.call("GetQueueAttributes", QueueUrl=url, AttributeNames=names)
    visible, hidden, delayed = (int(answer["Attributes"][name]) for name in names)
    return visible, hidden, delayed


def eventually(claim: Callable[[], bool], *, within: float = PATIENCE_S) -> None:
    """Wait until the claim holds; fails the test if it does not in time."""
    begun_s = time.monotonic()
    while not claim():
        assert time.monotonic() < begun_s + within, f"not true within {within} s"
        pause_of_wait(begun_s)


def pause_of_wait(begun_s: float) -> None:
    """Sleep between two looks at something awaited since then. Looks cost the service time, too:
    what takes long is looked at more seldom."""
    waited_s = time.monotonic() - begun_s
    time.sleep(min(max(0.02, waited_s / 10), 0.5))


# -- FIFO queues -----------------------------------------------------------------------------------


def create_fifo_queue(client: Client, name: str, **attributes: str) -> str:
    """Make a FIFO queue, `.fifo` being added to the name, and return its URL."""
    given = {"FifoQueue": "true", **attributes}
    return str(client.call("CreateQueue", QueueName=f"{name}.fifo", Attributes=given)["QueueUrl"])


def send_to_group(client: Client, url: str, group: str, body: str, /, **members: Any) -> Members:
    """Send one message to the group."""
    return client.call(
        "SendMessage", QueueUrl=url, MessageBody=body, MessageGroupId=group, **members
    )


def send_in_order(client: Client, url: str, names: str) -> list[Members]:
    """Send at most ten messages to a FIFO queue in one batch: `g1-m1 g2-m1` names group and
    message."""
    entries = [
        {
            "Id": name,
            "MessageBody": name,
            "MessageGroupId": name.split("-")[0],
            "MessageDeduplicationId": name,
        }
        for name in names.split()
    ]
    answer = client.call("SendMessageBatch", QueueUrl=url, Entries=entries)
    assert "Failed" not in answer, answer["Failed"]
    return list(answer["Successful"])


def bodies(messages: list[Members]) -> str:
    """The bodies in order, with a space between."""
    return " ".join(message["Body"] for message in messages)
