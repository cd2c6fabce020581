"""AddPermission and RemovePermission: the resulting policy."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from compat_tests.facade import Client
from compat_tests.test_dead_letter import arn
from compat_tests.test_queues import attributes

MakeQueue = Callable[..., str]

ONE = "111111111111"


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


def test_permissions_are_of_their_queue(sqs: Client, queue: str, make_queue: MakeQueue) -> None:
    other = make_queue()
    allow(sqs, queue, "label", [ONE], "SendMessage")

    allow(sqs, other, "label", [ONE], "SendMessage")

    assert policy(sqs, other)["Id"] == f"{arn(sqs, other)}/SQSDefaultPolicy"
    revoke(sqs, queue, "label")
    assert "Policy" in attributes(sqs, other)


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


def test_a_policy_is_answered_in_one_form(sqs: Client, queue: str) -> None:
    """AWS answers without white space, with the members in this order, and lists of one as their
    element: controllers that compare texts have reported it."""
    statement = {
        "Condition": {"ArnEquals": {"aws:SourceArn": "arn:aws:sns:us-east-1:123456789012:t"}},
        "Resource": ["*"],
        "Action": ["sqs:SendMessage"],
        "Principal": {"AWS": ["123456789012"]},
        "Effect": "Allow",
        "Sid": "s",
    }
    document = {"Statement": statement, "Id": "i", "Version": "2012-10-17"}
    given = {"Policy": json.dumps(document, indent=2)}

    sqs.call("SetQueueAttributes", QueueUrl=queue, Attributes=given)

    assert attributes(sqs, queue, "Policy")["Policy"] == (
        '{"Version":"2012-10-17","Id":"i","Statement":[{"Sid":"s","Effect":"Allow",'
        '"Principal":{"AWS":"123456789012"},"Action":"sqs:SendMessage","Resource":"*",'
        '"Condition":{"ArnEquals":{"aws:SourceArn":"arn:aws:sns:us-east-1:123456789012:t"}}}]}'
    )
