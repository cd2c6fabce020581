"""Fair queues: groups on a standard queue, and a quiet group that does not wait behind a noisy one.

AWS calls a group noisy when it has more than a tenth of the messages in flight and at least 30 of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compat_tests.facade import (
    Client,
    Members,
    counts,
    receive,
    receive_count,
    refusal,
    send_to_group,
)
from compat_tests.test_dead_letter import arn, redrive
from compat_tests.test_visibility import delete

MakeQueue = Callable[..., str]

GROUP_RULE = (
    "Value {} for parameter MessageGroupId is invalid. Reason: MessageGroupId can only include "
    "alphanumeric and punctuation characters. 1 to 128 in length."
)


def send_many(client: Client, url: str, group: str, count: int) -> None:
    """Send `count` messages of one group, in tens."""
    for start in range(0, count, 10):
        entries = [
            {"Id": str(number), "MessageBody": f"{group}-{number}", "MessageGroupId": group}
            for number in range(start, start + 10)
        ]
        assert "Failed" not in client.call("SendMessageBatch", QueueUrl=url, Entries=entries)


def groups(messages: list[Members]) -> list[str]:
    return [message["Body"].split("-")[0] for message in messages]


# -- groups on standard queues ----------------------------------------------------------------------------------------


def test_group_is_kept_and_shown_without_sequence_number(sqs: Client, queue: str) -> None:
    sent = send_to_group(sqs, queue, "tenant", "x")
    entries = [{"Id": "a", "MessageBody": "x", "MessageGroupId": "tenant"}]
    answer = sqs.call("SendMessageBatch", QueueUrl=queue, Entries=entries)
    got = receive_count(sqs, queue, 2, AttributeNames=["All"])

    assert set(sent) == {"MessageId", "MD5OfMessageBody"}
    assert set(answer["Successful"][0]) == {"Id", "MessageId", "MD5OfMessageBody"}
    for message in got:
        assert message["Attributes"]["MessageGroupId"] == "tenant"
        assert not {"SequenceNumber", "MessageDeduplicationId"} & set(message["Attributes"])


def test_message_without_group_shows_none(sqs: Client, queue: str) -> None:
    send_to_group(sqs, queue, "tenant", "x")
    sqs.call("SendMessage", QueueUrl=queue, MessageBody="y")

    got = receive_count(sqs, queue, 2, AttributeNames=["All"])

    assert [message["Attributes"].get("MessageGroupId") for message in got] == ["tenant", None]


def test_same_body_and_group_is_no_duplicate(sqs: Client, queue: str) -> None:
    first, second = (send_to_group(sqs, queue, "tenant", "x") for _ in range(2))

    assert first["MessageId"] != second["MessageId"]
    assert counts(sqs, queue) == (2, 0, 0)


def test_group_in_flight_blocks_nothing(sqs: Client, queue: str) -> None:
    for body in "abc":
        send_to_group(sqs, queue, "tenant", body)

    got = [message for _ in range(3) for message in receive(sqs, queue, 1)]

    assert [message["Body"] for message in got] == ["a", "b", "c"]


@pytest.mark.parametrize("group", ["", "g" * 129, "a b", "ü"])
def test_group_is_refused(sqs: Client, queue: str, group: str) -> None:
    error = refusal(sqs, "SendMessage", QueueUrl=queue, MessageBody="x", MessageGroupId=group)

    assert (error.code, error.status) == ("InvalidParameterValue", 400)
    assert error.message == GROUP_RULE.format(group)


def test_deduplication_id_is_refused(sqs: Client, queue: str) -> None:
    members = {"MessageGroupId": "g", "MessageDeduplicationId": "d"}

    error = refusal(sqs, "SendMessage", QueueUrl=queue, MessageBody="x", **members)

    assert error.code == "InvalidParameterValue"
    assert "MessageDeduplicationId" in error.message


def test_group_goes_along_to_the_dead_letter_queue(
    sqs: Client, queue: str, make_queue: MakeQueue
) -> None:
    source = make_queue(RedrivePolicy=redrive(arn(sqs, queue)))
    send_to_group(sqs, source, "tenant", "x")
    receive(sqs, source, VisibilityTimeout=0)
    assert receive(sqs, source) == []

    (dead,) = receive_count(sqs, queue, 1, AttributeNames=["MessageGroupId"])

    assert dead["Attributes"] == {"MessageGroupId": "tenant"}


# -- fairness ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def crowded(current: Client, queue: str) -> str:
    """A queue with 40 messages of `noisy` in flight and 160 waiting."""
    send_many(current, queue, "noisy", 200)
    for _ in range(4):
        assert groups(receive(current, queue, 10, VisibilityTimeout=600)) == ["noisy"] * 10
    return queue


def test_quiet_group_passes_the_backlog_of_a_noisy_one(sqs: Client, crowded: str) -> None:
    send_to_group(sqs, crowded, "quiet", "quiet-1")
    send_to_group(sqs, crowded, "quiet", "quiet-2")

    got = receive(sqs, crowded, 10)

    assert [message["Body"] for message in got[:2]] == ["quiet-1", "quiet-2"]
    assert set(groups(got[2:])) <= {"noisy"}


def test_every_quiet_group_passes(sqs: Client, crowded: str) -> None:
    for tenant in ("b", "c", "a"):
        send_to_group(sqs, crowded, tenant, f"{tenant}-1")

    got = [message for _ in range(3) for message in receive(sqs, crowded, 1)]

    assert sorted(groups(got)) == ["a", "b", "c"]
    assert groups(receive(sqs, crowded, 1)) == ["noisy"]


def test_message_without_group_passes_too(sqs: Client, crowded: str) -> None:
    sqs.call("SendMessage", QueueUrl=crowded, MessageBody="alone-1")

    assert groups(receive(sqs, crowded, 1)) == ["alone"]


def test_noisy_group_loses_nothing(current: Client, crowded: str) -> None:
    send_to_group(current, crowded, "quiet", "quiet-1")
    got = receive_count(current, crowded, 161, VisibilityTimeout=600)

    assert groups(got) == ["quiet"] + ["noisy"] * 160
    assert len({message["Body"] for message in got}) == 161
    for message in got[-10:]:
        delete(current, crowded, message["ReceiptHandle"])
    assert counts(current, crowded) == (0, 191, 0)


def test_quiet_messages_given_back_pass_again(sqs: Client, crowded: str) -> None:
    send_to_group(sqs, crowded, "quiet", "quiet-1")
    assert groups(receive(sqs, crowded, 1, VisibilityTimeout=0)) == ["quiet"]

    assert groups(receive(sqs, crowded, 1)) == ["quiet"]
