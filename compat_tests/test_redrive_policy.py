"""Valid dead-letter queues and their sources: RedriveAllowPolicy, types, source lists."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.facade import (
    Client,
    ClientError,
    Credentials,
    create_fifo_queue,
    receive,
    refusal,
)
from compat_tests.test_dead_letter import arn, redrive
from compat_tests.test_queues import attributes

Names = Callable[[], str]
MakeQueue = Callable[..., str]


def permission(kind: str, *sources: str) -> str:
    """A RedriveAllowPolicy."""
    policy: dict[str, Any] = {"redrivePermission": kind}
    if sources:
        policy["sourceQueueArns"] = list(sources)
    return json.dumps(policy)


def set_policy(client: Client, url: str, **given: str) -> None:
    assert client.call("SetQueueAttributes", QueueUrl=url, Attributes=given) == {}


def check(error: ClientError) -> None:
    assert (error.code, error.status) == ("InvalidParameterValue", 400)


def refuse_source(client: Client, source: str, target: str) -> None:
    """Assert that the existing source may not name the target, and stays unchanged."""
    given = {"RedrivePolicy": redrive(arn(client, target))}

    check(refusal(client, "SetQueueAttributes", QueueUrl=source, Attributes=given))

    assert "RedrivePolicy" not in attributes(client, source)


# -- RedriveAllowPolicy ----------------------------------------------------------------------------


def test_deny_all_refuses_every_source(
    sqs: Client, queue: str, make_queue: MakeQueue, fresh_name: Names
) -> None:
    set_policy(sqs, queue, RedriveAllowPolicy=permission("denyAll"))
    given = {"RedrivePolicy": redrive(arn(sqs, queue))}
    name = fresh_name()

    refuse_source(sqs, make_queue(), queue)
    check(refusal(sqs, "CreateQueue", QueueName=name, Attributes=given))

    gone = refusal(sqs, "GetQueueUrl", QueueName=name)
    assert gone.code == "AWS.SimpleQueueService.NonExistentQueue", "it was not made"


def test_by_queue_lets_in_the_listed_ones_only(
    sqs: Client, queue: str, make_queue: MakeQueue, fresh_name: Names
) -> None:
    listed, other = make_queue(), make_queue()
    made = fresh_name()
    made_arn = arn(sqs, queue).rsplit(":", 1)[0] + ":" + made
    allowed = permission("byQueue", arn(sqs, listed), made_arn)
    set_policy(sqs, queue, RedriveAllowPolicy=allowed)
    given = {"RedrivePolicy": redrive(arn(sqs, queue))}

    set_policy(sqs, listed, **given)
    sqs.call("CreateQueue", QueueName=made, Attributes=given)

    refuse_source(sqs, other, queue)
    check(refusal(sqs, "CreateQueue", QueueName=fresh_name(), Attributes=given))
    sources = sqs.call("ListDeadLetterSourceQueues", QueueUrl=queue)["queueUrls"]
    assert sorted(url.rsplit("/", 1)[1] for url in sources) == sorted(
        [made, listed.rsplit("/", 1)[1]]
    )


def test_policy_that_denies_later_keeps_messages_in_their_source(
    sqs: Client, queue: str, make_queue: MakeQueue
) -> None:
    source = make_queue(RedrivePolicy=redrive(arn(sqs, queue)))
    set_policy(sqs, queue, RedriveAllowPolicy=permission("denyAll"))
    sqs.call("SendMessage", QueueUrl=source, MessageBody="x")

    assert len(receive(sqs, source, VisibilityTimeout=0)) == 1
    assert [message["Body"] for message in receive(sqs, source)] == ["x"]


# -- source lists ----------------------------------------------------------------------------------


def sources_of(client: Client, url: str, **members: object) -> list[str]:
    answer = client.call("ListDeadLetterSourceQueues", QueueUrl=url, **members)
    return list(answer["queueUrls"])


def test_source_list_is_paged(sqs: Client, queue: str, make_queue: MakeQueue) -> None:
    policy = redrive(arn(sqs, queue))
    sources = sorted(make_queue(RedrivePolicy=policy) for _ in range(5))

    pages: list[list[str]] = []
    more: dict[str, Any] = {}
    while not pages or more:
        answer = sqs.call("ListDeadLetterSourceQueues", QueueUrl=queue, MaxResults=2, **more)
        pages.append(answer["queueUrls"])
        more = {"NextToken": answer["NextToken"]} if "NextToken" in answer else {}

    assert [len(page) for page in pages] == [2, 2, 1]
    assert sorted(url for page in pages for url in page) == sources
    exact = sqs.call("ListDeadLetterSourceQueues", QueueUrl=queue, MaxResults=5)
    assert "NextToken" not in exact


def test_source_list_follows_policies_and_deletes(
    sqs: Client, queue: str, make_queue: MakeQueue
) -> None:
    policy = redrive(arn(sqs, queue))
    kept, cleared, turned, deleted = (make_queue(RedrivePolicy=policy) for _ in range(4))
    assert len(sources_of(sqs, queue)) == 4

    set_policy(sqs, cleared, RedrivePolicy="")
    set_policy(sqs, turned, RedrivePolicy=redrive(arn(sqs, kept)))
    sqs.call("DeleteQueue", QueueUrl=deleted)

    assert sources_of(sqs, queue) == [kept]
    assert sources_of(sqs, kept) == [turned]


def test_fifo_sources_are_listed(sqs: Client, fresh_name: Names) -> None:
    target = create_fifo_queue(sqs, fresh_name())
    source = create_fifo_queue(sqs, fresh_name(), RedrivePolicy=redrive(arn(sqs, target)))

    assert sources_of(sqs, target) == [source]


# -- other partitions ------------------------------------------------------------------------------


def test_regions_of_china_have_arns_of_their_partition(
    endpoint: str, credentials: Credentials, fresh_name: Names
) -> None:
    sqs = Boto3Client(endpoint, credentials._replace(region="cn-north-1"))
    name = fresh_name()
    account = sqs.call("CreateQueue", QueueName=fresh_name())["QueueUrl"].split("/")[-2]
    source_arn = f"arn:aws-cn:sqs:cn-north-1:{account}:{name}"
    allowed = {"RedriveAllowPolicy": permission("byQueue", source_arn)}
    dead = sqs.call("CreateQueue", QueueName=fresh_name(), Attributes=allowed)["QueueUrl"]
    given = {"RedrivePolicy": redrive(arn(sqs, dead)), "VisibilityTimeout": "0"}
    source = sqs.call("CreateQueue", QueueName=name, Attributes=given)["QueueUrl"]
    sqs.call(
        "AddPermission",
        QueueUrl=source,
        Label="l",
        AWSAccountIds=[account],
        Actions=["SendMessage"],
    )
    sqs.call("SendMessage", QueueUrl=source, MessageBody="x")
    assert len(receive(sqs, source)) == 1
    assert receive(sqs, source) == []
    (message,) = receive(sqs, dead, WaitTimeSeconds=5, MessageSystemAttributeNames=["All"])
    sqs.call("StartMessageMoveTask", SourceArn=arn(sqs, dead), DestinationArn=source_arn)
    (task,) = sqs.call("ListMessageMoveTasks", SourceArn=arn(sqs, dead))["Results"]
    (statement,) = json.loads(attributes(sqs, source, "Policy")["Policy"])["Statement"]

    assert arn(sqs, source) == source_arn
    assert arn(sqs, dead).startswith("arn:aws-cn:sqs:cn-north-1:")
    assert message["Attributes"]["DeadLetterQueueSourceArn"] == source_arn
    assert (task["SourceArn"], task["DestinationArn"]) == (arn(sqs, dead), source_arn)
    assert statement["Resource"] == source_arn
    assert statement["Principal"] == {"AWS": f"arn:aws-cn:iam::{account}:root"}
    sqs.close()
