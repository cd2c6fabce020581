"""The `aws` command line: one message's life, and one call of every action."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from compat_tests.clients.client_command_lines import CommandLineClient, command_name
from compat_tests.facade import Client, ClientError, Members, receive

Names = Callable[[], str]
MakeQueue = Callable[..., str]

_ARN = "arn:aws:sqs:us-east-1:000000000000:nowhere"

pytestmark = pytest.mark.cli


def test_life_of_a_message(
    command_line: CommandLineClient, current: Client, fresh_name: Names
) -> None:
    url = command_line.call("CreateQueue", QueueName=fresh_name())["QueueUrl"]

    sent = command_line.run(
        *("send-message", "--queue-url", url, "--message-body", "höld fast"),
        *("--message-attributes", "k={DataType=String,StringValue=x}", "--output", "json"),
    )
    assert sent.returncode == 0, sent.stderr
    got = command_line.call("ReceiveMessage", QueueUrl=url, MessageAttributeNames=["All"])
    (message,) = got["Messages"]
    handle = message["ReceiptHandle"]
    command_line.call("DeleteMessage", QueueUrl=url, ReceiptHandle=handle)

    answer = json.loads(sent.stdout)
    assert answer["MD5OfMessageAttributes"] == "a45daa70926828a2f0a1db3418e6feb4"
    assert message["Body"] == "höld fast"
    assert message["MD5OfMessageAttributes"] == answer["MD5OfMessageAttributes"]
    assert receive(current, url) == []


def test_one_call_of_every_other_action(
    command_line: CommandLineClient, current: Client, make_queue: MakeQueue
) -> None:
    first, second, doomed = make_queue(), make_queue(), make_queue()
    current.call("SendMessage", QueueUrl=first, MessageBody="x")
    handle = receive(current, first)[0]["ReceiptHandle"]
    name = second.rsplit("/", 1)[1]
    batch = [{"Id": "a", "MessageBody": "x"}]
    handles = [{"Id": "a", "ReceiptHandle": handle}]
    changes = [{"Id": "a", "ReceiptHandle": handle, "VisibilityTimeout": 60}]
    label = {"QueueUrl": second, "Label": "l"}
    calls: dict[str, Members] = {
        "ChangeMessageVisibility": {
            "QueueUrl": first,
            "ReceiptHandle": handle,
            "VisibilityTimeout": 60,
        },
        "ChangeMessageVisibilityBatch": {"QueueUrl": first, "Entries": changes},
        "SendMessageBatch": {"QueueUrl": second, "Entries": batch},
        "DeleteMessageBatch": {"QueueUrl": second, "Entries": handles},
        "GetQueueUrl": {"QueueName": name},
        "ListQueues": {"QueueNamePrefix": name},
        "GetQueueAttributes": {"QueueUrl": first, "AttributeNames": ["All"]},
        "SetQueueAttributes": {"QueueUrl": first, "Attributes": {"DelaySeconds": "0"}},
        "TagQueue": {"QueueUrl": first, "Tags": {"a": "b"}},
        "ListQueueTags": {"QueueUrl": second},
        "UntagQueue": {"QueueUrl": first, "TagKeys": ["b"]},
        "ListDeadLetterSourceQueues": {"QueueUrl": first},
        "PurgeQueue": {"QueueUrl": second},
        "DeleteQueue": {"QueueUrl": doomed},
        "AddPermission": {**label, "AWSAccountIds": ["111111111111"], "Actions": ["*"]},
        "RemovePermission": {"QueueUrl": second, "Label": "none"},
        "StartMessageMoveTask": {"SourceArn": _ARN},
        "CancelMessageMoveTask": {"TaskHandle": "e30="},
        "ListMessageMoveTasks": {"SourceArn": _ARN},
    }

    answers = command_line.call_all(calls)

    refused = {o: each.code for o, each in answers.items() if isinstance(each, ClientError)}
    served = {o: each for o, each in answers.items() if not isinstance(each, ClientError)}
    assert refused == {
        "RemovePermission": "InvalidParameterValue",
        "StartMessageMoveTask": "ResourceNotFoundException",
        "CancelMessageMoveTask": "InvalidParameterValue",
        "ListMessageMoveTasks": "ResourceNotFoundException",
    }
    assert served["AddPermission"] == {}
    assert served["GetQueueUrl"]["QueueUrl"] == second
    assert served["ListQueues"]["QueueUrls"] == [second]
    assert served["SendMessageBatch"]["Successful"][0]["Id"] == "a"
    assert served["ChangeMessageVisibilityBatch"]["Successful"] == [{"Id": "a"}]
    assert served["DeleteMessageBatch"]["Failed"][0]["Code"] == "ReceiptHandleIsInvalid"
    assert "QueueArn" in served["GetQueueAttributes"]["Attributes"]


def test_refusal_is_shown_with_its_code(command_line: CommandLineClient, queue: str) -> None:
    with pytest.raises(ClientError) as refused:
        command_line.call("SendMessage", QueueUrl=queue + "-not", MessageBody="x")

    assert refused.value.code == "AWS.SimpleQueueService.NonExistentQueue"
    assert refused.value.message == "The specified queue does not exist."


def test_commands_are_named_as_aws_names_them() -> None:
    assert command_name("ChangeMessageVisibilityBatch") == "change-message-visibility-batch"
