"""Users, their keys and policies, as boto3 sees changes by `holdfast` beside a running service."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from compat_tests.clients.boto3_client import connect
from compat_tests.facade import Credentials, eventually
from compat_tests.node_process import NodeProcess, run_command
from compat_tests.test_transactions import transacting

_EXPORT = re.compile(r"export (AWS_\w+)=(\S+)")
_ALLOW = {"Effect": "Allow", "Action": ["sqs:SendMessage", "sqs:GetQueueUrl"], "Resource": "*"}


def _run(node: NodeProcess, *arguments: str, status: int = 0) -> str:
    topic, *rest = arguments
    data = ("--data", str(node.data))
    head = (topic, rest.pop(0), *data) if topic == "policy" else (topic, *data)
    done = run_command(*head, *rest)
    assert done.returncode == status, done.stderr
    return done.stdout


def _key(node: NodeProcess, text: str) -> Credentials:
    exports = dict(_EXPORT.findall(text))
    return Credentials(
        exports["AWS_ACCESS_KEY_ID"],
        exports["AWS_SECRET_ACCESS_KEY"],
        node.credentials.region,
        exports.get("AWS_SESSION_TOKEN"),
    )


def _outcome(node: NodeProcess, key: Credentials, url: str) -> str:
    """The error code of a send, or "sent"."""
    try:
        connect(node.url, key).send_message(QueueUrl=url, MessageBody="x")
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return "sent"


@pytest.fixture
def url(node: NodeProcess) -> Any:
    client = connect(node.url, node.credentials)
    queue = client.create_queue(QueueName="users")["QueueUrl"]
    yield queue
    client.purge_queue(QueueUrl=queue)


def test_a_user_gets_in_by_a_policy_and_is_out_without(
    node: NodeProcess, url: str, tmp_path: Path
) -> None:
    _run(node, "users", "add", "ann")
    key = _key(node, _run(node, "credentials", "add", "--user", "ann"))
    assert _outcome(node, key, url) == "AccessDenied", "the key is good at once"
    check = ("policy", "check", "--user", "ann", "--action", "SendMessage", "--queue", "users")
    assert _run(node, *check, status=1).startswith("denied: arn:aws:iam::000000000000:user/ann")

    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"Version": "2012-10-17", "Statement": [_ALLOW]}))
    _run(node, "users", "put-policy", "ann", "senders", str(policy))
    assert _outcome(node, key, url) == "sent"
    assert "decided by: senders, statement 1" in _run(node, *check)

    own = _ALLOW | {"Condition": {"StringEquals": {"aws:username": "${aws:username}"}}}
    own |= {"Resource": "arn:aws:sqs:*:*:use?s", "Effect": "Deny", "Sid": "Named"}
    policy.write_text(json.dumps({"Version": "2012-10-17", "Statement": [own]}))
    _run(node, "users", "put-policy", "ann", "named", str(policy))
    assert "decided by: named, Named" in _run(node, *check, status=1)
    _run(node, "users", "remove-policy", "ann", "named")

    new = _key(node, _run(node, "credentials", "rotate", key.access_key_id))
    assert _outcome(node, new, url) == "sent"
    assert _outcome(node, key, url) == "sent", "the old key stays valid for a while"

    _run(node, "users", "remove", "ann")
    eventually(lambda: _outcome(node, key, url) == "InvalidClientTokenId")


def test_a_temporary_key_needs_its_token_and_ends(node: NodeProcess, url: str) -> None:
    key = _key(node, _run(node, "credentials", "session", "--duration", "1h"))
    assert _outcome(node, key, url) == "sent"
    assert _outcome(node, key._replace(session_token=None), url) == "InvalidClientTokenId"
    assert _outcome(node, key._replace(session_token="other"), url) == "InvalidClientTokenId"

    short = _key(node, _run(node, "credentials", "session", "--duration", "1s"))
    eventually(lambda: _outcome(node, short, url) == "ExpiredToken")


def test_each_entry_of_a_transaction_needs_the_permission_of_its_action(
    node: NodeProcess, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = connect(node.url, node.credentials)
    owner.add_permission(
        QueueUrl=url, Label="senders", AWSAccountIds=["333333333333"], Actions=["SendMessage"]
    )
    owner.send_message(QueueUrl=url, MessageBody="x")
    handle = owner.receive_message(QueueUrl=url)["Messages"][0]["ReceiptHandle"]
    other = _key(node, _run(node, "credentials", "add", "--account", "333333333333"))
    holdfast = transacting(node.url, other, tmp_path, monkeypatch)
    send = {"Send": {"QueueUrl": url, "MessageBody": "y"}}
    delete = {"Delete": {"QueueUrl": url, "ReceiptHandle": handle}}

    holdfast.transact_messages(TransactItems=[send])
    with pytest.raises(ClientError) as refused:
        holdfast.transact_messages(TransactItems=[send, delete])

    assert refused.value.response["Error"]["Code"] == "AccessDeniedException"
    (message,) = owner.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert message["Body"] == "y"


def test_sender_id_is_the_account_of_its_root_and_the_id_of_a_user(
    node: NodeProcess, url: str, tmp_path: Path
) -> None:
    _run(node, "users", "add", "bob")
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"Version": "2012-10-17", "Statement": [_ALLOW]}))
    _run(node, "users", "put-policy", "bob", "senders", str(policy))
    key = _key(node, _run(node, "credentials", "add", "--user", "bob"))
    eventually(lambda: _outcome(node, key, url) == "sent")
    session = _key(node, _run(node, "credentials", "session", "--duration", "1h"))
    eventually(lambda: _outcome(node, session, url) == "sent")
    root = connect(node.url, node.credentials)
    root.send_message(QueueUrl=url, MessageBody="x")

    received = [
        root.receive_message(QueueUrl=url, AttributeNames=["SenderId"])["Messages"][0]
        for _ in range(3)
    ]

    senders = [message["Attributes"]["SenderId"] for message in received]
    assert senders[0].startswith("AIDA")
    assert senders[1:] == ["000000000000"] * 2, "a session of the root, and the root"


def test_a_kms_key_needs_a_grant_for_others_and_a_policy_for_users(
    node: NodeProcess, tmp_path: Path
) -> None:
    _run(node, "keys", "add", "orders")
    client = connect(node.url, node.credentials)
    url = client.create_queue(
        QueueName="keyed", Attributes={"KmsMasterKeyId": "alias/orders", "VisibilityTimeout": "0"}
    )["QueueUrl"]
    actions = ["SendMessage", "ReceiveMessage"]
    client.add_permission(
        QueueUrl=url, Label="others", AWSAccountIds=["222222222222"], Actions=actions
    )
    other = _key(node, _run(node, "credentials", "add", "--account", "222222222222"))
    _run(node, "users", "add", "kim")
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"Statement": [_ALLOW | {"Action": "sqs:*"}]}))
    _run(node, "users", "put-policy", "kim", "queues", str(policy))
    kim = _key(node, _run(node, "credentials", "add", "--user", "kim"))

    assert _outcome(node, node.credentials, url) == "sent"
    for key in (other, kim):
        assert _outcome(node, key, url) == "KMS.AccessDeniedException"
        denied = connect(node.url, key)
        with pytest.raises(denied.exceptions.KmsAccessDenied, match="perform: kms:Decrypt on"):
            denied.receive_message(QueueUrl=url)

    policy.write_text(json.dumps({"Statement": [_ALLOW | {"Action": "kms:*"}]}))
    _run(node, "users", "put-policy", "kim", "keys", str(policy))
    _run(node, "keys", "grant", "orders", "--to", "222222222222")
    for key in (other, kim):
        assert _outcome(node, key, url) == "sent"
        assert connect(node.url, key).receive_message(QueueUrl=url)["Messages"]

    _run(node, "keys", "revoke", "orders", "--from", "222222222222")
    eventually(lambda: _outcome(node, other, url) == "KMS.AccessDeniedException")
    client.delete_queue(QueueUrl=url)
