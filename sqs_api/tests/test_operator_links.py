"""The operators' API: what the caller may do, by which a page knows its links, and purges that are
taken back."""

from __future__ import annotations

from pathlib import Path

from sqs_api.settings.config import AuthMode
from sqs_api.tests.commands import run
from sqs_api.tests.operator_client import (
    Operators,
    User,
    add_user,
    add_users,
    keys_of,
    latest_redrive,
    make_dead_letters,
)
from sqs_api.tests.served import serving

ARN = "arn:aws:sqs:us-east-1:000000000000:"
VIEWER = ("holdfast:ListQueues", "holdfast:GetQueue", "holdfast:BrowseMessages")
OF_A_SERVICE = [
    "holdfast:ReadAudit",
    "holdfast:ReadUsers",
    "holdfast:ManageUsers",
    "holdfast:ReadCluster",
    "holdfast:ReadFleet",
    "holdfast:ChangeFleet",
    "holdfast:DrainHost",
    "holdfast:ListDeletedQueues",
    "holdfast:RestoreQueue",
    "holdfast:AddMark",
]


async def test_a_caller_is_told_what_it_may_do_to_the_service(data: Path) -> None:
    everything = User(("holdfast:*",))
    keys = add_users(data, {"viewer": User(VIEWER), "all": everything})
    root = keys_of(run("credentials", "--data", data, "add"))
    async with serving(data, auth=AuthMode.SIGV4) as served:
        viewer = await Operators(served, keys["viewer"]).seen("caller")
        user = await Operators(served, keys["all"]).seen("caller")
        owner = await Operators(served, root).seen("caller")

    assert viewer["may"] == ["holdfast:ListQueues"]
    of_root = {"holdfast:ManageUsers", "holdfast:DrainHost"}
    assert user["may"][1:] == [each for each in OF_A_SERVICE if each not in of_root]
    assert owner["may"] == ["holdfast:ListQueues", "sqs:CreateQueue", *OF_A_SERVICE]
    assert owner["has_archive"] is False
    assert owner["grafana_url"] is None


async def test_a_caller_is_told_of_the_dashboards(data: Path) -> None:
    async with serving(data, grafana_url="https://grafana.example/g") as served:
        assert (await Operators(served).seen("caller"))[
            "grafana_url"
        ] == "https://grafana.example/g"


async def test_lists_say_which_links_of_a_queue_the_caller_may_follow(data: Path) -> None:
    listing = ("holdfast:ListQueues",)
    async with serving(data) as served:
        await make_dead_letters(served, "a")
    lists = add_user(data, "lists", *listing)
    dead = add_user(data, "dead", "holdfast:*", resource=f"{ARN}dead")
    async with serving(data, auth=AuthMode.SIGV4) as served:
        listed = (await Operators(served, lists).seen("queues"))["queues"]
        queue = await Operators(served, dead).seen("queues/dead")

    assert [(each["name"], each["may"]) for each in listed] == [("dead", []), ("source", [])]
    assert [each["hidden"] for each in listed] == [["source"], ["dead"]]
    assert queue["hidden"] == ["source"]
    assert "holdfast:RedriveMessages" in queue["may"]


async def test_a_purge_is_taken_back(data: Path) -> None:
    async with serving(data) as served:
        await make_dead_letters(served, "a", "b")
        operators = Operators(served)
        before = (await operators.seen("queues/dead"))["purges"]
        await operators.done("queues/dead/purge", {"confirm": "dead"})
        (purge,) = (await operators.seen("queues/dead"))["purges"]
        elsewhere = (await operators.seen("queues/source"))["purges"]
        empty = await served.count("dead")
        restored = await operators.done("deleted-queues/restore", {"queue_id": purge["queue_id"]})
        again = await operators.post("deleted-queues/restore", {"queue_id": purge["queue_id"]})
        messages = await served.count("dead")
        after = (await operators.seen("queues/dead"))["purges"]

    assert before == elsewhere == after == []
    assert purge["restorable_until_ms"] > purge["purged_at_ms"]
    assert (purge["restoring"], purge["messages"]) == (False, 2)
    assert (empty, messages) == (0, 2)
    assert restored == {"restored": "dead", "complete": True}
    assert again.status == 404
    assert again.json["error"] == "It is back already, or its time is over."


async def test_what_is_left_of_a_purge_that_comes_back_is_counted(data: Path) -> None:
    async with serving(data) as served:
        await make_dead_letters(served, "a", "b", "c")
        await served.call("ReceiveMessage", QueueUrl="dead", VisibilityTimeout=600)
        operators = Operators(served)
        await operators.done("queues/dead/purge", {"confirm": "dead"})
        (purge,) = (await operators.seen("queues/dead"))["purges"]
        wanted = {"queue_id": purge["queue_id"]}
        restored = await operators.done("deleted-queues/restore", wanted)
        (left,) = (await operators.seen("queues/dead"))["purges"]
        again = await operators.post("deleted-queues/restore", wanted)

    assert (purge["restoring"], purge["messages"]) == (False, 3)
    assert not restored["complete"]
    assert left == {**purge, "restoring": True, "messages": 1}
    assert again.status == 404
    assert again.json["error"] == "The messages of queue dead come back already."


async def test_a_purge_that_comes_back_waits_for_its_queue_that_is_deleted(data: Path) -> None:
    """It comes back again with the queue."""
    async with serving(data) as served:
        await make_dead_letters(served, "a", "b")
        await served.call("ReceiveMessage", QueueUrl="dead", VisibilityTimeout=600)
        operators = Operators(served)
        await operators.done("queues/dead/purge", {"confirm": "dead"})
        (purge,) = (await operators.seen("queues/dead"))["purges"]
        wanted = {"queue_id": purge["queue_id"]}
        await operators.done("deleted-queues/restore", wanted)
        await served.call("DeleteQueue", QueueUrl="dead")
        waiting, deleted = await operators.seen("deleted-queues")
        refused = await operators.post("deleted-queues/restore", wanted)
        await operators.done("deleted-queues/restore", {"queue_id": deleted["queue_id"]})
        (back,) = await operators.seen("deleted-queues")

    reason = "Queue dead was deleted after this purge; restore it first."
    assert (waiting["restoring"], waiting["messages"]) == (True, 1)
    assert waiting["obstacle"] == refused.json["error"] == reason
    assert (deleted["restoring"], deleted["messages"], deleted["obstacle"]) == (False, 1, None)
    assert back == {**waiting, "obstacle": None}


async def test_a_purge_is_taken_back_by_those_who_may_restore_queues(data: Path) -> None:
    purges = ("sqs:PurgeQueue", "holdfast:GetQueue")
    keys = add_users(
        data, {"purges": User(purges), "both": User((*purges, "holdfast:RestoreQueue"))}
    )
    async with serving(data) as served:
        await make_dead_letters(served, "a")
    async with serving(data, auth=AuthMode.SIGV4) as served:
        one, other = Operators(served, keys["purges"]), Operators(served, keys["both"])
        await one.done("queues/dead/purge", {"confirm": "dead"})
        unseen = (await one.seen("queues/dead"))["purges"]
        (seen,) = (await other.seen("queues/dead"))["purges"]
        wanted = {"queue_id": seen["queue_id"]}
        refused = await one.post("deleted-queues/restore", wanted)
        restored = await other.post("deleted-queues/restore", wanted)

    assert unseen == []
    assert (refused.status, restored.status) == (403, 200)


async def test_the_progress_of_a_redrive_is_that_of_its_plan(data: Path) -> None:
    bodies = ('{"k": "a"}', '{"k": "b"}', '{"k": "a"}')
    async with serving(data) as served:
        await make_dead_letters(served, *bodies)
        operators = Operators(served)
        wanted = {"filter": {"json": "k=b"}}
        plan = await operators.done("queues/dead/redrives/plan", wanted)
        counted = sum(each["messages"] for each in plan["targets"].values())
        await operators.done("queues/dead/redrives", {**wanted, "planned": counted})
        planned = await latest_redrive(operators)
        await operators.done("queues/dead/redrives", wanted)
        unplanned = await latest_redrive(operators)

    shown = [(each["moved"], each["to_move"], each["is_planned"]) for each in (planned, unplanned)]
    assert shown == [(1, 1, True), (0, 2, False)]
