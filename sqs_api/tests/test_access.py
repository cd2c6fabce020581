"""Access by policy, through both protocols and both ways of reading requests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from auth.identities import Identities
from auth.policy import AccessQuestion, Authorizer, Decision
from cluster.catalog.catalog_records import name_of, queue_key
from sqs_api.tests.callers import (
    ALL,
    ARN,
    AWAY,
    BASE,
    QUEUE,
    as_caller,
    grant,
    send_as,
    set_policy,
    user_with,
    with_policies,
)
from sqs_api.tests.serving import (
    ACCOUNT,
    REGION,
    Service,
    json_request,
    query_request,
    running,
)


@pytest_asyncio.fixture
async def service() -> AsyncIterator[Service]:
    async with with_policies() as parts:
        yield parts


# -- users -----------------------------------------------------------------------------------------


async def test_a_user_may_do_what_its_policies_say_until_they_change(service: Service) -> None:
    assert await send_as(service, f"{ACCOUNT}/ann") == 403

    service.access.replace(Identities([user_with("ann", ALL)]))
    assert await send_as(service, f"{ACCOUNT}/ann") == 200
    await set_policy(service, grant("*") | {"Effect": "Deny"})
    assert await send_as(service, f"{ACCOUNT}/ann") == 403
    await set_policy(service)
    assert await send_as(service, f"{ACCOUNT}/ann") == 200

    service.access.replace(Identities([user_with("ann", ALL, ALL | {"Effect": "Deny"})]))
    assert await send_as(service, f"{ACCOUNT}/ann") == 403


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
    service.access.replace(Identities([user_with("may", allow), user_with("other", other)]))

    refused = await as_caller(service, f"{ACCOUNT}/other", action, **ONE_PERMISSION[action])
    let_in = await as_caller(service, f"{ACCOUNT}/may", action, **ONE_PERMISSION[action])

    assert refused.status == 403, refused
    assert let_in.status != 403, let_in


async def test_a_user_is_not_told_which_queues_there_are(service: Service) -> None:
    for url in (QUEUE, QUEUE + "2", f"{BASE}/{AWAY}/q"):
        answer = await as_caller(service, f"{ACCOUNT}/ann", "ReceiveMessage", QueueUrl=url)
        assert answer.json["__type"].endswith("#AccessDeniedException"), url

    service.access.replace(Identities([user_with("ann", ALL)]))
    answer = await as_caller(service, f"{ACCOUNT}/ann", "ReceiveMessage", QueueUrl=QUEUE + "2")
    assert answer.json["__type"].endswith("#QueueDoesNotExist")


async def test_tags_of_a_new_queue_need_a_permission_of_their_own(service: Service) -> None:
    service.access.replace(Identities([user_with("ann", ALL | {"Action": "sqs:CreateQueue"})]))
    who = f"{ACCOUNT}/ann"

    tagged = await as_caller(service, who, "CreateQueue", QueueName="t", tags={"a": "b"})
    untagged = await as_caller(service, who, "CreateQueue", QueueName="t")

    assert (tagged.status, untagged.status) == (403, 200)


async def test_who_names_a_late_queue_may_send_to_it(service: Service) -> None:
    await as_caller(service, ACCOUNT, "CreateQueue", QueueName="late")
    late = ARN[:-1] + "late"
    sends = ALL | {"Action": "sqs:SendMessage", "Resource": late}
    tags = [ALL | {"Action": f"sqs:{name}"} for name in ("TagQueue", "CreateQueue")]
    service.access.replace(Identities([user_with("ann", *tags), user_with("bob", *tags, sends)]))
    order = {"holdfast:order": "sender-clock", "holdfast:order-window": "5"}
    given = order | {"holdfast:late-queue": late}

    statuses = [
        [
            (await as_caller(service, f"{ACCOUNT}/{who}", action, **members)).status
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
        tagged = await as_caller(service, ACCOUNT, "TagQueue", QueueUrl=QUEUE, Tags=before)
        assert tagged.status == 200
    labels = [ALL | {"Action": "sqs:*"}]
    rights = [*labels, ALL | {"Action": f"holdfast:{right}", "Resource": ARN}]
    service.access.replace(Identities([user_with("ann", *labels), user_with("bob", *rights)]))

    harmless = [
        (await as_caller(service, f"{ACCOUNT}/ann", each, QueueUrl=QUEUE, **given)).status
        for each, given in (("TagQueue", {"Tags": {"a": "b"}}), ("UntagQueue", {"TagKeys": ["a"]}))
    ]
    refused = await as_caller(service, f"{ACCOUNT}/ann", action, QueueUrl=QUEUE, **members)
    done = await as_caller(service, f"{ACCOUNT}/bob", action, QueueUrl=QUEUE, **members)

    assert harmless == [200, 200]
    assert (refused.status, done.status) == (403, 200)
    assert f"holdfast:{right}" in refused.json["Message"]


@pytest.mark.parametrize("granted", [{"Action": "*"}, {"NotAction": "sqs:PurgeQueue"}])
async def test_who_sets_a_queues_policy_cannot_give_itself_rights_beyond_sqs(
    service: Service, granted: dict[str, str]
) -> None:
    await as_caller(service, ACCOUNT, "TagQueue", QueueUrl=QUEUE, Tags=PROTECTED)
    service.access.replace(Identities([user_with("ann", ALL)]))

    await set_policy(service, {"Effect": "Allow", "Principal": "*", "Resource": ARN, **granted})
    lossy = await as_caller(service, f"{ACCOUNT}/ann", "TagQueue", QueueUrl=QUEUE, Tags=LOSSY)
    lifted = await as_caller(
        service, f"{ACCOUNT}/ann", "UntagQueue", QueueUrl=QUEUE, TagKeys=[*PROTECTED]
    )

    assert (lossy.status, lifted.status) == (403, 403)
    assert await send_as(service, AWAY) == 200, "the policy is in force"


async def test_a_new_queue_that_loses_messages_needs_that_right_too(service: Service) -> None:
    labels = [ALL | {"Action": "sqs:*"}]
    rights = [*labels, ALL | {"Action": "holdfast:SetLossyPolicy"}]
    service.access.replace(Identities([user_with("ann", *labels), user_with("bob", *rights)]))

    statuses = [
        (
            await as_caller(service, f"{ACCOUNT}/{who}", "CreateQueue", QueueName=name, tags=tags)
        ).status
        for who, name, tags in (
            ("ann", "a", LOSSY),
            ("ann", "b", PROTECTED),
            ("bob", "c", LOSSY | PROTECTED),
        )
    ]

    assert statuses == [403, 200, 200]


async def test_a_move_needs_permissions_on_both_ends(service: Service) -> None:
    await as_caller(service, ACCOUNT, "CreateQueue", QueueName="d")
    destination = ARN[:-1] + "d"
    policy = json.dumps({"deadLetterTargetArn": ARN, "maxReceiveCount": 3})
    await as_caller(
        service, ACCOUNT, "CreateQueue", QueueName="s", Attributes={"RedrivePolicy": policy}
    )
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
    users = [user_with(f"u{at}", *statements) for at, statements in enumerate([*lacking, full])]
    service.access.replace(Identities(users))

    statuses = [
        (
            await as_caller(
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
    await as_caller(
        service, ACCOUNT, "CreateQueue", QueueName="s", Attributes={"RedrivePolicy": policy}
    )
    return {"SourceArn": ARN}


async def test_a_move_back_needs_to_send_to_where_the_messages_came_from(service: Service) -> None:
    move = await _dead_letters(service)
    denied = ALL | {"Effect": "Deny", "Action": "sqs:SendMessage", "Resource": ARN[:-1] + "s"}
    service.access.replace(Identities([user_with("ann", ALL, denied), user_with("bob", ALL)]))

    refused = await as_caller(service, f"{ACCOUNT}/ann", "StartMessageMoveTask", **move)
    started = await as_caller(service, f"{ACCOUNT}/bob", "StartMessageMoveTask", **move)

    assert (refused.status, started.status) == (403, 200)


async def test_a_move_back_sends_only_where_it_was_checked(service: Service) -> None:
    """A dead letter may come from a queue that does not name the dead-letter queue any more."""
    move = await _dead_letters(service)
    policy = json.dumps({"deadLetterTargetArn": ARN, "maxReceiveCount": 1})
    kept = {"RedrivePolicy": policy, "VisibilityTimeout": "0"}
    await as_caller(service, ACCOUNT, "CreateQueue", QueueName="p", Attributes=kept)
    await as_caller(service, ACCOUNT, "SendMessage", QueueUrl="p", MessageBody="x")
    for _ in range(2):
        await as_caller(service, ACCOUNT, "ReceiveMessage", QueueUrl="p")
    alone = {"RedrivePolicy": ""}
    await as_caller(service, ACCOUNT, "SetQueueAttributes", QueueUrl="p", Attributes=alone)
    denied = ALL | {"Effect": "Deny", "Action": "sqs:SendMessage", "Resource": ARN[:-1] + "p"}
    service.access.replace(Identities([user_with("ann", ALL, denied)]))

    assert (
        await as_caller(service, f"{ACCOUNT}/ann", "StartMessageMoveTask", **move)
    ).status == 200

    task = await _ended_move(service)
    assert (task["Status"], task["FailureReason"]) == ("FAILED", "AccessDenied")
    assert (await as_caller(service, ACCOUNT, "StartMessageMoveTask", **move)).status == 200
    assert (await _ended_move(service))["Status"] == "COMPLETED", "the root may"


async def _ended_move(service: Service) -> Any:
    """The latest task, once it runs no more; each look lets the shard run its turns."""
    task: dict[str, Any] = {"Status": "RUNNING"}
    while task["Status"] == "RUNNING":
        listed = await as_caller(service, ACCOUNT, "ListMessageMoveTasks", SourceArn=ARN)
        task = listed.json["Results"][0]
    return task


@pytest.mark.parametrize("action", ["StartMessageMoveTask", "ListMessageMoveTasks"])
async def test_another_partition_in_an_arn_evades_no_policy(service: Service, action: str) -> None:
    move = await _dead_letters(service)
    move["SourceArn"] = ARN.replace("arn:aws:", "arn:aws-x:")
    denied = ALL | {"Effect": "Deny", "Resource": ARN}
    service.access.replace(Identities([user_with("ann", ALL, denied)]))

    assert (await as_caller(service, f"{ACCOUNT}/ann", action, **move)).status == 403


async def test_a_move_does_not_reach_into_another_region(service: Service) -> None:
    queue = await service.catalog.create_queue((ACCOUNT, "eu-west-9", "far"), {}, {})

    answer = await as_caller(service, ACCOUNT, "ListMessageMoveTasks", SourceArn=queue.arn)

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
    await as_caller(service, ACCOUNT, "TagQueue", QueueUrl=QUEUE, Tags={"owner": "ann"})
    service.access.replace(Identities([user_with("ann", ALL | {"Condition": condition}, team="a")]))
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
    service.access.replace(Identities([user_with("ann", ALL, *barred, **tags)]))
    who = f"{ACCOUNT}/ann"

    assert await send_as(service, who) == 200
    tagged = await as_caller(service, who, "TagQueue", QueueUrl=QUEUE, Tags=tags)
    made = await as_caller(service, who, "CreateQueue", QueueName="n", tags=tags)
    assert (tagged.status, made.status) == (403, 403)
    await as_caller(service, ACCOUNT, "TagQueue", QueueUrl=QUEUE, Tags=tags)
    assert await send_as(service, who) == 403
    assert (await as_caller(service, who, "PurgeQueue", QueueUrl=QUEUE)).status == 403


async def test_an_empty_tag_counts_as_none(service: Service) -> None:
    absent = {"Condition": {"Null": {"aws:RequestTag/Env": "true"}}}
    service.access.replace(Identities([user_with("ann", ALL, ALL | {"Effect": "Deny"} | absent)]))

    statuses = [
        (await as_caller(service, f"{ACCOUNT}/ann", "TagQueue", QueueUrl=QUEUE, Tags=tags)).status
        for tags in ({"a": "b"}, {"Env": ""}, {"Env": "x"}, {"Env": "", "ENV": ""})
    ]

    assert statuses == [403, 403, 200, 403]


@pytest.mark.parametrize("header", ["User-Agent", "Referer"])
async def test_conditions_read_the_beginning_of_a_long_header(
    service: Service, header: str
) -> None:
    key = f"aws:{header.replace('-', '')}"
    condition = {"StringEquals": {key: "a" * 1024}}
    service.access.replace(Identities([user_with("ann", ALL | {"Condition": condition})]))

    statuses = []
    for length in (1023, 1024, 1025, 7000):
        headers = {"who": f"{ACCOUNT}/ann", header: "a" * length}
        request = json_request("SendMessage", headers=headers, QueueUrl=QUEUE, MessageBody="x")
        statuses.append((await service.ask(request)).status)

    assert statuses == [403, 200, 200, 200]


async def test_what_depends_on_the_request_is_decided_each_time(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []
    decide = Authorizer.decide

    def noted(authorizer: Authorizer, question: AccessQuestion, *others: Any) -> Decision:
        asked.append(question.principal.user)
        return decide(authorizer, question, *others)

    monkeypatch.setattr(Authorizer, "decide", noted)
    only_good = ALL | {"Condition": {"StringEquals": {"aws:UserAgent": "good"}}}
    service.access.replace(Identities([user_with("ann", only_good), user_with("bob", ALL)]))
    seen: list[int] = []
    for user, agent in [("ann", "good"), ("ann", "bad")] * 2 + [("bob", "bad")] * 2:
        headers = {"who": f"{ACCOUNT}/{user}", "User-Agent": agent}
        request = json_request("SendMessage", headers=headers, QueueUrl=QUEUE, MessageBody="x")
        seen.append((await service.ask(request)).status)

    assert seen == [200, 403, 200, 403, 200, 200]
    assert asked == ["ann"] * 4 + ["bob"]


async def test_an_etcd_that_was_restored_and_changed_anew_admits_nobody_of_before(
    service: Service,
) -> None:
    """Its queues get ids and versions that others had."""
    await set_policy(service, grant({"AWS": AWAY}))
    assert await send_as(service, AWAY) == 200
    queue = service.catalog.queue(ACCOUNT, REGION, "q")

    attributes = {name: text for name, text in queue.attributes.items() if name != "Policy"}
    other = msgspec.structs.replace(queue, attributes=attributes)
    service.catalog.show({queue_key(name_of(other)): other})

    assert await send_as(service, AWAY) == 403


# -- other accounts and unsigned
# requests-----------------------------------------------------------------


async def test_another_account_uses_a_queue_by_its_url_where_the_policy_says_so(
    service: Service,
) -> None:
    assert await send_as(service, AWAY) == 403

    await set_policy(service, grant({"AWS": AWAY}))
    assert await send_as(service, AWAY) == 200
    receive = await as_caller(service, AWAY, "ReceiveMessage", QueueUrl=QUEUE)
    assert receive.status == 403
    assert "because no resource-based policy allows the sqs:receivemessage action" in str(
        receive.json
    )

    own = await as_caller(service, ACCOUNT, "ReceiveMessage", QueueUrl=QUEUE)
    assert own.json["Messages"][0]["Body"] == "x"


@pytest.mark.parametrize("who", [AWAY, f"{AWAY}/bob"])
async def test_another_account_is_not_told_which_queues_there_are(
    service: Service, who: str
) -> None:
    service.access.replace(Identities([user_with("bob", ALL, account=AWAY)]))

    there = await as_caller(service, who, "ReceiveMessage", QueueUrl=QUEUE)
    missing = await as_caller(service, who, "ReceiveMessage", QueueUrl=QUEUE + "2")

    assert there.status == missing.status == 403
    assert missing.json["Message"] == there.json["Message"].replace(ARN, ARN + "2")


async def test_add_permission_lets_an_account_in_and_remove_permission_out(
    service: Service,
) -> None:
    permission = {"QueueUrl": QUEUE, "Label": "l"}
    granted = {"AWSAccountIds": [AWAY], "Actions": ["SendMessage"]}

    await as_caller(service, ACCOUNT, "AddPermission", **permission, **granted)
    assert await send_as(service, AWAY) == 200
    await as_caller(service, ACCOUNT, "RemovePermission", **permission)
    assert await send_as(service, AWAY) == 403


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
    await set_policy(service, grant({"AWS": AWAY}, "*"))
    assert await statuses() == [403] * 5
    assert service.access.denied == 0  # none was read, so that none can be costly
    await set_policy(service, grant("*"))
    assert await statuses() == [200, 403, 403, 403, 403]
    refused = (await service.ask(request("ReceiveMessage"))).body
    assert b"Request is missing Authentication Token" in refused
    assert service.access.denied > 0


async def test_unsigned_requests_are_read_only_while_a_queue_may_admit_them(
    service: Service,
) -> None:
    seen = [service.access.may_admit_unsigned]
    await set_policy(service, grant("*"))
    seen.append(service.access.may_admit_unsigned)
    await as_caller(service, ACCOUNT, "PurgeQueue", QueueUrl=QUEUE)
    assert service.catalog.open_to_everyone == {queue.queue_id for queue in service.catalog}
    await set_policy(service, grant({"AWS": AWAY}))
    seen.append(service.access.may_admit_unsigned)
    await set_policy(service, grant("*"))
    await as_caller(service, ACCOUNT, "DeleteQueue", QueueUrl=QUEUE)
    seen.append(service.access.may_admit_unsigned)

    assert seen == [False, True, False, False]


async def test_a_policy_that_denies_everything_can_be_repaired_by_the_account(
    service: Service,
) -> None:
    await set_policy(service, grant("*", "sqs:*") | {"Effect": "Deny"})
    assert await send_as(service, ACCOUNT) == 403

    await set_policy(service)
    assert await send_as(service, ACCOUNT) == 200


async def test_what_is_no_policy_is_refused(service: Service) -> None:
    for text in ("x", "[]", '{"Statement": [{"Effect": "Maybe"}]}'):
        answer = await as_caller(
            service, ACCOUNT, "SetQueueAttributes", QueueUrl=QUEUE, Attributes={"Policy": text}
        )
        assert answer.status == 400
        assert answer.json["message"] == "Invalid value for the parameter Policy."


async def test_open_mode_asks_no_policy() -> None:
    async with running() as service:
        url = await service.make_queue(
            "q", Policy=json.dumps({"Statement": [grant("*") | {"Effect": "Deny"}]})
        )
        await service.call("SendMessage", QueueUrl=url, MessageBody="x")
