"""AddPermission and RemovePermission: the resulting policy, and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from compat_tests.clients.raw import RawClient
from compat_tests.facade import Client, refusal
from compat_tests.test_dead_letter import arn
from compat_tests.test_queues import attributes

MakeQueue = Callable[..., str]

ONE, OTHER = "111111111111", "222222222222"


def allow(client: Client, url: str, label: str, accounts: list[str], *actions: str) -> None:
    members = {"QueueUrl": url, "Label": label, "AWSAccountIds": accounts}
    assert client.call("AddPermission", **members, Actions=list(actions)) == {}


def revoke(client: Client, url: str, label: str) -> None:
    assert client.call("RemovePermission", QueueUrl=url, Label=label) == {}


def policy(client: Client, url: str) -> Any:
    return json.loads(attributes(client, url, "Policy")["Policy"])


def root(account: str) -> str:
    return f"arn:aws:iam::{account}:root"


def test_permission_writes_the_policy_of_aws(sqs: Client, queue: str) -> None:
    allow(sqs, queue, "label", [ONE], "ReceiveMessage")

    assert policy(sqs, queue) == {
        "Version": "2008-10-17",
        "Id": f"{arn(sqs, queue)}/SQSDefaultPolicy",
        "Statement": [
            {
                "Sid": "label",
                "Effect": "Allow",
                "Principal": {"AWS": root(ONE)},
                "Action": "SQS:ReceiveMessage",
                "Resource": arn(sqs, queue),
            }
        ],
    }
    assert "Policy" in attributes(sqs, queue)


def test_labels_stay_in_the_order_added_until_the_last_is_removed(sqs: Client, queue: str) -> None:
    for label in ("b", "c", "a"):
        allow(sqs, queue, label, [ONE], "SendMessage")

    assert [each["Sid"] for each in policy(sqs, queue)["Statement"]] == ["b", "c", "a"]
    revoke(sqs, queue, "c")
    assert [each["Sid"] for each in policy(sqs, queue)["Statement"]] == ["b", "a"]
    revoke(sqs, queue, "b")
    revoke(sqs, queue, "a")

    asked = {"QueueUrl": queue, "AttributeNames": ["Policy"]}
    assert sqs.call("GetQueueAttributes", **asked) == {}
    assert "Policy" not in attributes(sqs, queue)


def test_label_can_be_used_again_after_it_was_removed(sqs: Client, queue: str) -> None:
    allow(sqs, queue, "label", [ONE], "SendMessage")
    revoke(sqs, queue, "label")

    allow(sqs, queue, "label", [OTHER], "ReceiveMessage")

    (statement,) = policy(sqs, queue)["Statement"]
    assert statement["Principal"] == {"AWS": root(OTHER)}


def test_permissions_are_of_their_queue(sqs: Client, queue: str, make_queue: MakeQueue) -> None:
    other = make_queue()
    allow(sqs, queue, "label", [ONE], "SendMessage")

    allow(sqs, other, "label", [ONE], "SendMessage")

    assert policy(sqs, other)["Id"] == f"{arn(sqs, other)}/SQSDefaultPolicy"
    revoke(sqs, queue, "label")
    assert "Policy" in attributes(sqs, other)


def test_empty_policy_removes_the_permissions(sqs: Client, queue: str) -> None:
    allow(sqs, queue, "label", [ONE], "SendMessage")

    sqs.call("SetQueueAttributes", QueueUrl=queue, Attributes={"Policy": ""})

    assert "Policy" not in attributes(sqs, queue)
    allow(sqs, queue, "label", [ONE], "SendMessage")


def test_answers_on_the_query_wire(raw: RawClient, queue: str) -> None:
    added = raw.query(
        "AddPermission",
        QueueUrl=queue,
        Label="label",
        AWSAccountId__1=ONE,
        AWSAccountId__2=OTHER,
        ActionName__1="SendMessage",
    )
    removed = raw.query("RemovePermission", QueueUrl=queue, Label="label")

    for answer, action in ((added, "AddPermission"), (removed, "RemovePermission")):
        assert answer.status == 200
        assert f"<{action}Response " in answer.text
        assert f"{action}Result" not in answer.text


# -- refusals --------------------------------------------------------------------------------------


def test_label_in_use_is_refused(sqs: Client, queue: str) -> None:
    allow(sqs, queue, "crate", [ONE], "SendMessage")

    for account in (ONE, OTHER):
        members = {"Label": "crate", "AWSAccountIds": [account], "Actions": ["ReceiveMessage"]}
        error = refusal(sqs, "AddPermission", QueueUrl=queue, **members)

        assert (error.code, error.status) == ("InvalidParameterValue", 400)
        assert error.message == (
            "Value crate for parameter Label is invalid. Reason: Already exists."
        )
        if sqs.protocol == "json":
            assert error.query_code == "InvalidParameterValueException"
    assert len(policy(sqs, queue)["Statement"]) == 1


@pytest.mark.parametrize("operation", ["AddPermission", "RemovePermission"])
def test_missing_queue(sqs: Client, queue: str, operation: str) -> None:
    members: dict[str, Any] = {"QueueUrl": queue + "-not", "Label": "label"}
    if operation == "AddPermission":
        members |= {"AWSAccountIds": [ONE], "Actions": ["SendMessage"]}

    error = refusal(sqs, operation, **members)

    assert error.code == "AWS.SimpleQueueService.NonExistentQueue"


def test_a_policy_about_something_else_is_stored_and_shown(sqs: Client, queue: str) -> None:
    """Recorded from AWS, where the Resource of this policy is no ARN at all."""
    statement = {
        "Effect": "Allow",
        "Principal": {"AWS": "*"},
        "Action": "sqs:SendMessage",
        "Resource": "'$sqs_queue_arn'",
        "Condition": {"ArnEquals": {"aws:SourceArn": "'$sns_topic_arn'"}},
    }
    document = {"Version": "2012-10-17", "Statement": [statement]}
    given = {"Policy": json.dumps(document, indent=2)}

    sqs.call("SetQueueAttributes", QueueUrl=queue, Attributes=given)

    assert policy(sqs, queue) == document
