"""The operators' API: attributes, policies and tags of a queue, its history, hosts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sqs_api.settings.config import AuthMode
from sqs_api.tests.operator_client import Operators, add_user
from sqs_api.tests.served import Served, serving


@pytest_asyncio.fixture
async def operators(data: Path) -> AsyncIterator[Operators]:
    async with serving(data) as served:
        await served.call("CreateQueue", QueueName="q")
        yield Operators(served)


async def attributes(served: Served) -> dict[str, str]:
    answer = await served.call("GetQueueAttributes", QueueUrl="q", AttributeNames=["All"])
    found: dict[str, str] = answer["Attributes"]
    return found


async def test_attributes_are_changed_and_a_policy_is_removed_again(operators: Operators) -> None:
    everyone = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [everyone]})
    given = {"VisibilityTimeout": "77", "Policy": policy}
    changed = await operators.done("queues/q/attributes", {"attributes": given})

    assert changed["attributes"]["VisibilityTimeout"] == "77"
    assert json.loads((await attributes(operators.served))["Policy"]) == json.loads(policy)
    await operators.done("queues/q/attributes", {"attributes": {"Policy": ""}})
    assert "Policy" not in await attributes(operators.served)


async def test_statements_about_other_queues_are_named(operators: Operators) -> None:
    grant = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage"}
    elsewhere = {**grant, "Sid": "typo", "Resource": "arn:aws:sqs:us-east-1:000000000000:other"}
    before = (await operators.seen("queues/q"))["policy_without_effect"]
    policy = json.dumps({"Statement": [elsewhere, {**grant, "Resource": "*"}]})

    await operators.done("queues/q/attributes", {"attributes": {"Policy": policy}})

    assert before == []
    assert (await operators.seen("queues/q"))["policy_without_effect"] == ["typo"]


async def test_tags_without_effect_are_named_with_the_reason(operators: Operators) -> None:
    tags = {
        "holdfast:on-delete": "dead-letter",
        "holdfast:overflow": "reject",
        "holdfast:priority": "strict",
    }
    await operators.done("queues/q/tags", {"tags": tags})
    before = (await operators.seen("queues/q"))["tags_without_effect"]
    await operators.done("queues/q/tags", {"tags": {"holdfast:max-bytes": "5000"}})

    no_limit = "the queue has no tag holdfast:max-messages or holdfast:max-bytes"
    no_letters = "the queue has no dead-letter queue"
    assert before == {"holdfast:on-delete": no_letters, "holdfast:overflow": no_limit}
    after = (await operators.seen("queues/q"))["tags_without_effect"]
    assert after == {"holdfast:on-delete": no_letters}


_REFUSED = [
    {"VisibilityTimeout": "43201"},
    {"Nothing": "1"},
    {"Policy": "{"},
    {"RedrivePolicy": "{}"},
]


async def test_attributes_are_refused_as_sqs_refuses_them(operators: Operators) -> None:
    before = await attributes(operators.served)
    for given in _REFUSED:
        ours = await operators.post("queues/q/attributes", {"attributes": given})
        with pytest.raises(AssertionError) as theirs:
            await operators.served.call("SetQueueAttributes", QueueUrl="q", Attributes=given)

        assert ours.status == 400, given
        assert ours.json["error"] in str(theirs.value), given
        assert await attributes(operators.served) == before, given


async def test_tags_are_added_overwritten_and_removed(operators: Operators) -> None:
    await operators.done("queues/q/tags", {"tags": {"team": "a", "cost": "1"}})
    await operators.done("queues/q/tags", {"tags": {"team": "b"}})
    left = await operators.done("queues/q/tags/remove", {"keys": ["cost"]})

    tags = await operators.served.call("ListQueueTags", QueueUrl="q")
    assert left["tags"] == tags["Tags"] == {"team": "b"}
    assert (await operators.post("queues/q/tags", {"tags": {"": "x"}})).status == 400


async def test_what_another_operator_changed_meanwhile_is_not_overwritten(
    operators: Operators,
) -> None:
    async def saved(page: str, given: dict[str, Any], **seen: str | None) -> int:
        answer = await operators.post(f"queues/q/{page}", {**given, "seen": seen})
        if answer.status == 409:
            assert answer.json["code"] == "ChangedMeanwhile"
            assert next(iter(seen)) in answer.json["error"]
        return answer.status

    nine, five = {"attributes": {"DelaySeconds": "9"}}, {"attributes": {"DelaySeconds": "5"}}
    assert await saved("attributes", nine, DelaySeconds="0") == 200
    assert await saved("attributes", five, DelaySeconds="0") == 409
    assert (await attributes(operators.served))["DelaySeconds"] == "9"
    assert await saved("attributes", nine, DelaySeconds="0") == 200, "it is as it was to be"
    assert await saved("attributes", five, DelaySeconds="9") == 200
    no_policy: dict[str, Any] = {"attributes": {"Policy": ""}}
    assert await saved("attributes", no_policy, Policy=None) == 200
    assert await saved("attributes", no_policy, Policy="{}") == 200, "somebody else removed it"

    assert await saved("tags", {"tags": {"team": "a"}}, team=None) == 200
    assert await saved("tags", {"tags": {"team": "b"}}, team=None) == 409
    assert await saved("tags", {"tags": {"team": "b"}}, team="a") == 200
    assert await saved("tags/remove", {"keys": ["team"]}, team="a") == 409
    assert await saved("tags/remove", {"keys": ["team"]}, team="b") == 200
    assert await saved("tags/remove", {"keys": ["team"]}, team="b") == 200, "it is gone"


async def test_each_change_needs_sqs_own_permission_and_is_audited(data: Path) -> None:
    async with serving(data) as served:
        await served.call("CreateQueue", QueueName="q")
    key = add_user(data, "tagger", "holdfast:GetQueue", "sqs:TagQueue")
    async with serving(data, auth=AuthMode.SIGV4) as served:
        operators = Operators(served, key)
        await operators.done("queues/q/tags", {"tags": {"team": "a"}})
        refused = [
            await operators.post("queues/q/attributes", {"attributes": {"DelaySeconds": "1"}}),
            await operators.post("queues/q/tags/remove", {"keys": ["team"]}),
        ]
        shown = await operators.seen("queues/q")

    assert [told.status for told in refused] == [403, 403]
    assert (shown["may"], shown["tags"]) == (["sqs:TagQueue"], {"team": "a"})
    lines = [json.loads(line) for line in (data / "audit.log").read_text().splitlines()]
    (tagged,) = [line for line in lines if line["event"] == "holdfast:TagQueue"]
    assert (tagged["user"], tagged["tags"], tagged["outcome"]) == ("tagger", {"team": "a"}, "ok")
    denied = [line["action"] for line in lines if line["event"] == "denied"]
    assert denied == ["sqs:SetQueueAttributes", "sqs:UntagQueue"]


# -- history ---------------------------------------------------------------------------------------


async def test_the_history_has_the_minute_under_way(operators: Operators) -> None:
    await operators.served.send("a", "b")

    shown = await operators.seen("queues/q/history", hours=1)

    series: dict[str, list[Any]] = shown["series"]
    assert shown["period_s"] == 60
    assert {len(values) for values in series.values()} == {60}
    assert series["visible"][-1] == 2
    assert sum(value or 0 for value in series["sent"]) * 60 == pytest.approx(2)
    assert series["visible"][0] is None


async def test_a_long_history_has_a_point_an_hour(operators: Operators) -> None:
    shown = await operators.seen("queues/q/history", hours=48)

    assert (shown["period_s"], len(shown["series"]["visible"])) == (3600, 48)
    assert (await operators.get("queues/q/history", hours=0)).status == 400
    assert (await operators.get("queues/none/history")).status == 404


async def test_the_time_from_send_to_receive_is_a_mean_of_first_receives(
    operators: Operators,
) -> None:
    await operators.served.send("a", "b")
    before = await operators.seen("queues/q/history")
    await operators.served.receive()
    shown = await operators.seen("queues/q/history")

    assert set(before["series"]["send_to_receive_s"]) == {None}
    (mean_s,) = [each for each in shown["series"]["send_to_receive_s"] if each is not None]
    assert 0 <= mean_s < 60


async def test_depths_are_those_of_the_queues_of_a_page(operators: Operators) -> None:
    for name in ("many-1", "many-2", "many-3"):
        await operators.served.call("CreateQueue", QueueName=name)
    await operators.served.send("a", "b", queue="many-1")
    await operators.served.send("a", queue="many-3")
    await operators.served.call("SendMessage", QueueUrl="many-3", MessageBody="b", DelaySeconds=900)

    first = await operators.seen("depths", search="many", limit=2)
    fullest = await operators.seen("depths", search="many", limit=1, sort="delayed")

    assert (first["period_s"], {*first["queues"]}) == (120, {"many-1"})
    assert len(first["queues"]["many-1"]) == 30
    for name, depths in (first["queues"] | fullest["queues"]).items():
        assert [each for each in depths if each is not None][-1] == 2, name
    assert {*fullest["queues"]} == {"many-3"}


# -- hosts -----------------------------------------------------------------------------------------


async def test_a_single_host_has_no_cluster_and_drains_nothing(operators: Operators) -> None:
    assert await operators.seen("cluster") == {"cluster": None, "is_gateway": False}
    told = await operators.post("cluster/drain", {"host": "a", "drained": True})

    assert (told.status, told.json["error"]) == (400, "this host is not a member of a cluster")


async def test_users_see_the_hosts_by_policy_and_never_drain_one(data: Path) -> None:
    viewer = add_user(data, "viewer", "holdfast:ReadCluster", "holdfast:DrainHost")
    other = add_user(data, "other", "holdfast:GetQueue")
    async with serving(data, auth=AuthMode.SIGV4) as served:
        seen = await Operators(served, viewer).get("cluster")
        denied = await Operators(served, other).get("cluster")
        drain = {"host": "a", "drained": True}
        drained = await Operators(served, viewer).post("cluster/drain", drain)

    assert (seen.status, denied.status, drained.status) == (200, 403, 403)
    assert "root" in drained.json["error"]
