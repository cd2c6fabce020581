"""The table of actions names the owner of each: a shard alone, the catalog alone, or both."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sqs_api.gateway.queue_actions import ACTIONS as QUEUE_ACTIONS
from sqs_api.tests.serving import ACCOUNT, REGION, json_request, running
from visibility.contract.actions import ACTIONS, AnsweredBy
from visibility.contract.model import Request

_ARN = f"arn:aws:sqs:{REGION}:{ACCOUNT}"
_ENTRY = {"Id": "1", "MessageBody": "b", "ReceiptHandle": "", "VisibilityTimeout": 0}
MEMBERS: dict[str, dict[str, Any]] = {
    "SendMessage": {"MessageBody": "b"},
    "GetQueueAttributes": {"AttributeNames": ["All"]},
    "SetQueueAttributes": {"Attributes": {"DelaySeconds": "1"}},
    "ChangeMessageVisibility": {"VisibilityTimeout": 0},
    "CreateQueue": {"QueueName": "new"},
    "GetQueueUrl": {"QueueName": "q"},
    "TagQueue": {"Tags": {"a": "b"}},
    "UntagQueue": {"TagKeys": ["a"]},
    "AddPermission": {"Label": "l", "AWSAccountIds": [ACCOUNT], "Actions": ["SendMessage"]},
    "StartMessageMoveTask": {"SourceArn": f"{_ARN}:dead"},
    "ListMessageMoveTasks": {"SourceArn": f"{_ARN}:dead"},
}


@pytest.mark.parametrize("action", [name for name in ACTIONS if name != "CancelMessageMoveTask"])
async def test_shards_are_asked_as_the_table_says(
    action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running() as service:
        await service.make_queue("dead")
        target = json.dumps({"deadLetterTargetArn": f"{_ARN}:dead", "maxReceiveCount": "1"})
        url = await service.make_queue("q", RedrivePolicy=target)
        await service.call("SendMessage", QueueUrl=url, MessageBody="b")
        received = await service.call("ReceiveMessage", QueueUrl=url)
        handle = received["Messages"][0]["ReceiptHandle"]
        members = {"QueueUrl": url, "ReceiptHandle": handle, **MEMBERS.get(action, {})}
        members["Entries"] = [{**_ENTRY, "ReceiptHandle": handle}]
        if action == "RemovePermission":
            permission = MEMBERS["AddPermission"]
            await service.call("AddPermission", QueueUrl=url, **permission)
            members["Label"] = "l"
        asked: list[Request] = []
        submit = service.shard.submit

        def submit_noted(request: Request, *more: Any, **options: Any) -> Any:
            asked.append(request)
            return submit(request, *more, **options)

        monkeypatch.setattr(service.shard, "submit", submit_noted)

        answer = await service.ask(json_request(action, **members))

        assert answer.status == 200, answer
        assert bool(asked) is (ACTIONS[action].answered_by is not AnsweredBy.CATALOG)
        is_alone = any(type(request.operation) is ACTIONS[action].request for request in asked)
        assert is_alone or ACTIONS[action].answered_by is not AnsweredBy.SHARD


def test_what_a_shard_does_not_answer_has_a_coroutine() -> None:
    by_shard = {row.request for row in ACTIONS.values() if row.answered_by is AnsweredBy.SHARD}

    assert set(QUEUE_ACTIONS) == {row.request for row in ACTIONS.values()} - by_shard
