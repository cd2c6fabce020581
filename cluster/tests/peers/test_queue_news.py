"""A gateway whose etcd is away while queues change, and the host that leads, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import cast

import msgspec
import pytest
from structlog.testing import capture_logs

from cluster.catalog.catalog import Catalog
from cluster.catalog.part_rules import NewParts
from cluster.catalog.queue_rules import Waits
from cluster.parts.split_moves import SplitMoves
from cluster.parts.split_queues import SplitQueues
from cluster.parts.unlocking import Unlocking
from cluster.peers.link import Call
from cluster.peers.peer_outcomes import Outcome, Refusal, Refused
from cluster.peers.peer_settings import Channel
from cluster.peers.queue_news import QueueNews
from cluster.peers.revision_barrier import RevisionBarrier
from cluster.shards.queue_watch import QueueWatch
from cluster.tests.catalogs import opened_catalog
from cluster.tests.cut_off import CutOff
from cluster.tests.memory_coordination import MemoryCoordination
from cluster.tests.peers.peer_hosts import Cluster, Host, running
from cluster.tests.virtual_time import (
    CountingEntropy,
    LoopClock,
    SeededEntropy,
    virtual,
)
from visibility.contract.errors import Moved, QueueDoesNotExist, QueueError, ServiceUnavailable
from visibility.contract.model import QueueDefinition, Receipt, Request
from visibility.contract.operations import ListMessageMoveTasks
from visibility.contract.outcomes import Answer, Deliveries
from visibility.contract.results import (
    ChangeMessageVisibilityBatchResult,
    DeleteMessageBatchResult,
    ListMessageMoveTasksResult,
    SendMessageBatchResult,
    SendMessageResult,
)
from visibility.state.waiters import Ticket
from visibility.tests import prepared
from visibility.tests.prepared import ACCOUNT, REGION

NAME = ACCOUNT, REGION, "q"
FIFO_NAME = ACCOUNT, REGION, "q.fifo"
FIFO = {
    "FifoQueue": "true",
    "DeduplicationScope": "messageGroup",
    "FifoThroughputLimit": "perMessageGroupId",
}
PROMPT_S = 0.2
"""Nobody waits for an etcd that is away."""

Prepare = Callable[[QueueDefinition], Request]


class Gateway:
    """The process `a`, which asks as clients' gateways do; `b` leads."""

    def __init__(self, hosts: list[Host], catalog: Catalog, way: CutOff, there: Catalog) -> None:
        self.host, self.leader = hosts
        self.catalog = catalog
        self.way = way
        self.there = there
        """The leader's catalog."""
        self.watch = QueueWatch(there, self.leader.router)
        self.unlocking = Unlocking(self.leader.router, there, CountingEntropy())
        self.split = SplitQueues(
            self.host.router, catalog, SeededEntropy("split"), LoopClock().wall_s
        )
        self._asked = 0

    async def ask(self, prepare: Prepare, name: tuple[str, str, str] = NAME) -> Answer | QueueError:
        """The answer to a request for the queue as this gateway shows it."""
        queue = self.catalog.find(name)
        assert queue is not None
        self._asked += 1
        request = msgspec.structs.replace(prepare(queue), request_id=f"r{self._asked}")
        answered: asyncio.Future[Answer | QueueError] = asyncio.get_running_loop().create_future()
        ticket: Ticket

        def on_answer(answer: Answer | QueueError) -> None:
            if type(answer) is Moved:  # see `Gateway.go_on`
                self.split.submit(ticket.request, answered.set_result)
            else:
                answered.set_result(answer)

        router = self.split if queue.parts else self.host.router
        ticket = router.submit(request, on_answer)
        return await answered

    async def prompt(self, prepare: Prepare, name: tuple[str, str, str] = NAME) -> Answer:
        """The same, for what must succeed at once."""
        async with asyncio.timeout(PROMPT_S):
            answer = await self.ask(prepare, name)
        assert not isinstance(answer, QueueError), answer
        return answer

    async def received(
        self, name: tuple[str, str, str] = NAME, wait_s: int = 0
    ) -> tuple[list[str], list[Receipt]]:
        """Bodies and receipts of what a client is given."""
        receive = partial(prepared.receive, most=10, wait_s=wait_s)
        answer = await (self.ask(receive, name) if wait_s else self.prompt(receive, name))
        assert isinstance(answer, Deliveries), answer
        bodies = [message.data.decode() for message in answer.messages if message is not None]
        return bodies, [Receipt(lease.sequence, lease.receive_count) for lease in answer.leases]

    async def move(self, name: tuple[str, str, str] = NAME, *, is_over: bool) -> QueueDefinition:
        """Move the queue to another part of the leader's shard; its former one is gone then."""
        queue = self.there.queue(*name)
        moved = await self.there.move_part(
            queue, queue.part_number, NewParts([0], {queue.queue_id: 1_000})
        )
        await self.watch.confirmed(queue.queue_id, moved.queue_id)
        if is_over:
            await self.there.remove_part(queue.queue_id, moved.version)
        return self.there.queue(*name)


@asynccontextmanager
async def gateway() -> AsyncIterator[Gateway]:
    """With a queue of each kind."""
    records = MemoryCoordination()
    way = CutOff(records)
    catalogs = {
        name: await opened_catalog(
            part,
            entropy=SeededEntropy(name),
            waits=Waits(0, 0),
            restore_window_ms=3_600_000,
        )
        for name, part in (("a", way), ("b", records))
    }
    cluster = Cluster("ab", catalogs=catalogs, gateways="a")
    async with running(cluster) as hosts:
        made = Gateway(hosts, catalogs["a"], way, catalogs["b"])
        await made.there.create_queue(NAME, {}, {})
        await made.there.create_queue(FIFO_NAME, FIFO, {})
        way.is_away = True
        yield made
        made.unlocking.stop()


def sends(*bodies: str) -> Prepare:
    return lambda queue: prepared.send_batch(queue, bodies)


def sent_of(group: str, body: str) -> Prepare:
    return lambda queue: prepared.send(queue, body, group=group, deduplication_id=body)


@virtual
async def test_a_queue_that_moved_away_takes_all_requests_at_once() -> None:
    async with gateway() as made:
        await made.move(is_over=True)

        assert type(await made.prompt(lambda queue: prepared.send(queue, "x"))) is SendMessageResult
        await made.prompt(sends("y", "z"))
        bodies, receipts = await made.received()
        assert sorted(bodies) == ["x", "y", "z"]
        await made.prompt(lambda queue: prepared.change(queue, receipts[0], 0))
        await made.prompt(lambda queue: prepared.delete_batch(queue, receipts[1:]))
        (again,) = (await made.received())[1]
        assert again.sequence == receipts[0].sequence
        await made.prompt(lambda queue: prepared.delete(queue, again))
        assert (await made.received())[0] == []


@virtual
async def test_any_first_request_for_a_queue_that_moved_away_brings_the_news() -> None:
    def a_batch(queue: QueueDefinition, receipts: list[Receipt]) -> Request:
        return prepared.delete_batch(queue, receipts)

    def changes(queue: QueueDefinition, receipts: list[Receipt]) -> Request:
        return prepared.change_batch(queue, receipts, [30])

    kinds: list[tuple[Callable[[QueueDefinition, list[Receipt]], Request], type | None]] = [
        (lambda queue, receipts: prepared.send(queue, "x"), SendMessageResult),
        (lambda queue, receipts: sends("x", "y")(queue), SendMessageBatchResult),
        (lambda queue, receipts: prepared.receive(queue), Deliveries),
        (lambda queue, receipts: prepared.delete(queue, receipts[0]), type(None)),
        (a_batch, DeleteMessageBatchResult),
        (changes, ChangeMessageVisibilityBatchResult),
    ]
    for prepare, kind in kinds:
        async with gateway() as made:
            moved = await made.move(is_over=True)
            there = await made.leader.router.ask(prepared.send(moved, "there"))
            assert isinstance(there, SendMessageResult)
            received = await made.leader.router.ask(prepared.receive(moved))
            assert isinstance(received, Deliveries)
            receipts = [Receipt(each.sequence, each.receive_count) for each in received.leases]
            answer = await made.prompt(lambda queue: prepare(queue, receipts))  # noqa: B023
            assert type(answer) is kind


@pytest.mark.parametrize("knows_of_parts", [False, True])
@virtual
async def test_questions_to_all_parts_of_a_queue_of_which_one_is_gone(knows_of_parts: bool) -> None:
    async with gateway() as made:
        queue = made.there.queue(*NAME)
        made.way.back()
        made.way.is_away = not knows_of_parts
        moved = await made.move(is_over=False)
        made.way.is_away = True
        await made.there.remove_part(queue.queue_id, moved.version)
        await made.watch.confirmed(queue.queue_id)
        await made.leader.router.ask(prepared.send(made.there.queue(*NAME), "there"))
        seen = made.catalog.queue(*NAME)
        assert bool(seen.parts) is knows_of_parts

        moves = SplitMoves(made.host.router, made.catalog)
        async with asyncio.timeout(PROMPT_S):
            counted = await made.split.counters(
                msgspec.structs.replace(prepared.counters(seen), request_id="counters")
            )
            listing = prepared.prepared(seen, ListMessageMoveTasks(seen.arn))
            listed = await moves.ask(msgspec.structs.replace(listing, request_id="tasks"))
        assert (counted.visible, counted.in_flight, counted.delayed) == (1, 0, 0)
        assert listed == ListMessageMoveTasksResult(None)
        assert made.catalog.queue(*NAME) == made.there.queue(*NAME)


@virtual
async def test_a_fifo_queue_that_is_moving_keeps_its_order() -> None:
    async with gateway() as made:
        await made.prompt(sent_of("g", "1"), FIFO_NAME)
        await made.prompt(sent_of("g", "2"), FIFO_NAME)
        (bodies, receipts) = await made.received(FIFO_NAME)
        assert bodies == ["1", "2"]
        await made.move(FIFO_NAME, is_over=False)

        await made.prompt(sent_of("g", "3"), FIFO_NAME)
        assert (await made.received(FIFO_NAME))[0] == [], "the group is in flight"
        await made.prompt(lambda queue: prepared.delete(queue, receipts[0]), FIFO_NAME)
        await made.prompt(lambda queue: prepared.change(queue, receipts[1], 0), FIFO_NAME)
        (bodies, (second,)) = await made.received(FIFO_NAME)
        assert bodies == ["2"]
        await made.prompt(lambda queue: prepared.delete(queue, second), FIFO_NAME)
        await made.unlocking.look()
        assert (await made.received(FIFO_NAME))[0] == ["3"]


@virtual
async def test_an_id_that_the_former_part_took_is_a_duplicate() -> None:
    async with gateway() as made:
        first = await made.prompt(sent_of("g", "1"), FIFO_NAME)
        await made.move(FIFO_NAME, is_over=False)
        again = await made.prompt(sent_of("g", "1"), FIFO_NAME)
        assert isinstance(first, SendMessageResult)
        assert again.result.message_id == first.message_id  # type: ignore[union-attr]


@virtual
async def test_a_queue_that_was_deleted_and_one_that_was_made_anew() -> None:
    async with gateway() as made:
        queue = made.catalog.queue(*NAME)
        await made.there.delete_queue(queue)
        await made.watch.confirmed(queue.queue_id)
        async with asyncio.timeout(PROMPT_S):
            answer = await made.ask(lambda queue: prepared.send(queue, "x"))
        assert type(answer) is QueueDoesNotExist
        assert made.catalog.find(NAME) is None

    async with gateway() as made:
        queue = made.catalog.queue(*NAME)
        await made.there.delete_queue(queue)
        await made.there.create_queue(NAME, {"DelaySeconds": "0", "VisibilityTimeout": "7"}, {})
        async with asyncio.timeout(PROMPT_S):
            answer = await made.ask(lambda queue: prepared.send(queue, "x"))
        assert type(answer) is ServiceUnavailable, "it was checked for another queue"
        await made.prompt(lambda queue: prepared.send(queue, "x"))
        assert (await made.received())[0] == ["x"]


@virtual
async def test_many_requests_ask_together() -> None:
    async with gateway() as made:
        await made.move(is_over=True)
        questions = 0
        service = made.leader.news_service
        answer = service.on_request
        assert answer is not None

        def count(call: Call) -> None:
            nonlocal questions
            questions += 1
            answer(call)

        service.on_request = count
        asked = [made.ask(sends(str(number))) for number in range(50)]
        asked += [made.ask(lambda queue: prepared.send(queue, "in a bundle")) for _ in range(50)]
        async with asyncio.timeout(PROMPT_S):
            answers = await asyncio.gather(*asked)
        kinds = [type(answer) for answer in answers]
        assert kinds == [SendMessageBatchResult] * 50 + [SendMessageResult] * 50
        assert questions <= 2, "those that were refused at once, and those meanwhile"


@virtual
async def test_a_request_does_not_take_the_answer_of_a_question_from_before_it() -> None:
    """The queue changes again while the answer is on its way."""
    async with gateway() as made:
        await made.there.tag_queue(made.there.queue(*NAME), {"first": "1"})
        service = made.leader.news_service
        answer = service.on_request
        assert answer is not None
        questions, is_asked = 0, asyncio.Event()

        class Late:
            def __init__(self, call: Call) -> None:
                self.body = call.body
                self._call = call

            def answer(self, told: bytes) -> None:
                asyncio.get_running_loop().call_later(1.0, self._call.answer, told)

        def answer_late(call: Call) -> None:
            nonlocal questions
            questions += 1
            is_asked.set()
            answer(cast(Call, Late(call)))

        service.on_request = answer_late
        first = asyncio.create_task(made.ask(lambda queue: prepared.send(queue, "one")))
        await is_asked.wait()
        await made.there.tag_queue(made.there.queue(*NAME), {"second": "2"})
        second = await made.ask(lambda queue: prepared.send(queue, "two"))
        await first

        assert type(second) is SendMessageResult
        assert questions == 2


@virtual
async def test_each_host_that_refused_is_asked_itself() -> None:
    """Another one may know less, or be away."""
    async with gateway() as made:
        await made.move(is_over=True)
        queue = made.catalog.find(NAME)
        assert queue is not None
        news = QueueNews(made.host.transport, made.catalog)
        request = prepared.send(queue, "one")
        known = asyncio.Event()
        news.ask("b", request, known.set)
        news.ask("of nobody", request, asyncio.Event().set)
        async with asyncio.timeout(PROMPT_S):
            await known.wait()

        assert made.catalog.find(NAME) == made.there.find(NAME)


@virtual
async def test_a_poll_that_waits_as_its_queue_moves_gets_what_is_sent_there() -> None:
    async with gateway() as made:
        assert not await made.catalog.caught_up()
        polling = asyncio.create_task(made.received(wait_s=20))
        await asyncio.sleep(0.1)
        moved = await made.move(is_over=False)
        await asyncio.sleep(0.1)
        await made.leader.router.ask(prepared.send(moved, "there"))
        async with asyncio.timeout(PROMPT_S):
            assert (await polling)[0] == ["there"]


@virtual
async def test_a_poll_that_waits_as_its_queue_is_purged_gets_what_is_sent_later() -> None:
    async with gateway() as made:
        polling = asyncio.create_task(made.received(wait_s=20))
        await asyncio.sleep(0.1)
        purged = await made.there.purge_queue(made.there.queue(*NAME))
        await made.leader.router.ask(prepared.send(purged, "later"))
        async with asyncio.timeout(PROMPT_S):
            assert (await polling)[0] == ["later"]
        assert made.catalog.queue(*NAME) == purged


@virtual
async def test_a_host_of_an_older_version_says_nothing() -> None:
    async with gateway() as made:
        barrier = RevisionBarrier(made.there)
        made.leader.news_service.on_request = barrier.service.on_request
        await made.move(is_over=True)
        answer = await made.ask(lambda queue: prepared.send(queue, "x"))
        assert type(answer) is ServiceUnavailable
        made.way.back()
        await made.prompt(lambda queue: prepared.send(queue, "x"))


@virtual
async def test_an_answer_that_cannot_be_read_keeps_nobody() -> None:
    async with gateway() as made:
        service = made.leader.news_service

        def answer_badly(call: Call) -> None:
            call.answer(b"\xc1")

        service.on_request = answer_badly
        await made.move(is_over=True)
        with capture_logs() as logs:
            answer = await made.ask(lambda queue: prepared.send(queue, "x"))
        assert type(answer) is ServiceUnavailable
        assert "answer_unreadable" in [line["event"] for line in logs]


@virtual
async def test_with_etcd_the_watch_has_the_last_word() -> None:
    async with gateway() as made:
        moved = await made.move(is_over=True)
        await made.prompt(lambda queue: prepared.send(queue, "x"))
        assert len(made.catalog.adopted) == 1
        made.way.back()
        assert not len(made.catalog.adopted)
        assert made.catalog.queue(*NAME) == moved
        assert (await made.received())[0] == ["x"]


@virtual
async def test_what_is_no_question_is_refused() -> None:
    async with gateway() as made:
        link = made.host.transport.link("b", Channel.CATALOG)
        assert link is not None
        outcomes: list[Outcome] = []
        names = [list(NAME)] * 9
        for body in (b"", b"short", msgspec.msgpack.encode(names)):
            link.request(body, outcomes.append, 5.0)
        await asyncio.sleep(0.1)
        assert [type(each) for each in outcomes] == [Refused] * 3
        assert {each.reason for each in outcomes if isinstance(each, Refused)} == {
            Refusal.UNREADABLE
        }
