"""A request is refused only once what others changed is known here: keys, policies, queues."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from auth.auth_errors import InvalidClientTokenId
from auth.caller import Caller
from cluster.keys.identity_records import IdentitiesUnreadable
from sqs_api.tests.serving import (
    ACCOUNT,
    REGION,
    json_request,
    open_authenticate,
    query_request,
    running,
)
from visibility.contract.errors import ServiceUnavailable

EVERYONE_SENDS = (
    '{"Statement": {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", '
    '"Resource": "*"}}'
)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqs_api.gateway.recheck_refusal.HEAR_PAUSE_S", 0.0)


class Elsewhere:
    """The users and keys of a cluster, of which this host hears only when it asks."""

    def __init__(self) -> None:
        self.is_away = self.is_made = self.is_known = False
        self.questions = 0

    async def catch_up(self) -> None:
        self.questions += 1
        if self.is_away:
            raise IdentitiesUnreadable("etcd is away")
        self.is_known = self.is_made

    def authenticate(
        self,
        method: bytes,
        target: bytes,
        headers: Mapping[bytes, bytes],
        body: bytes,
        now_s: float,
    ) -> Caller:
        """The caller of a request that the new key signed."""
        if not self.is_known:
            raise InvalidClientTokenId
        return open_authenticate(method, target, headers, body, now_s)


@pytest.mark.parametrize("make_request", [json_request, query_request])
async def test_a_key_that_another_host_made_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, make_request: Any
) -> None:
    elsewhere, request = Elsewhere(), make_request("ListQueues")
    async with running(authenticate=elsewhere.authenticate, catch_up=elsewhere.catch_up) as service:
        unknown = await service.ask(request)
        elsewhere.is_away = True
        away = await service.ask(request)
        elsewhere.is_away, elsewhere.is_made = False, True
        known = await service.ask(request)

    assert (unknown.status, away.status, known.status) == (403, 503, 200)
    assert b"The security token included in the request is invalid." in unknown.body
    assert (b"<ErrorResponse" in unknown.body) == (make_request is query_request)
    assert (b"<ErrorResponse" in away.body) == (make_request is query_request)


@pytest.mark.parametrize(
    ("action", "members"),
    [
        ("SendMessage", {"QueueUrl": "q", "MessageBody": "x"}),
        ("GetQueueUrl", {"QueueName": "q"}),
        ("TagQueue", {"QueueUrl": "q", "Tags": {"a": "b"}}),
    ],
)
async def test_a_queue_that_another_host_made_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, action: str, members: dict[str, Any]
) -> None:
    async with running(catch_up=Elsewhere().catch_up) as service:
        is_made = False

        async def caught_up() -> bool:
            if is_made:
                await service.catalog.create_queue((ACCOUNT, REGION, "q"), {}, {})
            return not is_away

        monkeypatch.setattr(service.catalog, "caught_up", caught_up)
        request = json_request(action, **members)
        is_away = True
        away = await service.ask(request)
        is_away = False
        missing = await service.ask(request)
        is_made = True
        found = await service.ask(request)

    assert (away.status, missing.status, found.status) == (503, 400, 200)
    assert missing.json["__type"].endswith("#QueueDoesNotExist")


async def test_a_change_is_refused_once_what_other_hosts_changed_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = f'{{"deadLetterTargetArn":"arn:aws:sqs:{REGION}:{ACCOUNT}:dlq","maxReceiveCount":1}}'
    async with running(catch_up=Elsewhere().catch_up) as service:
        await service.make_queue()
        is_made = False

        async def caught_up() -> bool:
            if is_made:
                await service.catalog.create_queue((ACCOUNT, REGION, "dlq"), {}, {})
            return True

        monkeypatch.setattr(service.catalog, "caught_up", caught_up)
        request = json_request(
            "SetQueueAttributes", QueueUrl="q", Attributes={"RedrivePolicy": policy}
        )
        refused = await service.ask(request)
        is_made = True
        done = await service.ask(request)

    assert (refused.status, done.status) == (400, 200)
    assert "Dead letter target does not exist" in refused.json["message"]


async def test_a_queue_of_another_account_that_another_host_made_may_be_sent_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without its policy it looks like one that does not exist, which must not be told."""
    async with running(enforced=True, catch_up=Elsewhere().catch_up) as service:
        is_made = False

        async def caught_up() -> bool:
            if is_made:
                place = ("222222222222", REGION, "q")
                await service.catalog.create_queue(place, {"Policy": EVERYONE_SENDS}, {})
            return True

        monkeypatch.setattr(service.catalog, "caught_up", caught_up)
        request = json_request("SendMessage", QueueUrl="/222222222222/q", MessageBody="x")
        denied = await service.ask(request)
        is_made = True
        sent = await service.ask(request)

    assert (denied.status, sent.status) == (403, 200)
    assert denied.json["__type"].endswith("#AccessDeniedException")
    assert service.access.denied == 1


async def test_hosts_that_are_right_do_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = Elsewhere()
    async with running(catch_up=elsewhere.catch_up) as service:
        await service.make_queue()
        wrong = await service.ask(json_request("SendMessage", QueueUrl=f"/{ACCOUNT}/q"))

    assert wrong.status == 400
    assert elsewhere.questions == 0


async def test_all_who_wait_share_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere, unknown = Elsewhere(), InvalidClientTokenId()
    async with running(catch_up=elsewhere.catch_up) as service:
        recheck = service.recheck_refusal
        await asyncio.gather(*(recheck.hear(unknown) for _ in range(50)))
        assert elsewhere.questions == 1
        elsewhere.is_made = True
        await recheck.hear(unknown)
        assert (elsewhere.questions, elsewhere.is_known) == (2, True)
        elsewhere.is_away = True
        with pytest.raises(ServiceUnavailable):
            await recheck.hear(unknown)


async def test_a_request_waits_for_the_key_that_it_needs() -> None:
    async with running(makes_keys=True) as service:
        url = await service.make_queue("q", KmsMasterKeyId="alias/new")

        sent = await service.ask(json_request("SendMessage", QueueUrl=url, MessageBody="x"))
        received = await service.call("ReceiveMessage", QueueUrl=url)

    assert sent.status == 200
    assert [message["Body"] for message in received["Messages"]] == ["x"]
