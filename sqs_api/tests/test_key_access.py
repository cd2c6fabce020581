"""KMS keys belong to accounts: access to queues that name one, and the wording of refusals."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from auth.identities import Identities, User
from auth.policy import NamedPolicy
from auth.policy_document import Kind, read_policy
from cluster.keys.key_owners import Grant
from sqs_api.tests.callers import authenticate
from sqs_api.tests.serving import ACCOUNT, REGION, Answer, Service, json_request, running

OTHER = "2" * 12
SEND_AND_RECEIVE = ("SendMessage", "ReceiveMessage")
SQS = {"Effect": "Allow", "Action": "sqs:*", "Resource": "*"}
GENERATE, DECRYPT = "kms:GenerateDataKey", "kms:Decrypt"
BOTH = Grant(OTHER, ("Decrypt", "GenerateDataKey"))
NOT_GRANTED = (
    "because the resource does not exist in this Region, no resource-based policies allow access, "
    "or a resource-based policy explicitly denies access"
)


@pytest_asyncio.fixture
async def service() -> AsyncIterator[Service]:
    """Each of two accounts has a key `orders`."""
    async with running(authenticate=authenticate, enforced=True) as parts:
        for account in (ACCOUNT, OTHER):
            await parts.keyring.add("orders", account)
        yield parts


def _let(service: Service, who: str, *statements: dict[str, Any]) -> str:
    """Make a user with these policies; returns its name for the header."""
    account, _, name = who.partition("/")
    text = json.dumps({"Version": "2012-10-17", "Statement": list(statements)})
    policy = NamedPolicy("p", read_policy(text, Kind.IDENTITY))
    service.access.replace(Identities([User(account, name, "AIDA" + name.upper(), {}, (policy,))]))
    return who


def _key(service: Service, account: str = ACCOUNT) -> str:
    return service.keyring.named("orders", account).key_id


def _key_arn(service: Service, account: str) -> str:
    return f"arn:aws:kms:{REGION}:{account}:key/{_key(service, account)}"


async def _as(service: Service, who: str, action: str, **members: Any) -> Answer:
    headers = {"who": who} if who else {}
    return await service.ask(json_request(action, headers=headers, **members))


async def _queue(
    service: Service, reference: str, account: str = ACCOUNT, name: str = "q", **more: str
) -> str:
    """A queue that names a key, and which lets every account in."""
    allow = {"Effect": "Allow", "Principal": "*", "Action": "sqs:*", "Resource": "*"}
    policy = json.dumps({"Statement": [allow]})
    attributes = {"Policy": policy, "KmsMasterKeyId": reference, "VisibilityTimeout": "0", **more}
    made = await _as(service, account, "CreateQueue", QueueName=name, Attributes=attributes)
    assert made.status == 200, made
    url: str = made.json["QueueUrl"]
    return url


async def _refusals(service: Service, who: str, url: str) -> list[str]:
    """The refusals of sending one message, sending several, and receiving; empty for a success."""
    entries = [{"Id": "1", "MessageBody": "x"}]
    answers = [
        await _as(service, who, "SendMessage", QueueUrl=url, MessageBody="x"),
        await _as(service, who, "SendMessageBatch", QueueUrl=url, Entries=entries),
        await _as(service, who, "ReceiveMessage", QueueUrl=url),
    ]
    for answer in answers:
        if answer.status != 200:
            assert answer.status == 400
            assert answer.json["__type"] == "com.amazonaws.sqs#KmsAccessDenied"
            assert answer.headers["x-amzn-query-error"] == "KMS.AccessDeniedException;Sender"
    return ["" if answer.status == 200 else answer.json["message"] for answer in answers]


def _denied(who: str, permission: str, arn: str, reason: str) -> str:
    account, _, user = who.partition("/")
    arn_of_who = f"arn:aws:iam::{account}:{f'user/{user}' if user else 'root'}"
    return (
        f"User: {arn_of_who} is not authorized to perform: {permission} on resource: {arn} {reason}"
    )


ALLOWED = [""] * 3


# -- accounts --------------------------------------------------------------------------------------


async def test_an_alias_is_that_of_the_queues_account(service: Service) -> None:
    for account in (ACCOUNT, OTHER):
        url = await _queue(service, "alias/orders", account)
        assert await _refusals(service, account, url) == ALLOWED

    await service.keyring.set_enabled(_key(service, OTHER), False)

    mine = await _as(service, ACCOUNT, "SendMessage", QueueUrl="q", MessageBody="x")
    others = await _as(service, OTHER, "SendMessage", QueueUrl="q", MessageBody="x")
    assert (mine.status, others.status) == (200, 400)
    assert others.json["__type"].endswith("#KmsDisabled")


@pytest.mark.parametrize("kind", ["key", "alias"])
async def test_a_key_of_another_account_needs_a_grant(service: Service, kind: str) -> None:
    arn = _key_arn(service, OTHER)
    reference = arn if kind == "key" else f"arn:aws:kms:{REGION}:{OTHER}:alias/orders"
    url = await _queue(service, reference)

    assert await _refusals(service, ACCOUNT, url) == [
        _denied(ACCOUNT, GENERATE, arn, NOT_GRANTED),
        _denied(ACCOUNT, GENERATE, arn, NOT_GRANTED),
        _denied(ACCOUNT, DECRYPT, arn, NOT_GRANTED),
    ]
    await service.keyring.grant(_key(service, OTHER), BOTH._replace(grantee=ACCOUNT))
    assert await _refusals(service, ACCOUNT, url) == ALLOWED
    await service.keyring.revoke(_key(service, OTHER), ACCOUNT)
    assert all(await _refusals(service, ACCOUNT, url))


async def test_a_bare_key_id_of_another_account_is_not_found(service: Service) -> None:
    url = await _queue(service, _key(service, OTHER))

    answer = await _as(service, ACCOUNT, "SendMessage", QueueUrl=url, MessageBody="x")

    assert answer.json["__type"].endswith("#KmsNotFound")


async def test_whether_another_account_has_such_a_key_is_not_told(service: Service) -> None:
    arn = f"arn:aws:kms:{REGION}:{OTHER}:alias/nothing"
    url = await _queue(service, arn)

    refusals = await _refusals(service, ACCOUNT, url)

    assert refusals[0] == _denied(ACCOUNT, GENERATE, arn, NOT_GRANTED)
    assert all(refusals)


async def test_the_caller_needs_the_permission_whoever_owns_the_queue(service: Service) -> None:
    """A queue of one account, with its key, that another account may use."""
    url = await _queue(service, "alias/orders")

    assert all(await _refusals(service, OTHER, url))
    await service.keyring.grant(_key(service), Grant(OTHER, ("Decrypt",)))
    arn = _key_arn(service, ACCOUNT)
    generate = _denied(OTHER, GENERATE, arn, NOT_GRANTED)
    assert await _refusals(service, OTHER, url) == [generate, generate, ""]
    await service.keyring.grant(_key(service), Grant(OTHER, ("GenerateDataKey",)))
    decrypt = _denied(OTHER, DECRYPT, arn, NOT_GRANTED)
    assert await _refusals(service, OTHER, url) == [decrypt] * 3
    await service.keyring.grant(_key(service), BOTH)
    assert await _refusals(service, OTHER, url) == ALLOWED


async def test_a_key_of_the_callers_account_needs_no_grant_on_a_foreign_queue(
    service: Service,
) -> None:
    url = await _queue(service, f"arn:aws:kms:{REGION}:{OTHER}:alias/orders")

    assert await _refusals(service, OTHER, url) == ALLOWED


async def test_the_built_in_key_is_for_the_queues_own_account(service: Service) -> None:
    url = await _queue(service, "alias/aws/sqs")
    ann = _let(service, f"{ACCOUNT}/ann", SQS)

    assert await _refusals(service, ACCOUNT, url) == ALLOWED
    assert await _refusals(service, ann, url) == ALLOWED
    assert all(await _refusals(service, OTHER, url))


async def test_nobody_uses_a_key(service: Service) -> None:
    url = await _queue(service, "alias/orders")
    await service.keyring.grant(_key(service), BOTH)

    for action in SEND_AND_RECEIVE:
        answer = await _as(service, "", action, QueueUrl=url, MessageBody="x")
        assert answer.status == 403


async def test_other_actions_need_no_key(service: Service) -> None:
    arn = f"arn:aws:kms:{REGION}:{OTHER}:alias/orders"
    url = await _queue(service, arn)

    for action, members in (
        ("GetQueueAttributes", {"AttributeNames": ["All"]}),
        ("PurgeQueue", {}),
        ("TagQueue", {"Tags": {"a": "b"}}),
        ("SetQueueAttributes", {"Attributes": {"KmsMasterKeyId": arn}}),
        ("DeleteQueue", {}),
    ):
        assert (await _as(service, ACCOUNT, action, QueueUrl=url, **members)).status == 200


# -- users -----------------------------------------------------------------------------------------


async def test_a_user_needs_policies_for_the_key_of_its_account(service: Service) -> None:
    url, arn = await _queue(service, "alias/orders"), _key_arn(service, ACCOUNT)
    ann = f"{ACCOUNT}/ann"

    def allow(*actions: str, resource: str = arn) -> dict[str, Any]:
        return {"Effect": "Allow", "Action": list(actions), "Resource": resource}

    def lacks(permission: str) -> str:
        reason = f"because no identity-based policy allows the {permission} action"
        return _denied(ann, permission, arn, reason)

    for policies, refusals in (
        ((), [lacks(GENERATE), lacks(GENERATE), lacks(DECRYPT)]),
        ((allow(DECRYPT),), [lacks(GENERATE), lacks(GENERATE), ""]),
        ((allow(GENERATE),), [lacks(DECRYPT)] * 3),
        ((allow(GENERATE, DECRYPT),), ALLOWED),
        ((allow("kms:*", resource="*"),), ALLOWED),
        (
            (allow("kms:*", resource=_key_arn(service, OTHER)),),
            [lacks(GENERATE)] * 2 + [lacks(DECRYPT)],
        ),
    ):
        _let(service, ann, SQS, *policies)
        assert await _refusals(service, ann, url) == refusals, policies

    _let(service, ann, SQS, allow("kms:*"), {**allow(DECRYPT), "Effect": "Deny"})
    denied = _denied(ann, DECRYPT, arn, "with an explicit deny in an identity-based policy")
    assert await _refusals(service, ann, url) == [denied] * 3


async def test_a_user_of_another_account_needs_the_grant_and_a_policy(service: Service) -> None:
    url, arn = await _queue(service, "alias/orders"), _key_arn(service, ACCOUNT)
    kms = {"Effect": "Allow", "Action": "kms:*", "Resource": arn}
    bob = _let(service, f"{OTHER}/bob", SQS, kms)

    assert all(await _refusals(service, bob, url)), "no grant"
    await service.keyring.grant(_key(service), BOTH)
    assert await _refusals(service, bob, url) == ALLOWED
    _let(service, bob, SQS)
    assert all(await _refusals(service, bob, url)), "no policy"
    await service.keyring.revoke(_key(service), OTHER)
    _let(service, bob, SQS, kms)
    to_bob = Grant(f"arn:aws:iam::{OTHER}:user/bob", BOTH.operations)
    await service.keyring.grant(_key(service), to_bob)
    assert await _refusals(service, bob, url) == ALLOWED
    assert all(await _refusals(service, OTHER, url)), "another than the grantee"


async def test_conditions_see_which_service_asks_and_for_which_queue(service: Service) -> None:
    url = await _queue(service, "alias/orders")
    other = await _queue(service, "alias/orders", name="other")
    said = {
        "kms:ViaService": f"sqs.{REGION}.amazonaws.com",
        "kms:CallerAccount": ACCOUNT,
        "kms:EncryptionContext:aws:sqs:arn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:q",
        "aws:SourceIp": "127.0.0.1",
    }
    ann = _let(
        service,
        f"{ACCOUNT}/ann",
        SQS,
        {
            "Effect": "Allow",
            "Action": "kms:*",
            "Resource": "*",
            "Condition": {"StringEquals": said},
        },
    )

    assert await _refusals(service, ann, url) == ALLOWED
    assert all(await _refusals(service, ann, other))


async def test_conditions_on_headers_hold_for_receiving_too(service: Service) -> None:
    url = await _queue(service, "alias/orders")
    allow = {"Effect": "Allow", "Action": "kms:*", "Resource": "*"}
    said = {"StringLike": {"aws:UserAgent": "*boto*"}}
    ann = _let(service, f"{ACCOUNT}/ann", SQS, {**allow, "Condition": said})
    await _as(service, ACCOUNT, "SendMessage", QueueUrl=url, MessageBody="x")

    def receive(agent: str) -> bytes:
        return json_request(
            "ReceiveMessage", headers={"who": ann, "user-agent": agent}, QueueUrl=url
        )

    received = await service.ask(receive("boto3/1.40"))
    refused = await service.ask(receive("curl/8"))

    assert received.status == 200, received
    assert [message["Body"] for message in received.json["Messages"]] == ["x"]
    assert refused.json["__type"].endswith("#KmsAccessDenied")


# -- messages under another key than their queue's -------------------------------------------------


async def test_a_message_under_an_earlier_key_is_for_those_who_may_use_that(
    service: Service,
) -> None:
    """It is given back, uncounted, and others get it."""
    await service.keyring.add("bills", ACCOUNT)
    url = await _queue(service, "alias/orders")
    await _as(service, ACCOUNT, "SendMessage", QueueUrl=url, MessageBody="earlier")
    changed = {"KmsMasterKeyId": "alias/bills"}
    await _as(service, ACCOUNT, "SetQueueAttributes", QueueUrl=url, Attributes=changed)
    bills = service.keyring.named("bills", ACCOUNT).key_id
    on_bills = {
        "Effect": "Allow",
        "Action": "kms:*",
        "Resource": f"arn:aws:kms:*:{ACCOUNT}:key/{bills}",
    }
    ann = _let(service, f"{ACCOUNT}/ann", SQS, on_bills)

    refused = await _as(service, ann, "ReceiveMessage", QueueUrl=url)
    assert _key_arn(service, ACCOUNT) in refused.json["message"]
    assert refused.json["__type"].endswith("#KmsAccessDenied")
    asked = {"QueueUrl": url, "MessageSystemAttributeNames": ["ApproximateReceiveCount"]}
    (message,) = (await _as(service, ACCOUNT, "ReceiveMessage", **asked)).json["Messages"]
    assert message["Body"] == "earlier"
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


# -- move tasks ------------------------------------------------------------------------------------


async def test_a_move_needs_the_keys_of_the_queues_it_moves_between(service: Service) -> None:
    await service.keyring.add("dead", ACCOUNT)
    await _queue(service, "alias/dead", name="dead")
    dead = f"arn:aws:sqs:{REGION}:{ACCOUNT}:dead"
    redrive = json.dumps({"deadLetterTargetArn": dead, "maxReceiveCount": 1})
    await _queue(service, "alias/orders", RedrivePolicy=redrive)
    ids = {name: service.keyring.named(name, ACCOUNT).key_id for name in ("dead", "orders")}

    def allow(name: str, *actions: str) -> dict[str, Any]:
        arn = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/{ids[name]}"
        return {"Effect": "Allow", "Action": list(actions), "Resource": arn}

    ann = f"{ACCOUNT}/ann"
    for target in ({}, {"DestinationArn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:q"}):
        for policies in (
            (),
            (allow("dead", DECRYPT),),
            (allow("dead", DECRYPT), allow("orders", GENERATE)),
            (allow("orders", GENERATE, DECRYPT),),
        ):
            _let(service, ann, SQS, *policies)
            refused = await _as(service, ann, "StartMessageMoveTask", SourceArn=dead, **target)
            assert refused.json["__type"].endswith("#KmsAccessDenied"), policies
        _let(service, ann, SQS, allow("dead", DECRYPT), allow("orders", GENERATE, DECRYPT))
        started = await _as(service, ann, "StartMessageMoveTask", SourceArn=dead, **target)
        assert started.status == 200, started


# -- caching --------------------------------------------------------------------------------------


async def test_the_root_of_a_keys_account_is_let_in_without_a_policy_being_looked_at(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await _queue(service, "alias/orders", Policy="")
    monkeypatch.setattr("sqs_api.gateway.access._Request.check_key", None)

    assert await _refusals(service, ACCOUNT, url) == ALLOWED


async def test_in_open_mode_a_key_is_made_for_the_account_that_uses_it() -> None:
    async with running(makes_keys=True) as service:
        url = await service.make_queue("q", KmsMasterKeyId="alias/new")
        other = f"arn:aws:kms:{REGION}:{OTHER}:alias/new"
        foreign = await service.make_queue("r", KmsMasterKeyId=other)
        for each in (url, foreign):
            await service.call("SendMessage", QueueUrl=each, MessageBody="x")

        made = [(key.account, key.name) for key in service.keyring.names()]

    assert made == [("", "aws/sqs"), (ACCOUNT, "new"), (OTHER, "new")]


# -- moves -----------------------------------------------------------------------------------------


async def test_moving_a_message_does_not_open_it_for_who_may_not_use_its_key(
    service: Service,
) -> None:
    source = await _queue(service, "alias/orders", name="source")
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:"
    redrive = json.dumps({"deadLetterTargetArn": arn + "source", "maxReceiveCount": 1})
    await _as(
        service, ACCOUNT, "CreateQueue", QueueName="feeder", Attributes={"RedrivePolicy": redrive}
    )
    plain = {"SqsManagedSseEnabled": "false"}
    await _as(service, ACCOUNT, "CreateQueue", QueueName="plain", Attributes=plain)
    await _as(service, ACCOUNT, "SendMessage", QueueUrl=source, MessageBody="SECRET")
    bob = _let(service, f"{ACCOUNT}/bob", SQS)
    unkeyed = {"KmsMasterKeyId": ""}
    assert (
        await _as(service, bob, "SetQueueAttributes", QueueUrl=source, Attributes=unkeyed)
    ).status == 200

    moved = await _as(
        service, bob, "StartMessageMoveTask", SourceArn=arn + "source", DestinationArn=arn + "plain"
    )
    assert moved.status == 200
    wanted = {"QueueUrl": "plain", "WaitTimeSeconds": 20, "VisibilityTimeout": 0}
    read = await _as(service, bob, "ReceiveMessage", **wanted)
    by_root = await _as(service, ACCOUNT, "ReceiveMessage", **wanted)

    assert (read.status, read.json["__type"]) == (400, "com.amazonaws.sqs#KmsAccessDenied")
    assert [message["Body"] for message in by_root.json["Messages"]] == ["SECRET"]
