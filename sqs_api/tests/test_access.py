"""Access by policy, through both protocols and both ways of reading requests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
import pytest_asyncio

from auth.auth_errors import MissingAuthenticationToken
from auth.caller import Caller
from auth.credentials import AccessKey, CredentialSet
from auth.identities import Identities, User
from auth.policy import NamedPolicy
from auth.policy_document import Kind, read_policy
from sqs_api.tests.serving import (
    ACCOUNT,
    REGION,
    Answer,
    Client,
    Service,
    json_request,
    query_request,
    running,
    settled,
    until,
)

AWAY = "2" * 12
BASE = "http://localhost:9324"
QUEUE = f"{BASE}/{ACCOUNT}/q"
ARN = f"arn:aws:sqs:{REGION}:{ACCOUNT}:q"
ALL = {"Effect": "Allow", "Action": "sqs:*", "Resource": "*"}


def _authenticate(
    method: bytes, target: bytes, headers: Mapping[bytes, bytes], body: bytes, now_s: float
) -> Caller:
    """Trusts the header `who`: an account and, after a slash, a user."""
    account, _, user = headers.get(b"who", b"").decode().partition("/")
    if not account:
        raise MissingAuthenticationToken
    return Caller(account, REGION, "AIDA" + user.upper(), "AKIA", user or None)


def _user(name: str, *statements: dict[str, Any], account: str = ACCOUNT, **tags: str) -> User:
    policy = read_policy(
        json.dumps({"Version": "2012-10-17", "Statement": list(statements)}), Kind.IDENTITY
    )
    return User(account, name, "AIDA" + name.upper(), tags, (NamedPolicy("p", policy),))


@pytest_asyncio.fixture
async def service() -> AsyncIterator[Service]:
    async with running(authenticate=_authenticate, enforced=True) as parts:
        await _as(parts, ACCOUNT, "CreateQueue", QueueName="q")
        yield parts


async def _as(service: Service, who: str, action: str, **members: Any) -> Answer:
    headers = {"who": who} if who else {}
    return await service.ask(json_request(action, headers=headers, **members))


async def _send(service: Service, who: str, **members: Any) -> int:
    return (
        await _as(service, who, "SendMessage", QueueUrl=QUEUE, MessageBody="x", **members)
    ).status


async def _set_policy(service: Service, *statements: dict[str, Any]) -> None:
    """A policy of these statements, none without any."""
    policy = json.dumps({"Version": "2012-10-17", "Statement": list(statements)})
    given = {"Policy": policy if statements else ""}
    answer = await _as(service, ACCOUNT, "SetQueueAttributes", QueueUrl=QUEUE, Attributes=given)
    assert answer.status == 200, answer


def _grant(principal: Any, action: str = "sqs:SendMessage", **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Principal": principal, "Action": action, "Resource": ARN, **more}


# -- users -----------------------------------------------------------------------------------------


async def test_a_user_may_do_what_its_policies_say_until_they_change(service: Service) -> None:
    assert await _send(service, f"{ACCOUNT}/ann") == 403

    service.access.replace(Identities([_user("ann", ALL)]))
    assert await _send(service, f"{ACCOUNT}/ann") == 200
    await _set_policy(service, _grant("*") | {"Effect": "Deny"})
    assert await _send(service, f"{ACCOUNT}/ann") == 403
    await _set_policy(service)
    assert await _send(service, f"{ACCOUNT}/ann") == 200

    service.access.replace(Identities([_user("ann", ALL, ALL | {"Effect": "Deny"})]))
    assert await _send(service, f"{ACCOUNT}/ann") == 403


@pytest.mark.parametrize("protocol", ["json", "query"])
async def test_a_refusal_is_worded_as_by_aws(service: Service, protocol: str) -> None:
    headers = {"who": f"{ACCOUNT}/ann"}
    request = (
        json_request("SendMessage", headers=headers, QueueUrl=QUEUE, MessageBody="x")
        if protocol == "json"
        else query_request("SendMessage", headers=headers, QueueUrl=QUEUE, MessageBody="x")
    )
    answer = await service.ask(request)
    message = (
        f"User: arn:aws:iam::{ACCOUNT}:user/ann is not authorized to perform: sqs:sendmessage on "
        f"resource: {ARN} "
        "because no identity-based policy allows the sqs:sendmessage action"
    )

    assert answer.status == 403
    assert message in answer.body.decode()
    if protocol == "json":
        assert answer.json["Message"] == message
        assert answer.headers["x-amzn-query-error"] == "AccessDenied;Sender"
    else:
        assert b"<Code>AccessDenied</Code>" in answer.body


ONE_PERMISSION: dict[str, dict[str, Any]] = {
    "SendMessage": {"QueueUrl": QUEUE, "MessageBody": "x"},
    "SendMessageBatch": {"QueueUrl": QUEUE, "Entries": [{"Id": "1", "MessageBody": "x"}]},
    "ReceiveMessage": {"QueueUrl": QUEUE},
    "DeleteMessage": {"QueueUrl": QUEUE, "ReceiptHandle": "x"},
    "PurgeQueue": {"QueueUrl": QUEUE},
    "GetQueueAttributes": {"QueueUrl": QUEUE},
    "SetQueueAttributes": {"QueueUrl": QUEUE, "Attributes": {"DelaySeconds": "0"}},
    "ListQueueTags": {"QueueUrl": QUEUE},
    "TagQueue": {"QueueUrl": QUEUE, "Tags": {"a": "b"}},
    "UntagQueue": {"QueueUrl": QUEUE, "TagKeys": ["a"]},
    "ListDeadLetterSourceQueues": {"QueueUrl": QUEUE},
    "AddPermission": {
        "QueueUrl": QUEUE,
        "Label": "l",
        "AWSAccountIds": [AWAY],
        "Actions": ["SendMessage"],
    },
    "RemovePermission": {"QueueUrl": QUEUE, "Label": "l"},
    "CreateQueue": {"QueueName": "new"},
    "GetQueueUrl": {"QueueName": "q"},
    "ListQueues": {},
    "DeleteQueue": {"QueueUrl": QUEUE},
    "ListMessageMoveTasks": {"SourceArn": ARN},
}


@pytest.mark.parametrize("action", ONE_PERMISSION)
async def test_every_action_needs_its_permission_and_nothing_else(
    service: Service, action: str
) -> None:
    permission = f"sqs:{action.removesuffix('Batch')}"
    allow = ALL | {"Action": permission}
    other = ALL | {"NotAction": permission}
    del other["Action"]
    service.access.replace(Identities([_user("may", allow), _user("other", other)]))

    refused = await _as(service, f"{ACCOUNT}/other", action, **ONE_PERMISSION[action])
    let_in = await _as(service, f"{ACCOUNT}/may", action, **ONE_PERMISSION[action])

    assert refused.status == 403, refused
    assert let_in.status != 403, let_in


async def test_a_user_is_not_told_which_queues_there_are(service: Service) -> None:
    for url in (QUEUE, QUEUE + "2", f"{BASE}/{AWAY}/q"):
        answer = await _as(service, f"{ACCOUNT}/ann", "ReceiveMessage", QueueUrl=url)
        assert answer.json["__type"].endswith("#AccessDeniedException"), url

    service.access.replace(Identities([_user("ann", ALL)]))
    answer = await _as(service, f"{ACCOUNT}/ann", "ReceiveMessage", QueueUrl=QUEUE + "2")
    assert answer.json["__type"].endswith("#QueueDoesNotExist")


async def test_tags_of_a_new_queue_need_a_permission_of_their_own(service: Service) -> None:
    service.access.replace(Identities([_user("ann", ALL | {"Action": "sqs:CreateQueue"})]))
    who = f"{ACCOUNT}/ann"

    tagged = await _as(service, who, "CreateQueue", QueueName="t", tags={"a": "b"})
    untagged = await _as(service, who, "CreateQueue", QueueName="t")

    assert (tagged.status, untagged.status) == (403, 200)


async def test_who_names_a_late_queue_may_send_to_it(service: Service) -> None:
    await _as(service, ACCOUNT, "CreateQueue", QueueName="late")
    late = ARN[:-1] + "late"
    sends = ALL | {"Action": "sqs:SendMessage", "Resource": late}
    tags = [ALL | {"Action": f"sqs:{name}"} for name in ("TagQueue", "CreateQueue")]
    service.access.replace(Identities([_user("ann", *tags), _user("bob", *tags, sends)]))
    order = {"holdfast:order": "sender-clock", "holdfast:order-window": "5"}
    given = order | {"holdfast:late-queue": late}

    statuses = [
        [
            (await _as(service, f"{ACCOUNT}/{who}", action, **members)).status
            for action, members in (
                ("TagQueue", {"QueueUrl": QUEUE, "Tags": order}),
                ("TagQueue", {"QueueUrl": QUEUE, "Tags": given}),
                ("CreateQueue", {"QueueName": who, "tags": given}),
            )
        ]
        for who in ("ann", "bob")
    ]

    assert statuses == [[200, 403, 403], [200, 200, 200]]


LOSSY = {"holdfast:ttl": "60"}
PROTECTED = {"holdfast:deletion-protection": "on"}


@pytest.mark.parametrize(
    ("right", "before", "action", "members"),
    [
        ("SetLossyPolicy", {}, "TagQueue", {"Tags": LOSSY}),
        ("SetLossyPolicy", LOSSY, "TagQueue", {"Tags": {"holdfast:ttl": "59"}}),
        (
            "SetLossyPolicy",
            LOSSY | {"holdfast:expired": "dead-letter"},
            "UntagQueue",
            {"TagKeys": ["holdfast:expired"]},
        ),
        ("LiftProtection", PROTECTED, "UntagQueue", {"TagKeys": [*PROTECTED]}),
        ("LiftProtection", PROTECTED, "TagQueue", {"Tags": dict.fromkeys(PROTECTED, "off")}),
    ],
)
async def test_who_labels_queues_neither_loses_messages_nor_lifts_a_protection(
    service: Service, right: str, before: dict[str, str], action: str, members: dict[str, Any]
) -> None:
    if before:
        tagged = await _as(service, ACCOUNT, "TagQueue", QueueUrl=QUEUE, Tags=before)
        assert tagged.status == 200
    labels = [ALL | {"Action": "sqs:*"}]
    rights = [*labels, ALL | {"Action": f"holdfast:{right}", "Resource": ARN}]
    service.access.replace(Identities([_user("ann", *labels), _user("bob", *rights)]))

    harmless = [
        (await _as(service, f"{ACCOUNT}/ann", each, QueueUrl=QUEUE, **given)).status
        for each, given in (("TagQueue", {"Tags": {"a": "b"}}), ("UntagQueue", {"TagKeys": ["a"]}))
    ]
    refused = await _as(service, f"{ACCOUNT}/ann", action, QueueUrl=QUEUE, **members)
    done = await _as(service, f"{ACCOUNT}/bob", action, QueueUrl=QUEUE, **members)

    assert harmless == [200, 200]
    assert (refused.status, done.status) == (403, 200)
    assert f"holdfast:{right}" in refused.json["Message"]


@pytest.mark.parametrize("granted", [{"Action": "*"}, {"NotAction": "sqs:PurgeQueue"}])
async def test_who_sets_a_queues_policy_cannot_give_itself_rights_beyond_sqs(
    service: Service, granted: dict[str, str]
) -> None:
    await _as(service, ACCOUNT, "TagQueue", QueueUrl=QUEUE, Tags=PROTECTED)
    service.access.replace(Identities([_user("ann", ALL)]))

    await _set_policy(service, {"Effect": "Allow", "Principal": "*", "Resource": ARN, **granted})
    lossy = await _as(service, f"{ACCOUNT}/ann", "TagQueue", QueueUrl=QUEUE, Tags=LOSSY)
    lifted = await _as(
        service, f"{ACCOUNT}/ann", "UntagQueue", QueueUrl=QUEUE, TagKeys=[*PROTECTED]
    )

    assert (lossy.status, lifted.status) == (403, 403)
    assert await _send(service, AWAY) == 200, "the policy is in force"


async def test_a_new_queue_that_loses_messages_needs_that_right_too(service: Service) -> None:
    labels = [ALL | {"Action": "sqs:*"}]
    rights = [*labels, ALL | {"Action": "holdfast:SetLossyPolicy"}]
    service.access.replace(Identities([_user("ann", *labels), _user("bob", *rights)]))

    statuses = [
        (await _as(service, f"{ACCOUNT}/{who}", "CreateQueue", QueueName=name, tags=tags)).status
        for who, name, tags in (
            ("ann", "a", LOSSY),
            ("ann", "b", PROTECTED),
            ("bob", "c", LOSSY | PROTECTED),
        )
    ]

    assert statuses == [403, 200, 200]


async def test_a_move_needs_permissions_on_both_ends(service: Service) -> None:
    await _as(service, ACCOUNT, "CreateQueue", QueueName="d")
    destination = ARN[:-1] + "d"
    policy = json.dumps({"deadLetterTargetArn": ARN, "maxReceiveCount": 3})
    await _as(service, ACCOUNT, "CreateQueue", QueueName="s", Attributes={"RedrivePolicy": policy})
    on_source = [
        ALL | {"Action": f"sqs:{name}", "Resource": ARN}
        for name in (
            "StartMessageMoveTask",
            "ReceiveMessage",
            "DeleteMessage",
            "GetQueueAttributes",
        )
    ]
    on_destination = ALL | {"Action": "sqs:SendMessage", "Resource": destination}
    full = [*on_source, on_destination]
    lacking = [full[:at] + full[at + 1 :] for at in range(len(full))]
    users = [_user(f"u{at}", *statements) for at, statements in enumerate([*lacking, full])]
    service.access.replace(Identities(users))

    statuses = [
        (
            await _as(
                service,
                f"{ACCOUNT}/{user.name}",
                "StartMessageMoveTask",
                SourceArn=ARN,
                DestinationArn=destination,
            )
        ).status
        for user in users
    ]

    assert statuses == [403] * len(lacking) + [200]


async def _dead_letters(service: Service) -> dict[str, str]:
    """Makes q the dead-letter queue of a queue s; the members that start a move from it."""
    policy = json.dumps({"deadLetterTargetArn": ARN, "maxReceiveCount": 3})
    await _as(service, ACCOUNT, "CreateQueue", QueueName="s", Attributes={"RedrivePolicy": policy})
    return {"SourceArn": ARN}


async def test_a_move_back_needs_to_send_to_where_the_messages_came_from(service: Service) -> None:
    move = await _dead_letters(service)
    denied = ALL | {"Effect": "Deny", "Action": "sqs:SendMessage", "Resource": ARN[:-1] + "s"}
    service.access.replace(Identities([_user("ann", ALL, denied), _user("bob", ALL)]))

    refused = await _as(service, f"{ACCOUNT}/ann", "StartMessageMoveTask", **move)
    started = await _as(service, f"{ACCOUNT}/bob", "StartMessageMoveTask", **move)

    assert (refused.status, started.status) == (403, 200)


async def test_a_move_back_sends_only_where_it_was_checked(service: Service) -> None:
    """A dead letter may come from a queue that does not name the dead-letter queue any more."""
    move = await _dead_letters(service)
    policy = json.dumps({"deadLetterTargetArn": ARN, "maxReceiveCount": 1})
    kept = {"RedrivePolicy": policy, "VisibilityTimeout": "0"}
    await _as(service, ACCOUNT, "CreateQueue", QueueName="p", Attributes=kept)
    await _as(service, ACCOUNT, "SendMessage", QueueUrl="p", MessageBody="x")
    for _ in range(2):
        await _as(service, ACCOUNT, "ReceiveMessage", QueueUrl="p")
    alone = {"RedrivePolicy": ""}
    await _as(service, ACCOUNT, "SetQueueAttributes", QueueUrl="p", Attributes=alone)
    denied = ALL | {"Effect": "Deny", "Action": "sqs:SendMessage", "Resource": ARN[:-1] + "p"}
    service.access.replace(Identities([_user("ann", ALL, denied)]))

    assert (await _as(service, f"{ACCOUNT}/ann", "StartMessageMoveTask", **move)).status == 200

    task = await _ended_move(service)
    assert (task["Status"], task["FailureReason"]) == ("FAILED", "AccessDenied")
    assert (await _as(service, ACCOUNT, "StartMessageMoveTask", **move)).status == 200
    assert (await _ended_move(service))["Status"] == "COMPLETED", "the root may"


async def _ended_move(service: Service) -> Any:
    """The latest task, once it runs no more; each look lets the shard run its turns."""
    task: dict[str, Any] = {"Status": "RUNNING"}
    while task["Status"] == "RUNNING":
        listed = await _as(service, ACCOUNT, "ListMessageMoveTasks", SourceArn=ARN)
        task = listed.json["Results"][0]
    return task


@pytest.mark.parametrize("action", ["StartMessageMoveTask", "ListMessageMoveTasks"])
async def test_another_partition_in_an_arn_evades_no_policy(service: Service, action: str) -> None:
    move = await _dead_letters(service)
    move["SourceArn"] = ARN.replace("arn:aws:", "arn:aws-x:")
    denied = ALL | {"Effect": "Deny", "Resource": ARN}
    service.access.replace(Identities([_user("ann", ALL, denied)]))

    assert (await _as(service, f"{ACCOUNT}/ann", action, **move)).status == 403


async def test_a_move_does_not_reach_into_another_region(service: Service) -> None:
    queue = await service.catalog.create_queue((ACCOUNT, "eu-west-9", "far"), {}, {})

    answer = await _as(service, ACCOUNT, "ListMessageMoveTasks", SourceArn=queue.arn)

    assert answer.json["__type"].endswith("#ResourceNotFoundException")


# -- conditions ------------------------------------------------------------------------------------

CONDITIONS: tuple[tuple[dict[str, Any], int], ...] = (
    ({"IpAddress": {"aws:SourceIp": "127.0.0.0/8"}}, 200),
    ({"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}, 403),
    ({"Bool": {"aws:SecureTransport": "false"}}, 200),
    ({"Bool": {"aws:SecureTransport": "true"}}, 403),
    ({"StringEquals": {"aws:username": "ann"}}, 200),
    ({"StringEquals": {"aws:PrincipalTag/team": "a"}}, 200),
    ({"StringEquals": {"aws:PrincipalTag/team": "b"}}, 403),
    ({"StringEquals": {"aws:ResourceTag/owner": "${aws:username}"}}, 200),
    ({"StringEquals": {"aws:RequestedRegion": REGION}}, 200),
    ({"StringEquals": {"aws:PrincipalAccount": ACCOUNT}}, 200),
    ({"ArnLike": {"aws:PrincipalArn": "arn:aws:iam::*:user/a*"}}, 200),
    ({"StringEquals": {"aws:PrincipalType": "User"}}, 200),
    ({"StringEquals": {"aws:userid": "AIDAANN"}}, 200),
    ({"StringLike": {"aws:UserAgent": "test*"}}, 200),
    ({"DateGreaterThan": {"aws:CurrentTime": "2020-01-01T00:00:00Z"}}, 200),
    ({"NumericLessThan": {"aws:EpochTime": "1500000000"}}, 403),
    ({"Null": {"aws:TokenIssueTime": "true"}}, 200),
)


@pytest.mark.parametrize(
    ("condition", "status"), CONDITIONS, ids=[str(row[0]) for row in CONDITIONS]
)
@pytest.mark.parametrize("port", ["port", "aiohttp_port"])
async def test_conditions_know_the_request(
    service: Service, condition: dict[str, Any], status: int, port: str
) -> None:
    await _as(service, ACCOUNT, "TagQueue", QueueUrl=QUEUE, Tags={"owner": "ann"})
    service.access.replace(Identities([_user("ann", ALL | {"Condition": condition}, team="a")]))
    headers = {"who": f"{ACCOUNT}/ann", "User-Agent": "tester/1"}
    client = await service.connect(getattr(service, port))

    for _ in range(2):
        answer = await client.ask(json_request("ReceiveMessage", headers=headers, QueueUrl=QUEUE))
        assert answer.status == status


@pytest.mark.parametrize("tags", [{"Env": "prod", "env": "x"}, {"env": "x", "Env": "prod"}])
async def test_a_second_tag_in_another_case_evades_no_policy(
    service: Service, tags: dict[str, str]
) -> None:
    barred = [
        ALL | {"Effect": "Deny", "Action": action, "Condition": {"StringEquals": {key: "prod"}}}
        for action, key in (
            ("sqs:TagQueue", "aws:RequestTag/Env"),
            ("sqs:CreateQueue", "aws:RequestTag/Env"),
            ("sqs:SendMessage", "aws:ResourceTag/Env"),
            ("sqs:PurgeQueue", "aws:PrincipalTag/Env"),
        )
    ]
    service.access.replace(Identities([_user("ann", ALL, *barred, **tags)]))
    who = f"{ACCOUNT}/ann"

    assert await _send(service, who) == 200
    tagged = await _as(service, who, "TagQueue", QueueUrl=QUEUE, Tags=tags)
    made = await _as(service, who, "CreateQueue", QueueName="n", tags=tags)
    assert (tagged.status, made.status) == (403, 403)
    await _as(service, ACCOUNT, "TagQueue", QueueUrl=QUEUE, Tags=tags)
    assert await _send(service, who) == 403
    assert (await _as(service, who, "PurgeQueue", QueueUrl=QUEUE)).status == 403


async def test_an_empty_tag_counts_as_none(service: Service) -> None:
    absent = {"Condition": {"Null": {"aws:RequestTag/Env": "true"}}}
    service.access.replace(Identities([_user("ann", ALL, ALL | {"Effect": "Deny"} | absent)]))

    statuses = [
        (await _as(service, f"{ACCOUNT}/ann", "TagQueue", QueueUrl=QUEUE, Tags=tags)).status
        for tags in ({"a": "b"}, {"Env": ""}, {"Env": "x"}, {"Env": "", "ENV": ""})
    ]

    assert statuses == [403, 403, 200, 403]


@pytest.mark.parametrize("header", ["User-Agent", "Referer"])
async def test_conditions_read_the_beginning_of_a_long_header(
    service: Service, header: str
) -> None:
    key = f"aws:{header.replace('-', '')}"
    condition = {"StringEquals": {key: "a" * 1024}}
    service.access.replace(Identities([_user("ann", ALL | {"Condition": condition})]))

    statuses = []
    for length in (1023, 1024, 1025, 7000):
        headers = {"who": f"{ACCOUNT}/ann", header: "a" * length}
        request = json_request("SendMessage", headers=headers, QueueUrl=QUEUE, MessageBody="x")
        statuses.append((await service.ask(request)).status)

    assert statuses == [403, 200, 200, 200]


async def test_what_depends_on_the_request_is_decided_each_time(service: Service) -> None:
    only_good = ALL | {"Condition": {"StringEquals": {"aws:UserAgent": "good"}}}
    service.access.replace(Identities([_user("ann", only_good), _user("bob", ALL)]))
    seen: list[int] = []
    for user, agent in [("ann", "good"), ("ann", "bad")] * 2 + [("bob", "bad")] * 2:
        headers = {"who": f"{ACCOUNT}/{user}", "User-Agent": agent}
        request = json_request("SendMessage", headers=headers, QueueUrl=QUEUE, MessageBody="x")
        seen.append((await service.ask(request)).status)

    assert seen == [200, 403, 200, 403, 200, 200]
    assert [caller.user for caller, *_ in service.access._admitted] == ["bob"]


# -- other accounts and unsigned
# requests-----------------------------------------------------------------


async def test_another_account_uses_a_queue_by_its_url_where_the_policy_says_so(
    service: Service,
) -> None:
    assert await _send(service, AWAY) == 403

    await _set_policy(service, _grant({"AWS": AWAY}))
    assert await _send(service, AWAY) == 200
    receive = await _as(service, AWAY, "ReceiveMessage", QueueUrl=QUEUE)
    assert receive.status == 403
    assert "because no resource-based policy allows the sqs:receivemessage action" in str(
        receive.json
    )

    own = await _as(service, ACCOUNT, "ReceiveMessage", QueueUrl=QUEUE)
    assert own.json["Messages"][0]["Body"] == "x"


@pytest.mark.parametrize("who", [AWAY, f"{AWAY}/bob"])
async def test_another_account_is_not_told_which_queues_there_are(
    service: Service, who: str
) -> None:
    service.access.replace(Identities([_user("bob", ALL, account=AWAY)]))

    there = await _as(service, who, "ReceiveMessage", QueueUrl=QUEUE)
    missing = await _as(service, who, "ReceiveMessage", QueueUrl=QUEUE + "2")

    assert there.status == missing.status == 403
    assert missing.json["Message"] == there.json["Message"].replace(ARN, ARN + "2")


async def test_add_permission_lets_an_account_in_and_remove_permission_out(
    service: Service,
) -> None:
    permission = {"QueueUrl": QUEUE, "Label": "l"}
    granted = {"AWSAccountIds": [AWAY], "Actions": ["SendMessage"]}

    await _as(service, ACCOUNT, "AddPermission", **permission, **granted)
    assert await _send(service, AWAY) == 200
    await _as(service, ACCOUNT, "RemovePermission", **permission)
    assert await _send(service, AWAY) == 403


@pytest.mark.parametrize("protocol", ["json", "query"])
async def test_nobody_is_served_only_where_the_policy_says_so(
    service: Service, protocol: str
) -> None:
    def request(action: str) -> bytes:
        make = json_request if protocol == "json" else query_request
        return make(action, QueueUrl=QUEUE, MessageBody="x")

    async def statuses() -> list[int]:
        actions = ("SendMessage", "ReceiveMessage", "ListQueues", "DeleteQueue", "Fly")
        return [(await service.ask(request(action))).status for action in actions]

    assert await statuses() == [403] * 5
    await _set_policy(service, _grant({"AWS": AWAY}, "*"))
    assert await statuses() == [403] * 5
    assert service.access.denied == 0  # none was read, so that none can be costly
    await _set_policy(service, _grant("*"))
    assert await statuses() == [200, 403, 403, 403, 403]
    refused = (await service.ask(request("ReceiveMessage"))).body
    assert b"Request is missing Authentication Token" in refused
    assert service.access.denied > 0


async def test_unsigned_requests_are_read_only_while_a_queue_may_admit_them(
    service: Service,
) -> None:
    seen = [service.access.may_admit_unsigned]
    await _set_policy(service, _grant("*"))
    seen.append(service.access.may_admit_unsigned)
    await _as(service, ACCOUNT, "PurgeQueue", QueueUrl=QUEUE)
    assert service.catalog.open_to_everyone == {queue.queue_id for queue in service.catalog}
    await _set_policy(service, _grant({"AWS": AWAY}))
    seen.append(service.access.may_admit_unsigned)
    await _set_policy(service, _grant("*"))
    await _as(service, ACCOUNT, "DeleteQueue", QueueUrl=QUEUE)
    seen.append(service.access.may_admit_unsigned)

    assert seen == [False, True, False, False]


async def test_a_policy_that_denies_everything_can_be_repaired_by_the_account(
    service: Service,
) -> None:
    await _set_policy(service, _grant("*", "sqs:*") | {"Effect": "Deny"})
    assert await _send(service, ACCOUNT) == 403

    await _set_policy(service)
    assert await _send(service, ACCOUNT) == 200


async def test_what_is_no_policy_is_refused(service: Service) -> None:
    for text in ("x", "[]", '{"Statement": [{"Effect": "Maybe"}]}'):
        answer = await _as(
            service, ACCOUNT, "SetQueueAttributes", QueueUrl=QUEUE, Attributes={"Policy": text}
        )
        assert answer.status == 400
        assert answer.json["message"] == "Invalid value for the parameter Policy."


async def test_open_mode_asks_no_policy() -> None:
    async with running() as service:
        url = await service.make_queue(
            "q", Policy=json.dumps({"Statement": [_grant("*") | {"Effect": "Deny"}]})
        )
        await service.call("SendMessage", QueueUrl=url, MessageBody="x")


# -- long polls ------------------------------------------------------------------------------------

_ANN = f"{ACCOUNT}/ann"
_ONLY_GOOD = ALL | {"Condition": {"StringEquals": {"aws:UserAgent": "good"}}}


def _keys(**changed: Any) -> CredentialSet:
    """The key of the user that `_authenticate` sees."""
    fields = {"account": ACCOUNT, "principal": "AIDAANN", "user": "ann", **changed}
    return CredentialSet([AccessKey("AKIA", "secret", **fields)])


async def _parked(service: Service, who: str, port: str = "port", agent: str = "good") -> Client:
    """A client whose long poll waits."""
    headers = {"who": who, "User-Agent": agent} if who else {"User-Agent": agent}
    client = await service.connect(getattr(service, port))
    await client.send(
        json_request("ReceiveMessage", headers=headers, QueueUrl=QUEUE, WaitTimeSeconds=20)
    )
    await until(lambda: service.gateway.outstanding == 1)
    await settled()
    return client


async def _received(service: Service) -> list[tuple[str, str]]:
    """Bodies and receive counts, as the account gets them."""
    names = {"AttributeNames": ["ApproximateReceiveCount"]}
    answer = await _as(service, ACCOUNT, "ReceiveMessage", QueueUrl=QUEUE, **names)
    return [
        (message["Body"], message["Attributes"]["ApproximateReceiveCount"])
        for message in answer.json.get("Messages", [])
    ]


_REVOKED: dict[str, Callable[[Service], None]] = {
    "the user is removed": lambda service: service.access.replace(Identities([]), CredentialSet()),
    "its policy is another": lambda service: service.access.replace(
        Identities([_user("ann", ALL, ALL | {"Effect": "Deny"})]), _keys()
    ),
    "its key is removed": lambda service: service.access.replace(
        Identities([_user("ann", ALL)]), CredentialSet()
    ),
    "its key is disabled": lambda service: service.access.replace(
        Identities([_user("ann", ALL)]), _keys(enabled=False)
    ),
    "its key is another's": lambda service: service.access.replace(
        Identities([_user("ann", ALL)]), _keys(user="bob")
    ),
}


@pytest.mark.parametrize("how", _REVOKED)
@pytest.mark.parametrize("port", ["port", "aiohttp_port"])
@pytest.mark.parametrize("tags", [{}, {"holdfast:delivery": "at-most-once"}])
async def test_who_lost_the_right_while_a_poll_waited_gets_no_message(
    service: Service, how: str, port: str, tags: dict[str, str]
) -> None:
    await _as(service, ACCOUNT, "TagQueue", QueueUrl=QUEUE, Tags={"a": "b", **tags})
    service.access.replace(Identities([_user("ann", ALL)]), _keys())
    client = await _parked(service, _ANN, port)

    _REVOKED[how](service)
    assert await _send(service, ACCOUNT) == 200

    refused = await client.answer()
    assert refused.status == 403
    error = b"AccessDenied" if "policy" in how else b"UnrecognizedClient"
    assert error in refused.body
    assert await _received(service) == [("x", "1")]


@pytest.mark.parametrize("change", ["policy", "another queue in its place"])
async def test_who_lost_a_queue_while_a_poll_waited_gets_no_message(
    service: Service, change: str
) -> None:
    await _set_policy(service, _grant("*", "sqs:ReceiveMessage"))
    client = await _parked(service, "")

    if change == "policy":
        await _set_policy(service)
    else:
        await _as(service, ACCOUNT, "PurgeQueue", QueueUrl=QUEUE)
        await _set_policy(service, _grant({"AWS": AWAY}, "sqs:ReceiveMessage"))
    await _send(service, ACCOUNT)

    assert (await client.answer()).status == 403
    assert await _received(service) == [("x", "1")]


async def test_a_poll_that_ends_empty_is_refused_too(service: Service) -> None:
    service.access.replace(Identities([_user("ann", ALL)]))
    client = await _parked(service, _ANN)

    service.access.replace(Identities([_user("ann")]))
    service.router.end_waiting()

    assert (await client.answer()).status == 403
    assert service.access.denied == 1


async def test_a_poll_outlasts_changes_that_leave_its_right(service: Service) -> None:
    """Conditions see the headers of the poll."""
    service.access.replace(Identities([_user("ann", _ONLY_GOOD)]), _keys())
    client = await _parked(service, _ANN)

    service.access.replace(Identities([_user("ann", _ONLY_GOOD), _user("bob", ALL)]), _keys())
    await _set_policy(service, _grant("*"))
    await _as(service, ACCOUNT, "CreateQueue", QueueName="other")
    await _send(service, ACCOUNT)

    assert (await client.answer()).json["Messages"][0]["Body"] == "x"


async def test_conditions_that_came_while_a_poll_waited_see_no_headers(service: Service) -> None:
    service.access.replace(Identities([_user("ann", ALL)]))
    client = await _parked(service, _ANN)

    service.access.replace(Identities([_user("ann", _ONLY_GOOD)]))
    await _send(service, ACCOUNT)

    assert (await client.answer()).status == 403
    assert await _received(service) == [("x", "1")]


async def test_open_mode_checks_no_poll_again() -> None:
    async with running(authenticate=_authenticate) as service:
        await _as(service, ACCOUNT, "CreateQueue", QueueName="q")
        client = await _parked(service, _ANN)

        service.access.replace(Identities([]), CredentialSet())
        await _send(service, ACCOUNT)

        assert (await client.answer()).json["Messages"][0]["Body"] == "x"
