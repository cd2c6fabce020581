"""Queues: create, find, list, configure, tag, purge, delete."""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from compat_tests.clients.raw import exchange
from compat_tests.facade import Client, counts, receive, refusal

Names = Callable[[], str]
DEFAULTS = {
    "ApproximateNumberOfMessages": "0",
    "ApproximateNumberOfMessagesDelayed": "0",
    "ApproximateNumberOfMessagesNotVisible": "0",
    "DelaySeconds": "0",
    "MaximumMessageSize": "1048576",
    "MessageRetentionPeriod": "345600",
    "ReceiveMessageWaitTimeSeconds": "0",
    "SqsManagedSseEnabled": "true",
    "VisibilityTimeout": "30",
}


def attributes(client: Client, url: str, *names: str) -> dict[str, str]:
    answer = client.call("GetQueueAttributes", QueueUrl=url, AttributeNames=list(names or ["All"]))
    return dict(answer.get("Attributes", {}))


# -- create and find -------------------------------------------------------------------------------


def test_url_ends_with_account_and_name_and_answers(sqs: Client, fresh_name: Names) -> None:
    name = fresh_name()

    url = sqs.call("CreateQueue", QueueName=name)["QueueUrl"]

    account, last = urlsplit(url).path.strip("/").split("/")[-2:]
    assert last == name
    assert account.isdigit()
    assert len(account) == 12
    assert exchange("GET", url, {}).status in {400, 403, 404}, "reachable, though unsigned"


def test_create_is_idempotent_over_the_attributes_given(sqs: Client, fresh_name: Names) -> None:
    name = fresh_name()
    given = {"VisibilityTimeout": "31", "DelaySeconds": "1"}
    url = sqs.call("CreateQueue", QueueName=name, Attributes=given)["QueueUrl"]
    sqs.call("SendMessage", QueueUrl=url, MessageBody="counters never matter")

    assert sqs.call("CreateQueue", QueueName=name)["QueueUrl"] == url
    assert sqs.call("CreateQueue", QueueName=name, Attributes=given)["QueueUrl"] == url
    one = {"DelaySeconds": "1"}
    assert sqs.call("CreateQueue", QueueName=name, Attributes=one)["QueueUrl"] == url


def test_create_compares_with_the_present_values(sqs: Client, fresh_name: Names) -> None:
    name = fresh_name()
    url = sqs.call("CreateQueue", QueueName=name, Attributes={"DelaySeconds": "1"})["QueueUrl"]
    sqs.call("SetQueueAttributes", QueueUrl=url, Attributes={"DelaySeconds": "2"})

    same = sqs.call("CreateQueue", QueueName=name, Attributes={"DelaySeconds": "2"})
    error = refusal(sqs, "CreateQueue", QueueName=name, Attributes={"DelaySeconds": "1"})

    assert same["QueueUrl"] == url
    assert error.code == "QueueAlreadyExists"
    assert error.message == (
        "A queue already exists with the same name and a different value for attribute DelaySeconds"
    )


def test_get_queue_url_finds_by_name_and_owner(sqs: Client, queue: str) -> None:
    account, name = urlsplit(queue).path.strip("/").split("/")[-2:]

    assert sqs.call("GetQueueUrl", QueueName=name)["QueueUrl"] == queue
    answer = sqs.call("GetQueueUrl", QueueName=name, QueueOwnerAWSAccountId=account)
    assert answer["QueueUrl"] == queue
    assert refusal(sqs, "GetQueueUrl", QueueName=name + "-not").status == 400


@pytest.mark.parametrize("owner", ["", "1234-5678-9012", "me"])
def test_an_owner_that_is_no_account_is_an_invalid_address(
    sqs: Client, queue: str, owner: str
) -> None:
    name = queue.rsplit("/", 1)[1]

    refused = refusal(sqs, "GetQueueUrl", QueueName=name, QueueOwnerAWSAccountId=owner)

    endpoint = f"http://{urlsplit(queue).netloc}/"
    assert (refused.status, refused.code) == (404, "InvalidAddress")
    assert refused.message == f"The address {endpoint} is not valid for this endpoint."


# -- list ------------------------------------------------------------------------------------------


def test_list_filters_by_prefix_in_order_of_names(sqs: Client, fresh_name: Names) -> None:
    prefix = fresh_name()
    for letter in "bca":
        sqs.call("CreateQueue", QueueName=f"{prefix}-{letter}")

    urls = sqs.call("ListQueues", QueueNamePrefix=prefix)["QueueUrls"]

    assert [url.rsplit("-", 1)[1] for url in urls] == ["a", "b", "c"]
    assert "QueueUrls" not in sqs.call("ListQueues", QueueNamePrefix=prefix + "-none")


def test_list_pages_only_when_asked_and_more_remain(sqs: Client, fresh_name: Names) -> None:
    prefix = fresh_name()
    names = [f"{prefix}-{number}" for number in range(10)]
    for name in names:
        sqs.call("CreateQueue", QueueName=name)

    first = sqs.call("ListQueues", QueueNamePrefix=prefix, MaxResults=2)
    token = first["NextToken"]
    rest = sqs.call("ListQueues", QueueNamePrefix=prefix, MaxResults=10, NextToken=token)

    assert len(first["QueueUrls"]) == 2
    listed = [url.rsplit("/", 1)[1] for url in first["QueueUrls"] + rest["QueueUrls"]]
    assert listed == names
    assert "NextToken" not in rest
    assert "NextToken" not in sqs.call("ListQueues", QueueNamePrefix=prefix)
    assert "NextToken" not in sqs.call("ListQueues", QueueNamePrefix=prefix, MaxResults=10)


# -- attributes ------------------------------------------------------------------------------------


def test_fresh_queue_has_exactly_the_attributes_of_aws(sqs: Client, queue: str) -> None:
    before = int(time.time()) - 60

    found = attributes(sqs, queue)

    created, modified = found.pop("CreatedTimestamp"), found.pop("LastModifiedTimestamp")
    arn = found.pop("QueueArn")
    account, name = urlsplit(queue).path.strip("/").split("/")[-2:]
    assert found == DEFAULTS
    assert arn.split(":")[:3] + arn.split(":")[4:] == ["arn", "aws", "sqs", account, name]
    assert before <= int(created) <= int(modified) <= before + 120


# -- purge and delete ------------------------------------------------------------------------------


def test_deleted_queue_is_gone_at_once(sqs: Client, queue: str) -> None:
    sqs.call("SendMessage", QueueUrl=queue, MessageBody="x")

    assert sqs.call("DeleteQueue", QueueUrl=queue) == {}

    gone = "AWS.SimpleQueueService.NonExistentQueue"
    assert refusal(sqs, "GetQueueUrl", QueueName=queue.rsplit("/", 1)[1]).code == gone
    assert refusal(sqs, "SendMessage", QueueUrl=queue, MessageBody="y").code == gone
    assert refusal(sqs, "DeleteQueue", QueueUrl=queue).code == gone


def test_queue_made_again_is_empty_and_new(sqs: Client, queue: str) -> None:
    name = queue.rsplit("/", 1)[1]
    sqs.call("SendMessage", QueueUrl=queue, MessageBody="of the first life")
    handle = receive(sqs, queue)[0]["ReceiptHandle"]
    sqs.call("DeleteQueue", QueueUrl=queue)

    answer = sqs.call("CreateQueue", QueueName=name, Attributes={"VisibilityTimeout": "5"})

    assert answer["QueueUrl"] == queue
    assert counts(sqs, queue) == (0, 0, 0)
    assert attributes(sqs, queue, "VisibilityTimeout") == {"VisibilityTimeout": "5"}
    error = refusal(sqs, "DeleteMessage", QueueUrl=queue, ReceiptHandle=handle)
    assert error.code == "ReceiptHandleIsInvalid"
