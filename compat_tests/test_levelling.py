"""Load levelling: limits of consumers that are no errors, and refusals that SDKs wait for."""

from __future__ import annotations

from collections.abc import Callable
from urllib.request import urlopen

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError as BotocoreError

from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.facade import Client, Credentials, receive, refusal
from compat_tests.node_process import NodeProcess


def _tag(sqs: Client, url: str, **tags: str) -> str:
    named = {f"holdfast:{key.replace('_', '-')}": value for key, value in tags.items()}
    sqs.call("TagQueue", QueueUrl=url, Tags=named)
    return url


def _counted(node: NodeProcess, url: str, name: str) -> str:
    """The value of a queue's counter."""
    with urlopen(f"{node.url}/_holdfast/metrics", timeout=60) as page:
        lines = page.read().decode().splitlines()
    label = f'queue="{url.rpartition("/")[2]}"'
    shown = {line.partition("{")[0]: line.split()[-1] for line in lines if label in line}
    return str(shown[f"holdfast_queue_{name}_total"])


def test_messages_that_tags_refuse_are_counted(
    node: NodeProcess, current: Boto3Client, make_queue: Callable[..., str]
) -> None:
    full, slow = _tag(current, make_queue(), max_messages="3"), make_queue()
    entries = [{"Id": str(number), "MessageBody": "x"} for number in range(5)]
    current.call("SendMessageBatch", QueueUrl=full, Entries=entries)
    assert refusal(current, "SendMessage", QueueUrl=full, MessageBody="x").code == "OverLimit"
    current.call("SendMessageBatch", QueueUrl=slow, Entries=entries)
    _tag(current, slow, throttle_depth="1")
    for _ in range(2):
        error = refusal(current, "SendMessageBatch", QueueUrl=slow, Entries=entries)
        assert error.code == "RequestThrottled"

    counted = [_counted(node, full, f"messages_{name}") for name in ("without_room", "throttled")]
    assert counted == ["3.0", "0.0"]
    throttled = float(_counted(node, slow, "messages_throttled"))
    assert throttled >= 10, "boto3 repeats them"
    assert throttled % len(entries) == 0


def test_a_limited_receive_is_counted_apart(
    node: NodeProcess, current: Boto3Client, make_queue: Callable[..., str]
) -> None:
    url = _tag(current, make_queue(), max_in_flight="1")
    receive(current, url)
    for body in "ab":
        current.call("SendMessage", QueueUrl=url, MessageBody=body)
    receive(current, url)
    receive(current, url)

    assert _counted(node, url, "limited_receives") == "1.0"
    assert _counted(node, url, "empty_receives") == "2.0"


def test_sends_above_the_depth_are_refused_with_a_status_that_sdks_repeat(
    sqs: Client, make_queue: Callable[..., str]
) -> None:
    url = _tag(sqs, make_queue(), throttle_depth="1")
    sqs.call("SendMessage", QueueUrl=url, MessageBody="a")

    error = refusal(sqs, "SendMessage", QueueUrl=url, MessageBody="b")

    assert (error.code, error.status) == ("RequestThrottled", 403)
    assert error.message == (
        "The queue has too many messages waiting for consumers (tag holdfast:throttle-depth)."
    )


@pytest.mark.slow  # SDKs wait between their attempts
@pytest.mark.parametrize("mode", ["legacy", "standard", "adaptive"])
def test_boto3_repeats_a_throttled_send_in_each_of_its_modes(
    endpoint: str,
    credentials: Credentials,
    current: Boto3Client,
    make_queue: Callable[..., str],
    mode: str,
) -> None:
    url = _tag(current, make_queue(), throttle_depth="1")
    current.call("SendMessage", QueueUrl=url, MessageBody="a")
    client = boto3.client(
        "sqs",
        endpoint_url=endpoint,
        region_name=credentials.region,
        aws_access_key_id=credentials.access_key_id,
        aws_secret_access_key=credentials.secret_access_key,
        config=Config(retries={"mode": mode, "total_max_attempts": 2}),
    )

    with pytest.raises(BotocoreError) as caught:
        client.send_message(QueueUrl=url, MessageBody="b")

    assert caught.value.response["ResponseMetadata"]["RetryAttempts"] == 1
