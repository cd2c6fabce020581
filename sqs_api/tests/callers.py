"""Callers of a service with policies: a header says who asks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from auth.auth_errors import MissingAuthenticationToken
from auth.caller import Caller
from auth.identities import User
from auth.policy import NamedPolicy
from auth.policy_document import Kind, read_policy
from sqs_api.tests.serving import ACCOUNT, REGION, Answer, Service, json_request, running

AWAY = "2" * 12
BASE = "http://localhost:9324"
QUEUE = f"{BASE}/{ACCOUNT}/q"
ARN = f"arn:aws:sqs:{REGION}:{ACCOUNT}:q"
ALL = {"Effect": "Allow", "Action": "sqs:*", "Resource": "*"}


def authenticate(
    method: bytes, target: bytes, headers: Mapping[bytes, bytes], body: bytes, now_s: float
) -> Caller:
    """Trusts the header `who`: an account and, after a slash, a user."""
    account, _, user = headers.get(b"who", b"").decode().partition("/")
    if not account:
        raise MissingAuthenticationToken
    return Caller(account, REGION, "AIDA" + user.upper(), "AKIA", user or None)


@asynccontextmanager
async def with_policies() -> AsyncIterator[Service]:
    """A service in which policies count, with queue `q`."""
    async with running(authenticate=authenticate, enforced=True) as parts:
        await as_caller(parts, ACCOUNT, "CreateQueue", QueueName="q")
        yield parts


def user_with(name: str, *statements: dict[str, Any], account: str = ACCOUNT, **tags: str) -> User:
    policy = read_policy(
        json.dumps({"Version": "2012-10-17", "Statement": list(statements)}), Kind.IDENTITY
    )
    return User(account, name, "AIDA" + name.upper(), tags, (NamedPolicy("p", policy),))


async def as_caller(service: Service, who: str, action: str, **members: Any) -> Answer:
    headers = {"who": who} if who else {}
    return await service.ask(json_request(action, headers=headers, **members))


async def send_as(service: Service, who: str, **members: Any) -> int:
    return (
        await as_caller(service, who, "SendMessage", QueueUrl=QUEUE, MessageBody="x", **members)
    ).status


async def set_policy(service: Service, *statements: dict[str, Any]) -> None:
    """A policy of these statements, none without any."""
    policy = json.dumps({"Version": "2012-10-17", "Statement": list(statements)})
    given = {"Policy": policy if statements else ""}
    answer = await as_caller(
        service, ACCOUNT, "SetQueueAttributes", QueueUrl=QUEUE, Attributes=given
    )
    assert answer.status == 200, answer


def grant(principal: Any, action: str = "sqs:SendMessage", **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Principal": principal, "Action": action, "Resource": ARN, **more}
