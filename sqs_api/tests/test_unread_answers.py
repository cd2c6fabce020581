"""Answers that clients do not read: bounded in memory, for a user, and without effect on others.

In open mode a 12-digit access key is an account, and its user.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from auth.caller import Caller
from cluster.shards.router import Router
from sqs_api.gateway.request_memory import COUNTED_BYTES_MIN, PAGES, RequestMemory
from sqs_api.tests.listening import Port, listening
from sqs_api.tests.serving import Client, Service, json_request, query_request, running, until
from visibility.contract.model import Request
from visibility.state.waiters import OnAnswer, Room, Ticket

LARGE = 400_000
GREEDY, OTHER = "111111111111", "222222222222"
MEMORY = 8 << 20
WAYS = pytest.mark.parametrize("with_short_cut", [True, False], ids=["short cut", "aiohttp"])


def _signed_by(account: str) -> dict[str, str]:
    scope = f"{account}/20261124/us-east-1/sqs/aws4_request"
    signature = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0"
    return {"Authorization": signature}


def _caller(account: str, user: str | None = None) -> Caller:
    return Caller(account, "us-east-1", user or account, user=user)


def _receive(url: str, account: str = GREEDY, **members: Any) -> bytes:
    members = {"MaxNumberOfMessages": 10, **members}
    return json_request("ReceiveMessage", headers=_signed_by(account), QueueUrl=url, **members)


async def _fill(service: Service, url: str, messages: int, body: str = "x" * LARGE) -> None:
    for _ in range(messages):
        await service.call("SendMessage", QueueUrl=url, MessageBody=body)


async def _counts(service: Service, url: str) -> tuple[int, int]:
    """Visible messages, and those in flight."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    answer = await service.call("GetQueueAttributes", QueueUrl=url, AttributeNames=names)
    visible, in_flight = (int(answer["Attributes"][name]) for name in names)
    return visible, in_flight


async def _silent(port: Port) -> Client:
    """A client that reads nothing."""
    client = await port.connect()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    return client


async def _silent_consumers(service: Service, port: Port, url: str, number: int) -> list[Client]:
    """Clients that read nothing and ask for all they can get; none is waited for any more."""
    clients = [await _silent(port) for _ in range(number)]
    for client in clients:
        client.writer.write(_receive(url) * 40)
    before, now = -1, 0
    while now != before or service.gateway.outstanding:
        await asyncio.sleep(0.05)
        before, now = now, service.gateway.memory.held_bytes
    return clients


def _unsent(transport: asyncio.Transport | None) -> int:
    return 0 if transport is None else transport.get_write_buffer_size()


@WAYS
async def test_consumers_that_do_not_read_hold_their_share_and_no_more(
    service: Service, with_short_cut: bool
) -> None:
    url = await service.make_queue(VisibilityTimeout="0")
    await _fill(service, url, 10)
    memory = service.gateway.memory
    async with listening(service, memory_bytes=MEMORY, with_short_cut=with_short_cut) as port:
        clients = await _silent_consumers(service, port, url, 12)

        unsent = [_unsent(each.transport) for each in port.server.connections]
        assert LARGE < memory.answer_bytes <= MEMORY // 4
        assert sum(unsent) <= MEMORY // 4 + len(unsent) * (64 << 10)
        other = await port.connect()
        small = await service.make_queue("small")
        await _fill(service, small, 1, "small")
        assert (await other.ask(_receive(small))).status == 200, "small answers need no room"
        refused = await other.ask(_receive(url))
        assert refused.json["__type"].endswith("RequestThrottled")
        answer = await other.ask(_receive(url, OTHER))
        assert answer.status == 200, "another account has a share of its own"
        assert len(answer.json["Messages"]) == 2

        for client in clients:
            await client.close()
        await until(lambda: memory.held_bytes == 0)
        assert (await other.ask(_receive(url))).status == 200


async def test_receive_without_room_hides_and_counts_nothing(service: Service) -> None:
    url = await service.make_queue(VisibilityTimeout="600")
    await _fill(service, url, 3)
    memory = service.gateway.memory
    async with listening(service, memory_bytes=MEMORY) as port:
        client = await port.connect()
        memory.hold(_caller(GREEDY), MEMORY // 4)

        for wait in (0, 20):
            refused = await client.ask(_receive(url, WaitTimeSeconds=wait))
            assert refused.json["__type"].endswith("RequestThrottled")
        assert await _counts(service, url) == (3, 0)

        memory.hold(_caller(GREEDY), -MEMORY // 4)
        answer = await client.ask(_receive(url, AttributeNames=["All"]))
        counts = [each["Attributes"]["ApproximateReceiveCount"] for each in answer.json["Messages"]]
        assert counts == ["1", "1"]
        assert await _counts(service, url) == (1, 2)
        assert memory.held_bytes == 0


class _ElsewhereRouter(Router):
    """Of a host that leads nothing: leaders do not know the room of its clients."""

    def is_led_elsewhere(self, number: int) -> bool:
        return True

    def submit(self, request: Request, on_answer: OnAnswer, room: Room | None = None) -> Ticket:
        return super().submit(request, on_answer)


async def test_messages_that_a_leader_elsewhere_handed_out_are_given_back_without_room() -> None:
    async with (
        running(routed_by=_ElsewhereRouter) as service,
        listening(service, memory_bytes=MEMORY) as port,
    ):
        url = await service.make_queue(VisibilityTimeout="600")
        await _fill(service, url, 10)
        memory, caller = service.gateway.memory, _caller(GREEDY)
        client = await port.connect()
        memory.hold(caller, MEMORY // 8)  # room for a message, but not for all

        refused = await client.ask(_receive(url))

        assert refused.json["__type"].endswith("RequestThrottled")
        assert await _counts(service, url) == (10, 0)
        memory.hold(caller, 1)
        asked = service.gateway.outstanding
        assert (await client.ask(_receive(url, MaxNumberOfMessages=1))).status != 200
        assert (asked, memory.held_bytes) == (0, MEMORY // 8 + 1), "not even asked"


class _DeposedRouter(Router):
    """Of a leader that is deposed after its decision: the receive waits to be decided again."""

    def submit(self, request: Request, on_answer: OnAnswer, room: Room | None = None) -> Ticket:
        if room is None:
            return super().submit(request, on_answer)
        room.take(LARGE)
        return Ticket(request, on_answer, room=room)

    def cancel(self, ticket: Ticket) -> bool:
        return True


async def test_client_that_hangs_up_before_a_second_decision_gives_its_room_back() -> None:
    async with (
        running(routed_by=_DeposedRouter) as service,
        listening(service, memory_bytes=MEMORY) as port,
    ):
        url = await service.make_queue()
        memory = service.gateway.memory
        client = await port.connect()
        await client.send(_receive(url))
        await until(lambda: memory.answer_bytes > 0)

        await client.close()

        await until(lambda: not service.gateway.outstanding)
        assert memory.held_bytes == 0


async def test_long_poll_takes_no_room_until_it_finds_messages(service: Service) -> None:
    url = await service.make_queue()
    memory = service.gateway.memory
    async with listening(service, memory_bytes=MEMORY) as port:
        polls = [await port.connect() for _ in range(3)]
        for poll in polls:
            await poll.send(_receive(url, WaitTimeSeconds=20))
        await until(lambda: service.gateway.outstanding == 3)
        assert memory.held_bytes == 0

        await _fill(service, url, 3)

        for poll in polls:
            assert len((await poll.answer()).json["Messages"]) == 1
        assert memory.held_bytes == 0


@pytest.mark.parametrize("attempt", [None, "again"])
async def test_fewer_messages_of_a_fifo_queue_are_the_first(
    service: Service, attempt: str | None
) -> None:
    url = await service.make_queue("q.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    for number in range(5):
        body = str(number) * LARGE
        await service.call("SendMessage", QueueUrl=url, MessageBody=body, MessageGroupId="g")
    more = {} if attempt is None else {"ReceiveRequestAttemptId": attempt}
    async with listening(service, memory_bytes=MEMORY) as port:
        client = await port.connect()

        answer = await client.ask(_receive(url, **more))

        assert [each["Body"][0] for each in answer.json["Messages"]] == ["0", "1"]
        if attempt is not None:
            again = await client.ask(_receive(url, **more))
            assert [each["Body"][0] for each in again.json["Messages"]] == ["0", "1"]


async def test_largest_message_can_be_received_however_it_is_written(service: Service) -> None:
    """A MiB of quotes takes six in XML, more than a user's share."""
    url = await service.make_queue(VisibilityTimeout="0")
    await _fill(service, url, 2, '"' * (1 << 20))
    request = query_request(
        "ReceiveMessage", headers=_signed_by(GREEDY), QueueUrl=url, MaxNumberOfMessages="10"
    )
    async with listening(service, memory_bytes=MEMORY) as port:
        client = await port.connect()
        for _ in range(3):
            answer = await client.ask(request)
            assert answer.status == 200
            assert answer.body.count(b"<Message>") == 1
        assert service.gateway.memory.held_bytes == 0


async def test_client_that_reads_slowly_gets_everything(service: Service) -> None:
    url = await service.make_queue()
    await _fill(service, url, 30)
    async with listening(service, memory_bytes=MEMORY) as port:
        slow = await _silent(port)
        slow.writer.write(_receive(url) * 15)
        received = 0
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(15):
            await asyncio.sleep(0.005)
            received += len((await slow.answer()).json["Messages"])
        assert received == 30


async def test_answer_that_is_not_read_is_cut_off_and_its_room_is_free_again(
    service: Service,
) -> None:
    url = await service.make_queue(VisibilityTimeout="0")
    await _fill(service, url, 10)
    async with listening(service, memory_bytes=MEMORY) as port:
        await _silent_consumers(service, port, url, 3)
        assert service.gateway.memory.answer_bytes > 0

        await port.pass_seconds(45)

        await until(lambda: service.gateway.memory.held_bytes == 0)


async def test_page_without_room_answers_503(service: Service) -> None:
    async with listening(service, memory_bytes=MEMORY) as port:
        for number in range(20):
            await _fill(service, await service.make_queue(f"queue-{number}"), 1, "x")
        client = await port.connect()
        metrics = b"GET /_holdfast/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
        assert len((await client.ask(metrics)).body) > COUNTED_BYTES_MIN
        service.gateway.memory.hold(PAGES, MEMORY // 4)

        refused = await client.ask(metrics)

        assert (refused.status, "wait to be read" in refused.json["error"]) == (503, True)
        service.gateway.memory.hold(PAGES, -MEMORY // 4)
        assert (await client.ask(metrics)).status == 200
        await port.pass_seconds(1)
        assert service.gateway.memory.held_bytes == 0


def test_shares_of_accounts_and_users() -> None:
    memory = RequestMemory(MEMORY)
    first, second = (_caller(GREEDY, user) for user in ("a", "b"))
    third, other = _caller(GREEDY, "c"), _caller(OTHER)
    share = MEMORY // 4

    assert not memory.has_room(first, share + 1, may_exceed=False)
    assert memory.has_room(first, share + 1, may_exceed=True), "the only answer may"
    memory.hold(first, share)
    assert not memory.has_room(first, 1, may_exceed=True)
    assert memory.has_room(second, share, may_exceed=False)
    memory.hold(second, share)
    assert not memory.has_room(third, 1, may_exceed=False), "the account has its half"
    assert memory.has_room(other, share, may_exceed=False)
    assert memory.take(2 * share)
    assert not memory.take(1)
    assert not memory.has_room(other, 1, may_exceed=True)
    for each in (first, second):
        memory.hold(each, -share)
    assert (memory.answer_bytes, memory.held_bytes) == (0, 2 * share)
