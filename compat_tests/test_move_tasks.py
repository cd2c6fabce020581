"""Message move tasks: their effect, their listing, their end, and their refusals.

Tasks with a rate take seconds of real time, so only one client runs them.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Callable

import pytest

from compat_tests.clients.raw import RawClient
from compat_tests.facade import (
    Client,
    ClientError,
    Members,
    counts,
    create_fifo_queue,
    eventually,
    receive,
    receive_count,
    refusal,
)
from compat_tests.test_dead_letter import arn, redrive

Names = Callable[[], str]
MakeQueue = Callable[..., str]

NOT_A_DEAD_LETTER_QUEUE = "Source queue must be configured as a Dead Letter Queue."
ONE_TASK = (
    "There is already a task running. Only one active task is allowed for a source queue arn at a "
    "given time."
)
NO_SOURCE = "The resource that you specified for the SourceArn parameter doesn't exist."
NO_DESTINATION = "The resource that you specified for the DestinationArn parameter doesn't exist."
SHOWN_ALWAYS = {
    "SourceArn",
    "Status",
    "StartedTimestamp",
    "ApproximateNumberOfMessagesMoved",
    "ApproximateNumberOfMessagesToMove",
}


@pytest.fixture
def source(queue: str, current: Client, make_queue: MakeQueue) -> str:
    """A queue whose dead letters go to `queue` after one receive."""
    return make_queue(RedrivePolicy=redrive(arn(current, queue)))


def send_numbered(client: Client, url: str, count: int, prefix: str = "") -> None:
    """Send a batch of messages."""
    entries = [{"Id": str(n), "MessageBody": f"{prefix}{n}"} for n in range(count)]
    client.call("SendMessageBatch", QueueUrl=url, Entries=entries)


def let_die(client: Client, source: str, target: str, count: int, prefix: str = "") -> None:
    """Send messages to the source and receive them until they are in the target."""
    dead = counts(client, target)[0]
    send_numbered(client, source, count, prefix)
    assert len(receive_count(client, source, count, VisibilityTimeout=0)) == count
    assert receive(client, source) == []
    eventually(lambda: counts(client, target)[0] == dead + count)


def start(client: Client, url: str, **members: object) -> str:
    """Start a task that empties the queue; returns its handle."""
    answer = client.call("StartMessageMoveTask", SourceArn=arn(client, url), **members)
    return str(answer["TaskHandle"])


def tasks(client: Client, url: str, **members: object) -> list[Members]:
    answer = client.call("ListMessageMoveTasks", SourceArn=arn(client, url), **members)
    return list(answer.get("Results", []))


def ended(client: Client, url: str) -> Members:
    """The newest task of the queue, once it has ended."""
    running = {"RUNNING", "CANCELLING"}
    eventually(lambda: tasks(client, url)[0]["Status"] not in running)
    return tasks(client, url)[0]


def moved(client: Client, url: str) -> int:
    """The number of moved messages that the queue's newest task shows."""
    return int(tasks(client, url)[0]["ApproximateNumberOfMessagesMoved"])


def encoded(task_id: str, source_arn: str) -> str:
    handle = json.dumps({"taskId": task_id, "sourceArn": source_arn})
    return base64.b64encode(handle.encode()).decode()


# -- moved messages --------------------------------------------------------------------------------


def test_messages_go_back_to_the_queue_they_came_from(sqs: Client, queue: str, source: str) -> None:
    before_ms = int(time.time() * 1000) - 1000
    let_die(sqs, source, queue, 3)

    start(sqs, queue)
    task = ended(sqs, queue)

    assert set(task) == SHOWN_ALWAYS
    assert (task["SourceArn"], task["Status"]) == (arn(sqs, queue), "COMPLETED")
    assert task["ApproximateNumberOfMessagesMoved"] == 3
    assert task["ApproximateNumberOfMessagesToMove"] == 3
    assert before_ms <= task["StartedTimestamp"] <= before_ms + 60_000
    assert counts(sqs, queue) == (0, 0, 0)
    assert sorted(message["Body"] for message in receive_count(sqs, source, 3)) == ["0", "1", "2"]


def test_moved_message_is_a_new_one(sqs: Client, queue: str, source: str) -> None:
    asked: Members = {"AttributeNames": ["All"], "MessageAttributeNames": ["All"]}
    attribute = {"k": {"DataType": "String", "StringValue": "x"}}
    sqs.call("SendMessage", QueueUrl=source, MessageBody="x", MessageAttributes=attribute)
    (before,) = receive(sqs, source, VisibilityTimeout=0, **asked)
    assert receive(sqs, source) == []
    eventually(lambda: counts(sqs, queue) == (1, 0, 0))
    time.sleep(0.01)

    start(sqs, queue)
    (after,) = receive_count(sqs, source, 1, **asked)

    assert after["MessageId"] != before["MessageId"]
    assert str(uuid.UUID(after["MessageId"])) == after["MessageId"]
    for member in ("Body", "MD5OfBody", "MessageAttributes", "MD5OfMessageAttributes"):
        assert after[member] == before[member]
    found = after["Attributes"]
    assert int(found["SentTimestamp"]) > int(before["Attributes"]["SentTimestamp"])
    assert found["ApproximateReceiveCount"] == "1"
    assert "DeadLetterQueueSourceArn" not in found


def test_moved_message_wakes_a_poll_and_may_die_again(sqs: Client, queue: str, source: str) -> None:
    let_die(sqs, source, queue, 1)
    start(sqs, queue)

    (got,) = receive(sqs, source, WaitTimeSeconds=10, VisibilityTimeout=0)
    assert got["Body"] == "0"
    assert receive(sqs, source) == []

    (dead,) = receive_count(sqs, queue, 1, AttributeNames=["All"])
    assert dead["MessageId"] == got["MessageId"]
    assert dead["Attributes"]["DeadLetterQueueSourceArn"] == arn(sqs, source)


# -- listings --------------------------------------------------------------------------------------


def test_newest_task_is_listed_first_and_alone_by_default(
    sqs: Client, queue: str, source: str, make_queue: MakeQueue
) -> None:
    assert tasks(sqs, queue) == []
    first, second = make_queue(), make_queue()
    let_die(sqs, source, queue, 1)
    start(sqs, queue, DestinationArn=arn(sqs, first))
    ended(sqs, queue)
    start(sqs, queue, DestinationArn=arn(sqs, second))
    ended(sqs, queue)

    (newest,) = tasks(sqs, queue)
    listed = tasks(sqs, queue, MaxResults=10)

    assert newest["DestinationArn"] == arn(sqs, second)
    assert [task["DestinationArn"] for task in listed] == [arn(sqs, second), arn(sqs, first)]
    moved_each = [task["ApproximateNumberOfMessagesMoved"] for task in listed]
    assert moved_each == [0, 1], "the second found the queue empty"
    assert {task["Status"] for task in listed} == {"COMPLETED"}


def test_names_and_numbers_on_the_query_wire(
    raw: RawClient, current: Client, queue: str, source: str
) -> None:
    let_die(current, source, queue, 1)
    source_arn = arn(current, queue)

    started = raw.query("StartMessageMoveTask", SourceArn=source_arn)
    ended(current, queue)
    listed = raw.query("ListMessageMoveTasks", SourceArn=source_arn)

    assert started.value("TaskHandle")
    assert listed.text.count("<ListMessageMoveTasksResultEntry>") == 1
    assert listed.value("ApproximateNumberOfMessagesMoved") == "1"
    assert listed.value("StartedTimestamp").isdigit()
    assert "TaskHandle" not in listed.text


# -- slow tasks ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_rate_is_kept_and_the_running_task_is_shown(
    current: Client, queue: str, source: str
) -> None:
    """Takes three seconds in all, so it checks everything about a running task on the way."""
    let_die(current, source, queue, 4)
    begin = time.monotonic()

    handle = start(current, queue, MaxNumberOfMessagesPerSecond=1)
    (running,) = tasks(current, queue)
    second = refusal(current, "StartMessageMoveTask", SourceArn=arn(current, queue))
    other = encoded(str(uuid.uuid4()), arn(current, queue))
    unknown = refusal(current, "CancelMessageMoveTask", TaskHandle=other)
    task = ended(current, queue)
    took = time.monotonic() - begin

    decoded = json.loads(base64.b64decode(handle))
    task_id = str(uuid.UUID(decoded["taskId"]))
    assert decoded == {"taskId": task_id, "sourceArn": arn(current, queue)}
    assert set(running) == SHOWN_ALWAYS | {"TaskHandle", "MaxNumberOfMessagesPerSecond"}
    assert (running["Status"], running["TaskHandle"]) == ("RUNNING", handle)
    assert running["MaxNumberOfMessagesPerSecond"] == 1
    assert running["ApproximateNumberOfMessagesToMove"] == 4
    check(current, second, "InvalidParameterValue", ONE_TASK)
    assert unknown.message == "Task does not exist."
    assert took > 2.9
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 4)
    assert task["ApproximateNumberOfMessagesToMove"] == 4, "fixed at the start"
    assert "TaskHandle" not in task
    assert counts(current, source) == (4, 0, 0)


@pytest.mark.slow
def test_cancelled_task_leaves_the_rest(current: Client, queue: str, source: str) -> None:
    let_die(current, source, queue, 8)
    handle = start(current, queue, MaxNumberOfMessagesPerSecond=1)
    eventually(lambda: moved(current, queue) >= 1)

    answer = current.call("CancelMessageMoveTask", TaskHandle=handle)
    task = ended(current, queue)

    assert 1 <= answer["ApproximateNumberOfMessagesMoved"] <= 3
    assert task["Status"] == "CANCELLED"
    assert set(task) == SHOWN_ALWAYS | {"MaxNumberOfMessagesPerSecond"}
    assert task["ApproximateNumberOfMessagesToMove"] == 8
    done = task["ApproximateNumberOfMessagesMoved"]
    assert answer["ApproximateNumberOfMessagesMoved"] <= done < 8
    assert counts(current, source) == (done, 0, 0)
    assert counts(current, queue) == (8 - done, 0, 0)
    start(current, queue)
    assert ended(current, queue)["Status"] == "COMPLETED", "another may start now"
    assert counts(current, source) == (8, 0, 0)


# -- refusals --------------------------------------------------------------------------------------


def check(client: Client, error: ClientError, code: str, message: str, status: int = 400) -> None:
    assert (error.code, error.message, error.status) == (code, message, status)
    if client.protocol == "json":
        assert error.query_code == code.removesuffix("Exception") + "Exception"


def test_source_must_be_a_dead_letter_queue(sqs: Client, queue: str, make_queue: MakeQueue) -> None:
    destination = arn(sqs, make_queue())

    for members in ({}, {"DestinationArn": destination}):
        error = refusal(sqs, "StartMessageMoveTask", SourceArn=arn(sqs, queue), **members)

        check(sqs, error, "InvalidParameterValue", NOT_A_DEAD_LETTER_QUEUE)


def test_missing_queues_are_refused(sqs: Client, queue: str, source: str) -> None:
    here, missing = {"SourceArn": arn(sqs, queue)}, arn(sqs, source) + "-not"

    from_nowhere = refusal(sqs, "StartMessageMoveTask", SourceArn=missing)
    to_nowhere = refusal(sqs, "StartMessageMoveTask", **here, DestinationArn=missing)
    listing = refusal(sqs, "ListMessageMoveTasks", SourceArn=missing)

    check(sqs, from_nowhere, "ResourceNotFoundException", NO_SOURCE, 404)
    check(sqs, to_nowhere, "ResourceNotFoundException", NO_DESTINATION, 404)
    assert (listing.code, listing.status) == ("ResourceNotFoundException", 404)
    assert tasks(sqs, queue) == []


def test_destination_of_the_other_type_is_refused(
    sqs: Client, queue: str, source: str, fresh_name: Names
) -> None:
    fifo = create_fifo_queue(sqs, fresh_name())
    members = {"SourceArn": arn(sqs, queue), "DestinationArn": arn(sqs, fifo)}

    error = refusal(sqs, "StartMessageMoveTask", **members)

    assert source
    assert error.status == 400


@pytest.mark.parametrize("handle", ["foobar", "e30=", "%%%"])
def test_handle_that_does_not_decode_is_refused(sqs: Client, handle: str) -> None:
    error = refusal(sqs, "CancelMessageMoveTask", TaskHandle=handle)

    check(sqs, error, "InvalidParameterValue", "Value for parameter TaskHandle is invalid.")


def test_cancel_of_an_unknown_task_is_refused(sqs: Client, queue: str) -> None:
    here, away = (encoded(str(uuid.uuid4()), arn(sqs, queue) + end) for end in ("", "-not"))

    task = refusal(sqs, "CancelMessageMoveTask", TaskHandle=here)
    source = refusal(sqs, "CancelMessageMoveTask", TaskHandle=away)

    check(sqs, task, "ResourceNotFoundException", "Task does not exist.", 404)
    check(sqs, source, "ResourceNotFoundException", NO_SOURCE, 404)
