"""A client of the operators' API, and keys of users with policies.

`Served` checks each answer against the OpenAPI document.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlencode

from auth.signing import SigningKey
from sqs_api.commands.command_options import load, opened_identities
from sqs_api.tests.commands import Said, in_thread
from sqs_api.tests.served import Served
from sqs_api.tests.serving import settled

JSON = {"content-type": "application/json"}
_nonces = count()


class Told(NamedTuple):
    """An answer of the API."""

    status: int
    json: Any
    retry_after: str | None = None


class Operators:
    """Asks one service, with one key or none."""

    def __init__(self, served: Served, key: SigningKey | None = None) -> None:
        self.served = served
        self.key = key

    async def get(self, path: str, **parameters: object) -> Told:
        """Ask; the answer may be a refusal."""
        query = f"?{urlencode(parameters)}" if parameters else ""
        return await self.ask("GET", path + query, b"", {})

    async def post(
        self,
        path: str,
        content: object = None,
        more: Mapping[str, str] = MappingProxyType(JSON),
    ) -> Told:
        """Do; the answer may be a refusal."""
        return await self.ask("POST", path, json.dumps(content or {}).encode(), more)

    async def ask(self, method: str, path: str, body: bytes, more: Mapping[str, str]) -> Told:
        headers = {"x-holdfast-nonce": str(next(_nonces)), **more}
        answer = await self.served.ask_page(method, f"api/{path}", body, key=self.key, more=headers)
        shown = answer.json if answer.body else None
        return Told(answer.status, shown, answer.headers.get("Retry-After"))

    async def seen(self, path: str, **parameters: object) -> Any:
        """The answer to a GET that must succeed."""
        told = await self.get(path, **parameters)
        assert told.status == 200, told
        return told.json

    async def done(self, path: str, content: object = None) -> Any:
        """The answer to a POST that must succeed."""
        told = await self.post(path, content)
        assert told.status == 200, told
        return told.json


async def make_dead_letters(served: Served, *bodies: str, suffix: str = "") -> None:
    """Queues `source` and `dead`, with messages that were received too often."""
    await served.call("CreateQueue", QueueName=f"dead{suffix}")
    policy = {
        "deadLetterTargetArn": f"arn:aws:sqs:us-east-1:000000000000:dead{suffix}",
        "maxReceiveCount": 1,
    }
    attributes = {"RedrivePolicy": json.dumps(policy), "VisibilityTimeout": "0"}
    await served.call("CreateQueue", QueueName=f"source{suffix}", Attributes=attributes)
    await served.send(*bodies, queue=f"source{suffix}")
    while await served.count(f"source{suffix}"):
        await served.call("ReceiveMessage", QueueUrl=f"source{suffix}", MaxNumberOfMessages=10)


async def latest_redrive(operators: Operators, queue: str = "dead", *, settles: bool = True) -> Any:
    """The latest redrive, once it has ended or pauses."""
    while True:
        found = (await operators.seen(f"queues/{queue}/redrives"))["redrives"][0]
        if not settles or not found["is_active"] or found["paused"]:
            return found
        await settled()


def keys_of(said: Said) -> SigningKey:
    """The access key that a command printed."""
    made = dict(line.removeprefix("export ").split("=", 1) for line in said.out.splitlines())
    return SigningKey(made["AWS_ACCESS_KEY_ID"], made["AWS_SECRET_ACCESS_KEY"], "us-east-1")


class User(NamedTuple):
    """A user to be made, who may do this, `but` not that."""

    actions: Sequence[str]
    resource: str = "*"
    but: str | None = None

    @property
    def policy(self) -> str:
        statements = [{"Effect": "Allow", "Action": [*self.actions], "Resource": self.resource}]
        if self.but is not None:
            statements.append({"Effect": "Deny", "Action": [self.but], "Resource": self.resource})
        return json.dumps({"Version": "2012-10-17", "Statement": statements})


def add_users(data: Path, users: Mapping[str, User]) -> dict[str, SigningKey]:
    """The keys of new users by name. Quicker than three commands for each."""
    settings = load(None, {"data": data})
    keys: dict[str, SigningKey] = {}

    async def add() -> None:
        async with opened_identities(settings, may_make=True) as store:
            for name, user in users.items():
                made = await store.add_user(settings.account, name, {})
                await store.put_policy(made, "p", user.policy)
                key = await store.add_key(settings.account, made)
                keys[name] = SigningKey(key.access_key_id, key.secret_access_key, "us-east-1")

    in_thread(lambda: asyncio.run(add()))
    return keys


def add_user(
    data: Path, name: str, *actions: str, resource: str = "*", but: str | None = None
) -> SigningKey:
    """The key of a new user who may do this, `but` not that."""
    return add_users(data, {name: User(actions, resource, but)})[name]
