"""A whole node on a data folder, for tests of operations on folders."""

from __future__ import annotations

import asyncio
import atexit
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from auth.signing import SigningKey, signed_headers
from cluster.clock import SystemClock
from sqs_api.node import Node, start_node
from sqs_api.operators.api import routes_at
from sqs_api.settings.config import AuthMode, Settings, Switch
from sqs_api.tests.commands import Said, run
from sqs_api.tests.documented import check_answer
from sqs_api.tests.serving import Answer, Client, json_request


class Served:
    """A node on a data folder, and a client of it."""

    def __init__(self, node: Node, data: Path, address: str = "") -> None:
        self.node = node
        self.data = data
        self.address = address or node.address

    async def ask(self, request: bytes) -> Answer:
        client = await Client.connected(self.address)
        answer = await client.ask(request)
        await client.close()
        return answer

    async def ask_page(
        self,
        method: str,
        page: str,
        body: bytes = b"",
        *,
        key: SigningKey | None = None,
        host: str = "localhost:9324",
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> Answer:
        """A page below /_holdfast/, signed with this key or not at all.

        The answer of a page for commands must be as the OpenAPI document says.
        """
        sent = {"host": host, **more}
        target = f"/_holdfast/{page}"
        if key is not None:
            sent = signed_headers(key, method, target, sent, body, SystemClock().wall_s())
        answer = await self.ask(page_request(method, target, sent, body))
        if answer.body and method in routes_at(target.partition("?")[0]):
            check_answer(method, target, answer.status, answer.json)
        return answer

    async def call(self, action: str, **members: Any) -> Any:
        answer = await self.ask(json_request(action, **members))
        assert answer.status == 200, answer
        return answer.json

    async def send(self, *bodies: str, queue: str = "q") -> None:
        for body in bodies:
            await self.call("SendMessage", QueueUrl=queue, MessageBody=body)

    async def receive(self, queue: str = "q") -> dict[str, str]:
        """Bodies to receipt handles, of all that can be received now."""
        found: dict[str, str] = {}
        while messages := (
            await self.call("ReceiveMessage", QueueUrl=queue, MaxNumberOfMessages=10)
        ).get("Messages"):
            found |= {message["Body"]: message["ReceiptHandle"] for message in messages}
        return found

    async def delete(self, handle: str, queue: str = "q") -> None:
        await self.call("DeleteMessage", QueueUrl=queue, ReceiptHandle=handle)

    async def count(self, queue: str = "q") -> int:
        """Messages that wait or are in flight."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        answer = await self.call("GetQueueAttributes", QueueUrl=queue, AttributeNames=names)
        return sum(int(count) for count in answer["Attributes"].values())

    async def backup(self, target: Path, *options: str) -> Said:
        return await asyncio.to_thread(run, "backup", target, "--url", self.address, *options)


def page_request(method: str, target: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """A request's bytes, with these headers and a Content-Length."""
    lines = [f"{method} {target} HTTP/1.1"]
    lines += [f"{name}: {text}" for name, text in headers.items()]
    lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


@asynccontextmanager
async def serving(data: Path, **changed: Any) -> AsyncIterator[Served]:
    """In open mode and without AWS's waits, unless settings say otherwise."""
    given: dict[str, Any] = {
        "port": 0,
        "data": data,
        "auth": AuthMode.OPEN,
        "aws_waits": Switch.OFF,
    }
    node = await start_node(Settings(**(given | changed)))
    try:
        yield Served(node, data)
    finally:
        await node.stop()


async def _fill(data: Path) -> None:
    async with serving(data) as served:
        for name in ("q", "other"):
            await served.call("CreateQueue", QueueName=name)
        await served.send("a", "b")
        await served.send("c", queue="other")


@cache
def _filled() -> Path:
    """A data folder to copy, which takes less time than to start a service."""
    top = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, top)
    asyncio.run(_fill(top / "data"))
    return top / "data"


def filled(data: Path) -> Path:
    """Make it a data folder at rest, with two queues and three messages."""
    return Path(shutil.copytree(_filled(), data))


def names(folder: Path) -> set[str]:
    """Names in the folder; none if there is no folder."""
    return {child.name for child in folder.iterdir()} if folder.exists() else set()
