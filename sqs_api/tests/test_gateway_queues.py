"""The queue that a request names, its URL, and the actions on queues."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from auth.caller import Caller
from auth.credentials import AccessKey, CredentialSet
from auth.sigv4 import Verifier
from auth.tests.signed_requests import sign_header
from sqs_api.tests.serving import (
    ACCOUNT,
    Answer,
    Service,
    json_request,
    query_request,
    request_bytes,
    running,
)

MINE = AccessKey("AKIDMINE", "secret", "111111111111", "AIDAMINE")
OTHERS = AccessKey("AKIDOTHERS", "secret", "222222222222", "AIDAOTHERS")
_NOW_S = 1_767_225_600.0 + 12 * 3600
SIGNED_HEADERS = {"Content-Type": "application/x-amz-json-1.0"}


@pytest_asyncio.fixture
async def signed() -> AsyncIterator[Service]:
    """A service that checks signatures, at the time they were made."""
    verifier = Verifier(CredentialSet([MINE, OTHERS]))

    def authenticate(
        method: bytes, target: bytes, headers: Mapping[bytes, bytes], body: bytes, now_s: float
    ) -> Caller:
        return verifier.verify(method, target, headers, body, _NOW_S)

    async with running(authenticate=authenticate, enforced=True) as service:
        yield service


def _signed(key: AccessKey, action: str, *, region: str = "us-east-1", **members: Any) -> bytes:
    unsigned = json_request(action, **members)
    body = unsigned.partition(b"\r\n\r\n")[2]
    headers = {**SIGNED_HEADERS, "X-Amz-Target": f"AmazonSQS.{action}"}
    request = sign_header(key=key, headers=headers, body=body, region=region)
    sent = {
        name.decode(): value.decode() for name, value in request.headers.items() if name != b"host"
    }
    return request_bytes(body, sent)


def _as(key_id: str, region: str = "us-east-1") -> dict[str, str]:
    """Headers of a request that claims a signer, for open mode."""
    credential = f"Credential={key_id}/20260101/{region}/sqs/aws4_request"
    return {"Authorization": f"AWS4-HMAC-SHA256 {credential}, SignedHeaders=host, Signature=0"}


# -- accounts --------------------------------------------------------------------------------------


async def test_signed_request_is_served_on_the_signers_account(signed: Service) -> None:
    answer = await signed.ask(_signed(MINE, "CreateQueue", QueueName="q"))

    assert answer.json == {"QueueUrl": f"http://localhost:9324/{MINE.account}/q"}


async def test_unsigned_request_is_refused_before_it_is_read(signed: Service) -> None:
    answer = await signed.ask(json_request("CreateQueue", QueueName="q"))

    assert answer.status == 403
    assert answer.json["__type"].endswith("#MissingAuthenticationTokenException")


async def test_another_accounts_queue_is_denied_whether_it_exists_or_not(signed: Service) -> None:
    await signed.ask(_signed(OTHERS, "CreateQueue", QueueName="q"))
    answers: list[Answer] = []
    for name in ("q", "missing"):
        url = f"http://localhost:9324/{OTHERS.account}/{name}"
        for action, members in (
            ("SendMessage", {"MessageBody": "x"}),
            ("ReceiveMessage", {}),
            ("PurgeQueue", {}),
            ("DeleteQueue", {}),
            ("GetQueueAttributes", {}),
            ("TagQueue", {"Tags": {"a": "b"}}),
        ):
            answers.append(await signed.ask(_signed(MINE, action, QueueUrl=url, **members)))
        owner = {"QueueOwnerAWSAccountId": OTHERS.account}
        answers.append(await signed.ask(_signed(MINE, "GetQueueUrl", QueueName=name, **owner)))

    assert {answer.status for answer in answers} == {403}
    assert {answer.json["__type"].split("#")[1] for answer in answers} == {"AccessDeniedException"}


async def test_bare_name_is_the_callers_own_queue(signed: Service) -> None:
    for key in (MINE, OTHERS):
        await signed.ask(_signed(key, "CreateQueue", QueueName="q"))
    await signed.ask(_signed(MINE, "SendMessage", QueueUrl="q", MessageBody="mine"))

    others = await signed.ask(_signed(OTHERS, "ReceiveMessage", QueueUrl="q"))
    mine = await signed.ask(_signed(MINE, "ReceiveMessage", QueueUrl="q"))

    assert others.json == {}
    assert [message["Body"] for message in mine.json["Messages"]] == ["mine"]


async def test_secrets_and_handles_of_refused_requests_stay_out_of_the_answer(
    signed: Service,
) -> None:
    request = _signed(MINE, "ListQueues").replace(b"Signature=", b"Signature=0")

    answer = await signed.ask(request)

    assert answer.status == 403
    assert MINE.secret_access_key.encode() not in answer.body


async def test_open_mode_takes_the_account_from_a_12_digit_access_key(service: Service) -> None:
    for key_id, account in (("123456789012", "123456789012"), ("AKIDEXAMPLE", ACCOUNT)):
        answer = await service.ask(json_request("CreateQueue", QueueName="q", headers=_as(key_id)))
        assert answer.json["QueueUrl"].split("/")[3] == account


async def test_regions_are_separate(service: Service) -> None:
    for region in ("us-east-1", "eu-west-1"):
        request = json_request("CreateQueue", QueueName=region, headers=_as("AKID", region))
        assert (await service.ask(request)).status == 200

    for region, other in (("us-east-1", "eu-west-1"), ("eu-west-1", "us-east-1")):
        listed = await service.ask(json_request("ListQueues", headers=_as("AKID", region)))
        assert [url.rsplit("/", 1)[1] for url in listed.json["QueueUrls"]] == [region]
        missing = json_request("GetQueueUrl", QueueName=other, headers=_as("AKID", region))
        assert (await service.ask(missing)).status == 400


# -- URLs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["h", "h:1", "[::1]:9324", "sqs.us-east-1.localhost", "127.0.0.1:80"]
)
async def test_queue_url_follows_the_host_header(service: Service, host: str) -> None:
    request = json_request("CreateQueue", QueueName="q").replace(b"localhost:9324", host.encode())

    assert (await service.ask(request)).json["QueueUrl"] == f"http://{host}/{ACCOUNT}/q"


@pytest.mark.parametrize("host", ["a/b", "a b", "user@h", "h?x", "h#x", '"', "<h>"])
async def test_odd_host_never_gets_into_a_queue_url(service: Service, host: str) -> None:
    request = json_request("CreateQueue", QueueName="q").replace(b"localhost:9324", host.encode())

    answer = await service.ask(request)

    assert answer.status == 400 or answer.json["QueueUrl"] == f"http://localhost/{ACCOUNT}/q"


async def test_queue_url_is_under_the_public_url_where_one_is_set() -> None:
    async with running(public_url="https://queues.example/sqs/") as service:
        url = await service.make_queue()
        assert url == f"https://queues.example/sqs/{ACCOUNT}/q"
        await service.call("SendMessage", QueueUrl=url, MessageBody="x")


@pytest.mark.parametrize(
    "url",
    [f"http://other:1/{ACCOUNT}/q", f"https://h/region/{ACCOUNT}/q", "q", f"/{ACCOUNT}/q"],
)
async def test_queue_is_found_by_the_path_of_its_url_alone(service: Service, url: str) -> None:
    await service.make_queue()

    assert "MessageId" in await service.call("SendMessage", QueueUrl=url, MessageBody="x")


# -- actions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["x", "%%%", "é", "////", "gA==", " "])
async def test_bad_token_is_refused(service: Service, token: str) -> None:
    answer = await service.ask(json_request("ListQueues", MaxResults=1, NextToken=token))

    assert (answer.status, answer.headers["x-amzn-query-error"]) == (
        400,
        "InvalidParameterValue;Sender",
    )


async def test_life_of_a_queue(service: Service) -> None:
    url = await service.make_queue(DelaySeconds="0")
    await service.call("SetQueueAttributes", QueueUrl=url, Attributes={"DelaySeconds": "5"})
    await service.call("TagQueue", QueueUrl=url, Tags={"a": "b", "c": "d"})
    await service.call("UntagQueue", QueueUrl=url, TagKeys=["a", "missing"])
    shown = await service.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["DelaySeconds"])
    tags = await service.call("ListQueueTags", QueueUrl=url)
    found = await service.call("GetQueueUrl", QueueName="q")
    await service.call("DeleteQueue", QueueUrl=url)
    gone = await service.ask(json_request("SendMessage", QueueUrl=url, MessageBody="x"))

    assert shown == {"Attributes": {"DelaySeconds": "5"}}
    assert tags == {"Tags": {"c": "d"}}
    assert found == {"QueueUrl": url}
    assert gone.json["__type"] == "com.amazonaws.sqs#QueueDoesNotExist"


async def test_life_of_a_fifo_queue(service: Service) -> None:
    given = {"FifoQueue": "true", "DeduplicationScope": "messageGroup"}
    url = await service.make_queue("q.fifo", **given)
    asked = {"QueueUrl": url, "AttributeNames": ["All"]}

    assert await service.make_queue("q.fifo", **given) == url
    shown = (await service.call("GetQueueAttributes", **asked))["Attributes"]
    change = {"DeduplicationScope": "queue", "ContentBasedDeduplication": "true"}
    await service.call("SetQueueAttributes", QueueUrl=url, Attributes=change)
    changed = (await service.call("GetQueueAttributes", **asked))["Attributes"]

    assert shown["FifoThroughputLimit"] == "perQueue"
    assert given | {"ContentBasedDeduplication": "false"} == {
        name: shown[name] for name in (*given, "ContentBasedDeduplication")
    }
    assert change == {name: changed[name] for name in change}
    (queue,) = service.catalog
    assert queue.deduplication_scope == "messageGroup"


async def test_changed_settings_hold_for_the_messages_that_are_there(service: Service) -> None:
    url = await service.make_queue("q.fifo", FifoQueue="true", DelaySeconds="900")
    ids = {"MessageGroupId": "g", "MessageDeduplicationId": "d"}
    await service.call("SendMessage", QueueUrl=url, MessageBody="x", **ids)
    assert await service.call("ReceiveMessage", QueueUrl=url) == {}

    await service.call("SetQueueAttributes", QueueUrl=url, Attributes={"DelaySeconds": "0"})

    received = await service.call("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=2)
    assert [message["Body"] for message in received["Messages"]] == ["x"]


async def test_permissions_come_and_go_with_the_policy(service: Service) -> None:
    url = await service.make_queue()
    asked = {"QueueUrl": url, "AttributeNames": ["Policy"]}
    members: dict[str, Any] = {"QueueUrl": url, "Label": "crate", "Actions": ["*"]}
    members["AWSAccountIds"] = ["1" * 12]

    assert await service.call("AddPermission", **members) == {}
    policy = (await service.call("GetQueueAttributes", **asked))["Attributes"]["Policy"]
    again = await service.ask(json_request("AddPermission", **members))
    assert await service.call("RemovePermission", QueueUrl=url, Label="crate") == {}
    without = await service.call("GetQueueAttributes", **asked)
    gone = await service.ask(json_request("RemovePermission", QueueUrl=url, Label="crate"))

    (statement,) = json.loads(policy)["Statement"]
    assert (statement["Sid"], statement["Action"]) == ("crate", "SQS:*")
    assert without == {}
    for answer in (again, gone):
        code = answer.headers["x-amzn-query-error"]
        assert (answer.status, code) == (400, "InvalidParameterValue;Sender")


async def test_trace_header_and_names_of_the_client_do_not_reach_the_head_of_the_answer(
    service: Service,
) -> None:
    answer = await service.ask(
        query_request("GetQueueUrl", QueueName="a\r\nX-Injected: y", headers={"X-Request-Id": "1"})
    )

    assert answer.status == 400
    assert set(answer.headers) == {"Content-Type", "Content-Length", "Date", "x-amzn-RequestId"}
