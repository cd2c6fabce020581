"""An answered request leaves nothing behind that only the garbage collector would free.

The collector runs by the number of objects, not by their bytes: a few requests of megabytes that
wait for it fill the memory.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import StreamReader

from auth.auth_errors import InvalidClientTokenId, MissingAuthenticationToken
from auth.caller import Caller
from sqs_api.gateway.exchange import Exchange
from sqs_api.tests.serving import (
    Service,
    json_request,
    open_authenticate,
    query_request,
    request_bytes,
    running,
    until,
)

_UNSIGNED = b"unsigned!"
_UNKNOWN = b"unknown!"
_URL = "http://localhost:9324/000000000000/q"
_FIFO = "http://localhost:9324/000000000000/q.fifo"
_LONG = "a" * 300_000
"""Large enough for the way of large bodies."""
_HANDLE = "x" * 40
_ROUNDS = 3


def _authenticate(
    method: bytes, target: bytes, headers: Mapping[bytes, bytes], body: bytes, now_s: float
) -> Caller:
    if _UNSIGNED in body:
        raise MissingAuthenticationToken
    if _UNKNOWN in body:
        raise InvalidClientTokenId
    return open_authenticate(method, target, headers, body, now_s)


def _entries(*bodies: str, **members: Any) -> list[dict[str, Any]]:
    return [{"Id": str(place), "MessageBody": body, **members} for place, body in enumerate(bodies)]


def _handles(*handles: str, **members: Any) -> list[dict[str, Any]]:
    return [{"Id": str(n), "ReceiptHandle": handle, **members} for n, handle in enumerate(handles)]


def _transact(*items: dict[str, Any], **members: Any) -> bytes:
    headers = {"X-Amz-Target": "Holdfast.TransactMessages"}
    return json_request("", headers=headers, TransactItems=items, **members)


def _raw(body: bytes, target: str = "SendMessage", **headers: str) -> bytes:
    sent = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{target}"}
    return request_bytes(body, {**sent, **headers})


def _send(body: str = "b", url: str = _URL, **members: Any) -> bytes:
    return json_request("SendMessage", QueueUrl=url, MessageBody=body, **members)


_REQUESTS = {
    "a send": _send(),
    "a long send": _send(_LONG),
    "a send above the limit": _send(_LONG * 4),
    "an unsigned send": _send(_UNSIGNED.decode()),
    "an unsigned long send": _send(_UNSIGNED.decode() + _LONG),
    "an unsigned batch of nothing": _raw(
        b'{"QueueUrl":"' + _UNSIGNED + b'","Entries":[' + b"{}," * 9_000 + b"{}]}",
        "SendMessageBatch",
    ),
    "an unsigned form": query_request("SendMessage", MessageBody=_UNSIGNED.decode()),
    "an unsigned transaction": _transact({"Send": {"MessageBody": _UNSIGNED.decode()}}),
    "unsigned and unreadable": _raw(_UNSIGNED + b"[" * 1000),
    "an unknown key": _send(_UNKNOWN.decode()),
    "an unknown key, long": _send(_UNKNOWN.decode() + _LONG),
    "unreadable": _raw(b"[" * 1000),
    "unreadable, long": _raw(b"[" * 300_000),
    "a wrong type": _raw(b'{"QueueUrl": 1}'),
    "no such action": _raw(b"{}", "Nothing"),
    "no such action in a form": query_request("Nothing"),
    "a form without an action": request_bytes(b"x=y"),
    "no such queue": _send(url=_URL + "x"),
    "no such queue, long": _send(_LONG, _URL + "x"),
    "no queue": json_request("SendMessage", MessageBody="b"),
    "no body": json_request("SendMessage", QueueUrl=_URL),
    "characters that are not allowed": _send("\x00"),
    "a delay out of range": _send(DelaySeconds=901),
    "a send without a group": _send(url=_FIFO),
    "a batch": json_request("SendMessageBatch", QueueUrl=_URL, Entries=_entries("a", "b")),
    "a batch with a fault": json_request(
        "SendMessageBatch", QueueUrl=_URL, Entries=_entries("a", "\x00", _LONG)
    ),
    "a batch of faults": json_request(
        "SendMessageBatch", QueueUrl=_URL, Entries=_entries("\x00", "b", DelaySeconds=901)
    ),
    "a batch without groups": json_request(
        "SendMessageBatch", QueueUrl=_FIFO, Entries=_entries("a", "b")
    ),
    "a batch above the limit": json_request(
        "SendMessageBatch", QueueUrl=_URL, Entries=_entries(*[_LONG] * 4)
    ),
    "a batch of eleven": json_request(
        "SendMessageBatch", QueueUrl=_URL, Entries=_entries(*"abcdefghijk")
    ),
    "an empty batch": json_request("SendMessageBatch", QueueUrl=_URL, Entries=[]),
    "a receive": json_request("ReceiveMessage", QueueUrl=_URL),
    "a receive of eleven": json_request("ReceiveMessage", QueueUrl=_URL, MaxNumberOfMessages=11),
    "a delete with a wrong handle": json_request(
        "DeleteMessage", QueueUrl=_URL, ReceiptHandle=_HANDLE
    ),
    "a batch of deletes with wrong handles": json_request(
        "DeleteMessageBatch", QueueUrl=_URL, Entries=_handles(_HANDLE, _LONG)
    ),
    "a change with a wrong handle": json_request(
        "ChangeMessageVisibility", QueueUrl=_URL, ReceiptHandle=_HANDLE, VisibilityTimeout=1
    ),
    "a batch of changes with faults": json_request(
        "ChangeMessageVisibilityBatch",
        QueueUrl=_URL,
        Entries=_handles(_HANDLE, _LONG, VisibilityTimeout=-1),
    ),
    "a queue with a wrong name": json_request("CreateQueue", QueueName="%" + _LONG),
    "attributes that do not exist": json_request(
        "SetQueueAttributes", QueueUrl=_URL, Attributes={"Nothing": _LONG}
    ),
    "a policy that cannot be read": json_request(
        "SetQueueAttributes", QueueUrl=_URL, Attributes={"Policy": "{" + _LONG}
    ),
    "a queue that is not there": json_request("GetQueueUrl", QueueName="nothing"),
    "a transaction": _transact({"Send": {"QueueUrl": _URL, "MessageBody": _LONG}}),
    "a transaction to no queue": _transact({"Send": {"QueueUrl": "u", "MessageBody": _LONG}}),
    "a transaction with faults": _transact(
        {"Send": {"QueueUrl": _URL, "MessageBody": "\x00"}},
        {"Send": {"QueueUrl": "u", "MessageBody": _LONG}},
        {"Delete": {"QueueUrl": _URL, "ReceiptHandle": _HANDLE}},
    ),
    "a transaction of nothing": _transact(),
    "a transaction of too many": _transact(*[{"Send": {}}] * 40_000),
    "a compressed body": _raw(b"{}" * 1000, **{"Content-Encoding": "gzip"}),
}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def service() -> AsyncIterator[Service]:
    async with running(authenticate=_authenticate) as started:
        await started.make_queue("q")
        await started.make_queue("q.fifo", FifoQueue="true")
        yield started


@contextmanager
def _no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.collect()


def _what_only_a_collection_frees() -> list[str]:
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    return sorted({type(each).__name__ for each in gc.garbage if isinstance(each, _KINDS)})


_KINDS = (Exchange, FrameType, TracebackType, StreamReader)
"""The last is aiohttp's, with what it has not handed over yet."""


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("way", ["port", "aiohttp_port"])
@pytest.mark.parametrize("name", _REQUESTS)
async def test_a_request_leaves_no_garbage(service: Service, name: str, way: str) -> None:
    client = await service.connect(getattr(service, way))
    await client.ask(_REQUESTS[name])  # fills caches, and the first refusal of a kind is logged
    with _no_collection():
        for _ in range(_ROUNDS):
            await client.ask(_REQUESTS[name])
        assert (await client.ask(json_request("ListQueues"))).status == 200
        assert _what_only_a_collection_frees() == []
    await client.close()


_HEAD = b"POST / HTTP/1.1\r\nHost: h\r\n"
_MUCH = b"a" * 1_000_000
_UNREADABLE = {
    "a long method": _MUCH,
    "a long target": b"GET /" + _MUCH,
    "a long header": _HEAD + b"A: " + _MUCH,
    "many headers": _HEAD + b"A: b\r\n" * 10_000,
    "a malformed chunk": _HEAD + b"Transfer-Encoding: chunked\r\n\r\nx" + _MUCH,
    "a malformed chunk after others": _HEAD
    + b"Transfer-Encoding: chunked\r\n\r\n"
    + b"10000\r\n%b\r\n" % (b"a" * 65536) * 8
    + b"x",
    "more than the body": _raw(b"{}") + _MUCH,
    "more than an upgrade": _HEAD + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n" + _MUCH,
}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("way", ["port", "aiohttp_port"])
@pytest.mark.parametrize("name", _UNREADABLE)
async def test_what_cannot_be_read_leaves_no_garbage(service: Service, name: str, way: str) -> None:
    """Each read of such bytes used to keep them, some 256 KiB."""
    with _no_collection():
        for _ in range(_ROUNDS):
            client = await service.connect(getattr(service, way))
            client.writer.write(_UNREADABLE[name])
            with suppress(ConnectionError):  # it may hang up before it has read everything
                assert b"HTTP/1.1 400 " in await client.rest()
            await client.close()
            del client
        await service.ask(json_request("ListQueues"))
        assert _what_only_a_collection_frees() == []


_ABANDONED = {
    "a body with a length": request_bytes(headers={"Content-Length": "2000000"}, length=False)
    + _MUCH,
    "a chunked body": request_bytes(headers={"Transfer-Encoding": "chunked"}, length=False)
    + b"100000\r\n"
    + _MUCH,
    "others behind a poll": json_request("ReceiveMessage", QueueUrl=_URL, WaitTimeSeconds=20)
    + _send("a" * 100_000) * 5,
}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("way", ["port", "aiohttp_port"])
@pytest.mark.parametrize("name", _ABANDONED)
async def test_what_is_abandoned_leaves_no_garbage(service: Service, name: str, way: str) -> None:
    with _no_collection():
        for _ in range(_ROUNDS):
            client = await service.connect(getattr(service, way))
            await client.send(_ABANDONED[name])
            await client.close()
            del client
        await service.ask(json_request("ListQueues"))
        await until(lambda: not any(each.counters.connections for each in service.servers))
        assert _what_only_a_collection_frees() == []
