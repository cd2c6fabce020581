"""Long polls whose caller loses the right to receive while they wait."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from auth.credentials import AccessKey, CredentialSet
from auth.identities import Identities
from sqs_api.tests.callers import (
    ALL,
    AWAY,
    QUEUE,
    as_caller,
    authenticate,
    grant,
    send_as,
    set_policy,
    user_with,
    with_policies,
)
from sqs_api.tests.serving import (
    ACCOUNT,
    Client,
    Service,
    json_request,
    running,
    settled,
    until,
)


@pytest_asyncio.fixture
async def service() -> AsyncIterator[Service]:
    async with with_policies() as parts:
        yield parts


_ANN = f"{ACCOUNT}/ann"
_ONLY_GOOD = ALL | {"Condition": {"StringEquals": {"aws:UserAgent": "good"}}}


def _keys(**changed: Any) -> CredentialSet:
    """The key of the user that `authenticate` sees."""
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
    answer = await as_caller(service, ACCOUNT, "ReceiveMessage", QueueUrl=QUEUE, **names)
    return [
        (message["Body"], message["Attributes"]["ApproximateReceiveCount"])
        for message in answer.json.get("Messages", [])
    ]


_REVOKED: dict[str, Callable[[Service], None]] = {
    "the user is removed": lambda service: service.access.replace(Identities([]), CredentialSet()),
    "its policy is another": lambda service: service.access.replace(
        Identities([user_with("ann", ALL, ALL | {"Effect": "Deny"})]), _keys()
    ),
    "its key is removed": lambda service: service.access.replace(
        Identities([user_with("ann", ALL)]), CredentialSet()
    ),
    "its key is disabled": lambda service: service.access.replace(
        Identities([user_with("ann", ALL)]), _keys(enabled=False)
    ),
    "its key is another's": lambda service: service.access.replace(
        Identities([user_with("ann", ALL)]), _keys(user="bob")
    ),
}


@pytest.mark.parametrize("how", _REVOKED)
@pytest.mark.parametrize("port", ["port", "aiohttp_port"])
@pytest.mark.parametrize("tags", [{}, {"holdfast:delivery": "at-most-once"}])
async def test_who_lost_the_right_while_a_poll_waited_gets_no_message(
    service: Service, how: str, port: str, tags: dict[str, str]
) -> None:
    await as_caller(service, ACCOUNT, "TagQueue", QueueUrl=QUEUE, Tags={"a": "b", **tags})
    service.access.replace(Identities([user_with("ann", ALL)]), _keys())
    client = await _parked(service, _ANN, port)

    _REVOKED[how](service)
    assert await send_as(service, ACCOUNT) == 200

    refused = await client.answer()
    assert refused.status == 403
    error = b"AccessDenied" if "policy" in how else b"UnrecognizedClient"
    assert error in refused.body
    assert await _received(service) == [("x", "1")]


@pytest.mark.parametrize("change", ["policy", "another queue in its place"])
async def test_who_lost_a_queue_while_a_poll_waited_gets_no_message(
    service: Service, change: str
) -> None:
    await set_policy(service, grant("*", "sqs:ReceiveMessage"))
    client = await _parked(service, "")

    if change == "policy":
        await set_policy(service)
    else:
        await as_caller(service, ACCOUNT, "PurgeQueue", QueueUrl=QUEUE)
        await set_policy(service, grant({"AWS": AWAY}, "sqs:ReceiveMessage"))
    await send_as(service, ACCOUNT)

    assert (await client.answer()).status == 403
    assert await _received(service) == [("x", "1")]


async def test_a_poll_that_ends_empty_is_refused_too(service: Service) -> None:
    service.access.replace(Identities([user_with("ann", ALL)]))
    client = await _parked(service, _ANN)

    service.access.replace(Identities([user_with("ann")]))
    service.router.end_waiting()

    assert (await client.answer()).status == 403
    assert service.access.denied == 1


async def test_a_poll_outlasts_changes_that_leave_its_right(service: Service) -> None:
    """Conditions see the headers of the poll."""
    service.access.replace(Identities([user_with("ann", _ONLY_GOOD)]), _keys())
    client = await _parked(service, _ANN)

    service.access.replace(
        Identities([user_with("ann", _ONLY_GOOD), user_with("bob", ALL)]), _keys()
    )
    await set_policy(service, grant("*"))
    await as_caller(service, ACCOUNT, "CreateQueue", QueueName="other")
    await send_as(service, ACCOUNT)

    assert (await client.answer()).json["Messages"][0]["Body"] == "x"


async def test_conditions_that_came_while_a_poll_waited_see_no_headers(service: Service) -> None:
    service.access.replace(Identities([user_with("ann", ALL)]))
    client = await _parked(service, _ANN)

    service.access.replace(Identities([user_with("ann", _ONLY_GOOD)]))
    await send_as(service, ACCOUNT)

    assert (await client.answer()).status == 403
    assert await _received(service) == [("x", "1")]


async def test_open_mode_checks_no_poll_again() -> None:
    async with running(authenticate=authenticate) as service:
        await as_caller(service, ACCOUNT, "CreateQueue", QueueName="q")
        client = await _parked(service, _ANN)

        service.access.replace(Identities([]), CredentialSet())
        await send_as(service, ACCOUNT)

        assert (await client.answer()).json["Messages"][0]["Body"] == "x"
