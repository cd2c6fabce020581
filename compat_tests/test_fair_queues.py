"""Groups on a standard queue. Fairness is in the transcripts."""

from __future__ import annotations

from collections.abc import Callable

from compat_tests.facade import Client, counts, receive, receive_count, send_to_group
from compat_tests.test_dead_letter import arn, redrive

MakeQueue = Callable[..., str]

# -- groups on standard queues ---------------------------------------------------------------------


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


def test_same_body_and_group_is_no_duplicate(sqs: Client, queue: str) -> None:
    first, second = (send_to_group(sqs, queue, "tenant", "x") for _ in range(2))

    assert first["MessageId"] != second["MessageId"]
    assert counts(sqs, queue) == (2, 0, 0)


def test_group_goes_along_to_the_dead_letter_queue(
    sqs: Client, queue: str, make_queue: MakeQueue
) -> None:
    source = make_queue(RedrivePolicy=redrive(arn(sqs, queue)))
    send_to_group(sqs, source, "tenant", "x")
    receive(sqs, source, VisibilityTimeout=0)
    assert receive(sqs, source) == []

    (dead,) = receive_count(sqs, queue, 1, AttributeNames=["MessageGroupId"])

    assert dead["Attributes"] == {"MessageGroupId": "tenant"}
