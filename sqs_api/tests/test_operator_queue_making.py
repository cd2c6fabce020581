"""The operators' API: queues are made with their dead-letter queues, deleted, and restored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sqs_api.settings.config import AuthMode
from sqs_api.tests.operator_client import Operators, User, add_users
from sqs_api.tests.served import serving

ARN = "arn:aws:sqs:us-east-1:000000000000:"


async def attributes(operators: Operators, name: str) -> Any:
    return (await operators.seen(f"queues/{name}"))["attributes"]


async def test_a_queue_is_made_with_a_new_dead_letter_queue(operators: Operators) -> None:
    dead = {
        "name": "jobs-dead",
        "max_receive_count": 4,
        "attributes": {"MessageRetentionPeriod": "1209600"},
    }
    wanted = {"name": "jobs", "attributes": {"VisibilityTimeout": "60"}, "tags": {"team": "a"}}

    told = await operators.done("queues", {**wanted, "dead_letter_queue": dead})

    assert told == {"made": ["jobs-dead", "jobs"]}
    made = await operators.seen("queues/jobs")
    policy = json.loads(made["attributes"]["RedrivePolicy"])
    assert policy == {"deadLetterTargetArn": f"{ARN}jobs-dead", "maxReceiveCount": 4}
    assert (made["attributes"]["VisibilityTimeout"], made["tags"]) == ("60", {"team": "a"})
    assert (await attributes(operators, "jobs-dead"))["MessageRetentionPeriod"] == "1209600"


async def test_a_dead_letter_queue_that_is_there_is_used_as_it_is(operators: Operators) -> None:
    await operators.done("queues", {"name": "shared", "attributes": {"DelaySeconds": "7"}})

    told = await operators.done("queues", {"name": "jobs", "dead_letter_queue": {"name": "shared"}})

    assert told == {"made": ["jobs"]}
    assert (await attributes(operators, "shared"))["DelaySeconds"] == "7"


async def test_a_name_that_is_taken_and_wrong_attributes_make_nothing(
    operators: Operators,
) -> None:
    await operators.done("queues", {"name": "jobs"})

    taken = await operators.post("queues", {"name": "jobs"})
    wrong = await operators.post(
        "queues",
        {
            "name": "other",
            "attributes": {"FifoQueue": "true"},
            "dead_letter_queue": {"name": "other-dead"},
        },
    )

    assert (taken.status, taken.json["error"]) == (400, "There is a queue jobs already.")
    assert wrong.status == 400
    assert (await operators.seen("queues"))["total"] == 1


async def test_a_deleted_queue_is_listed_and_restored(operators: Operators) -> None:
    await operators.done("queues", {"name": "jobs"})
    await operators.served.send("kept", queue="jobs")

    unsure = await operators.post("queues/jobs/delete", {"confirm": "job"})
    await operators.done("queues/jobs/delete", {"confirm": "jobs"})
    (deleted,) = await operators.seen("deleted-queues")
    gone = await operators.get("queues/jobs")
    await operators.done("deleted-queues/restore", {"queue_id": deleted["queue_id"]})

    assert unsure.status == 400
    assert (deleted["name"], deleted["purged"], deleted["messages"]) == ("jobs", False, 1)
    assert gone.status == 404
    assert await operators.served.count("jobs") == 1
    assert await operators.seen("deleted-queues") == []


async def test_policies_say_who_makes_and_deletes_which_queues(data: Path) -> None:
    actions = ("sqs:CreateQueue", "sqs:DeleteQueue", "holdfast:GetQueue")
    users = add_users(data, {"teams": User(actions, f"{ARN}team-*"), "all": User(actions)})
    async with serving(data, auth=AuthMode.SIGV4) as node:
        teams, everyone = (Operators(node, users[name]) for name in ("teams", "all"))
        own = await teams.post("queues", {"name": "team-a"})
        dead = {"name": "other-dead"}
        partly = await teams.post("queues", {"name": "team-b", "dead_letter_queue": dead})
        await everyone.done("queues", {"name": "other"})
        refused = await teams.post("queues/other/delete", {"confirm": "other"})
        elsewhere = await teams.post("queues?account=111111111111", {"name": "team-c"})
        unseen = await teams.post("queues", {"name": "other"})
        may = (await teams.seen("caller"))["may"]
        may_all = (await everyone.seen("caller"))["may"]
        page = await teams.get("queues/team-b")

    assert (own.status, partly.status, refused.status) == (200, 403, 403)
    assert (elsewhere.status, unseen.status) == (400, 403), "nor is told that it is there"
    assert page.status == 404, "the dead-letter queue was refused before one was made"
    assert ("sqs:CreateQueue" in may, "sqs:CreateQueue" in may_all) == (False, True)
