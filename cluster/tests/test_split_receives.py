"""Receives from a queue of several parts, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from cluster.parts.split_receives import (
    AGAIN_S,
    ANSWER_S,
    FAILED_S,
    FIRST_S,
    WATCH_S,
    SplitReceive,
    SplitReceives,
)
from cluster.tests.virtual_time import CountingEntropy, virtual
from visibility.contract.errors import (
    OverLimit,
    QueueDoesNotExist,
    QueueError,
    ServiceUnavailable,
)
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.operations import ReceiveMessage
from visibility.contract.outcomes import Answer, Deliveries, MessagesFound
from visibility.contract.priority import place_of
from visibility.contract.queue_parts import Part
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rules.closing_parts import FindMessages
from visibility.rules.decided import NO_MESSAGES
from visibility.state.waiters import OnAnswer, Room, Ticket
from visibility.tests import prepared

LIMITED = Deliveries([], [], is_limited=True)


class Parts:
    """Parts of one queue by number: the Router to them, and the view."""

    def __init__(self, count: int) -> None:
        parts = tuple(Part(16 * place, 1 + place, place) for place in range(count))
        self.queue: QueueDefinition | None = msgspec.structs.replace(
            prepared.queue_named("q", 1), parts=parts
        )
        self.messages = dict.fromkeys(range(1, count + 1), 0)
        """Messages by the id of the part."""
        self.failing: dict[int, QueueError] = {}
        self.silent: set[int] = set()
        self.slow_s: dict[int, float] = {}
        """Times that parts take to answer, by id."""
        self.first: dict[int, int] = {}
        """Level of the next message, by the id of the part."""
        self.limited: set[int] = set()
        self.asked: list[tuple[float, int, bool]] = []
        """(time, id of the part, True for a receive) of each request."""
        self._waiting: list[tuple[Request, OnAnswer]] = []

    def find(self, name: object) -> QueueDefinition | None:
        return self.queue

    def submit(self, request: Request, on_answer: OnAnswer, room: Room | None = None) -> Ticket:
        queue_id = request.queue.queue_id
        loop = asyncio.get_running_loop()
        is_receive = isinstance(request.operation, ReceiveMessage)
        self.asked.append((loop.time(), queue_id, is_receive))
        if queue_id in self.silent:
            return Ticket(request, on_answer)
        answer: Answer | QueueError = self.failing.get(queue_id) or self._answer(request)
        wait_s = 0 if is_receive else cast(FindMessages, request.operation).wait_time_seconds
        if wait_s and isinstance(answer, Deliveries):
            self._waiting.append((request, on_answer))
            loop.call_later(wait_s, self._expire, request, on_answer)
        elif queue_id in self.slow_s:
            loop.call_later(self.slow_s[queue_id], on_answer, answer)
        else:
            loop.call_soon(on_answer, answer)
        return Ticket(request, on_answer)

    def _answer(self, request: Request) -> Answer:
        queue_id = request.queue.queue_id
        there = self.messages[queue_id]
        if queue_id in self.limited:
            return LIMITED
        if not there:
            return NO_MESSAGES
        if not isinstance(request.operation, ReceiveMessage):
            level = self.first.get(queue_id, 0)
            return MessagesFound(there, place_of(level) if level else 0)
        self.messages[queue_id] -= 1
        level = self.first.get(queue_id, 0)
        message = StoredMessage(f"of {queue_id}", 1, 1, b"x", level=level)
        return Deliveries([Lease(1, 1, 1, 0, 1, 1)], [message])

    def _expire(self, request: Request, on_answer: OnAnswer) -> None:
        if (request, on_answer) in self._waiting:
            self._waiting.remove((request, on_answer))
            on_answer(self._answer(request))

    def send(self, queue_id: int) -> None:
        self.messages[queue_id] += 1
        for request, on_answer in list(self._waiting):
            if request.queue.queue_id == queue_id:
                self._waiting.remove((request, on_answer))
                asyncio.get_running_loop().call_soon(on_answer, self._answer(request))

    def cancel(self, ticket: Ticket) -> bool:
        return False

    def leads(self, number: int) -> bool:
        return True


class Receiver:
    """Receives from the parts, and notes when it got what."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.receives = SplitReceives(cast(Any, parts), cast(Any, parts), CountingEntropy())
        self.got: list[tuple[Any, object]] = []

    def begin(self, wait_s: int = 0) -> SplitReceive:
        assert self.parts.queue is not None
        request = prepared.receive(self.parts.queue, wait_s=wait_s)
        return self.receives.begin(request, self._note, None)

    def _note(self, answer: Answer | QueueError) -> None:
        found: object = answer
        if isinstance(answer, Deliveries) and answer.messages:
            found = answer.messages[0].message_id
        self.got.append((asyncio.get_running_loop().time(), found))

    async def receive(self, wait_s: int = 0) -> tuple[Any, object]:
        """The answer, and its time."""
        self.begin(wait_s)
        while not self.got:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return self.got.pop()


def now_s() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("queue_id", range(1, 5))
@virtual
async def test_a_short_receive_gets_a_message_wherever_it_is(queue_id: int) -> None:
    receiver = Receiver(Parts(4))
    receiver.parts.messages[queue_id] = 1

    assert (await receiver.receive())[1] == f"of {queue_id}"
    assert now_s() < ANSWER_S
    assert sum(is_receive for *_, is_receive in receiver.parts.asked) <= 2, "one question to others"


@virtual
async def test_a_part_that_does_not_answer_counts_as_empty() -> None:
    receiver = Receiver(Parts(4))
    first = receiver.begin()
    assert first.part is not None
    receiver = Receiver(Parts(4))
    receiver.parts.silent = {1, 2, 3, 4} - {first.part.queue_id}

    assert await receiver.receive() == (pytest.approx(ANSWER_S), NO_MESSAGES)


@pytest.mark.parametrize("answer", ["of 2", NO_MESSAGES, ServiceUnavailable()])
@virtual
async def test_a_part_that_is_gone_is_no_reason_to_say_that_the_queue_is(
    answer: str | Answer | QueueError,
) -> None:
    """The only other part answers late: a short receive has heard from no part before."""
    parts = Parts(2)
    parts.failing[1] = QueueDoesNotExist()
    parts.slow_s[2] = 7.0
    if isinstance(answer, QueueError):
        parts.failing[2] = answer
    parts.messages[2] = int(answer == "of 2")
    receiver = Receiver(parts)
    assert receiver.begin().part is not None
    assert parts.asked == [(0, 1, True)], "it begins at the one that is gone"

    await asyncio.sleep(20)

    assert [found for _, found in receiver.got] == [answer]


@virtual
async def test_receives_begin_elsewhere_for_a_while_after_a_part_failed() -> None:
    parts = Parts(2)
    receiver = Receiver(parts)
    parts.failing = {1: ServiceUnavailable(), 2: ServiceUnavailable()}
    await receiver.receive()
    (failed,) = {queue_id for _, queue_id, _ in parts.asked}
    parts.failing = {}

    for _ in range(20):
        parts.asked.clear()
        await receiver.receive()
        assert parts.asked[0][1] != failed
    await asyncio.sleep(FAILED_S)
    parts.asked.clear()
    for _ in range(20):
        await receiver.receive()
    assert failed in {queue_id for _, queue_id, is_receive in parts.asked if is_receive}


@virtual
async def test_a_long_receive_gets_what_comes_to_any_part_at_once() -> None:
    receiver = Receiver(Parts(4))
    for queue_id in range(1, 5):
        receiver.begin(20)
        await asyncio.sleep(WATCH_S * 2.5)
        begun_s = now_s()
        receiver.parts.send(queue_id)
        await asyncio.sleep(0.1)

        assert receiver.got.pop() == (pytest.approx(begun_s), f"of {queue_id}")
    await asyncio.sleep(2 * WATCH_S)
    before = len(receiver.parts.asked)
    await asyncio.sleep(10)
    assert len(receiver.parts.asked) == before, "nobody waits, nothing is asked"


@virtual
async def test_new_parts_are_asked_at_once_also_if_a_restored_etcd_gave_their_version_before() -> (
    None
):
    parts = Parts(2)
    receiver = Receiver(parts)
    receiver.begin(wait_s=5)
    await asyncio.sleep(0.5)
    asked = len(parts.asked)
    assert parts.queue is not None
    receiver.receives.notice(parts.queue)
    await asyncio.sleep(0)
    assert len(parts.asked) == asked

    later = Part(32, 3, 2)
    parts.messages[3] = 0
    parts.queue = msgspec.structs.replace(parts.queue, parts=(*parts.queue.parts, later))
    receiver.receives.notice(parts.queue)
    await asyncio.sleep(0)

    assert [queue_id for _, queue_id, _ in parts.asked[asked:]] == [3]


@virtual
async def test_long_receives_get_one_message_each_the_longest_waiting_first() -> None:
    receiver = Receiver(Parts(2))
    for wait_s in (5, 6, 7):
        receiver.begin(wait_s)
    await asyncio.sleep(1.5)
    receiver.parts.send(1)
    receiver.parts.send(2)
    await asyncio.sleep(10)

    assert [found for _, found in receiver.got] == ["of 1", "of 2", NO_MESSAGES]
    assert receiver.got[-1][0] == pytest.approx(7)


@virtual
async def test_a_long_receive_outlives_parts_that_fail() -> None:
    receiver = Receiver(Parts(2))
    receiver.begin(20)
    await asyncio.sleep(0.1)
    receiver.parts.failing = {1: ServiceUnavailable(), 2: ServiceUnavailable()}
    await asyncio.sleep(3 * WATCH_S)
    assert receiver.got == []
    asked = len(receiver.parts.asked)
    assert asked <= 2 * (3 * WATCH_S / AGAIN_S + 2), "with a pause"
    receiver.parts.failing = {}
    receiver.parts.send(2)
    await asyncio.sleep(2 * AGAIN_S)

    assert [found for _, found in receiver.got] == ["of 2"]


@virtual
async def test_who_hangs_up_or_is_sent_away_waits_no_more() -> None:
    receiver = Receiver(Parts(2))
    gone = receiver.begin(20)
    receiver.begin(20)
    await asyncio.sleep(0.1)
    assert receiver.receives.cancel(gone)
    assert not receiver.receives.cancel(gone)
    receiver.receives.end_waiting()
    assert receiver.got == [(pytest.approx(0.1), NO_MESSAGES)]

    receiver.begin(20)
    await asyncio.sleep(0.1)
    assert len(receiver.got) == 2, "a service that stops parks none"


@pytest.mark.parametrize("wait_s", [0, 3])
@virtual
async def test_too_many_in_flight_is_said_by_a_short_receive_only(wait_s: int) -> None:
    receiver = Receiver(Parts(2))
    receiver.parts.failing = {1: OverLimit(), 2: OverLimit()}

    _, found = await receiver.receive(wait_s)

    assert found == NO_MESSAGES if wait_s else isinstance(found, OverLimit)


@pytest.mark.parametrize("wait_s", [0, 3])
@virtual
async def test_a_receive_that_a_limit_held_back_is_marked(wait_s: int) -> None:
    for limited in ({1}, {2}, {1, 2}):
        receiver = Receiver(Parts(2))
        receiver.parts.limited = limited
        assert (await receiver.receive(wait_s))[1] == LIMITED
    receiver = Receiver(Parts(2))
    assert (await receiver.receive(wait_s))[1] == NO_MESSAGES
    receiver.parts.limited = {1}
    receiver.parts.send(2)
    assert (await receiver.receive(wait_s))[1] == "of 2"


# -- strict priority -------------------------------------------------------------------------------


class Strict(Parts):
    """Parts of a queue with strict priority."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        assert self.queue is not None
        tagged = prepared.queue_named("q", 1, tags={"holdfast:priority": "strict"})
        self.queue = msgspec.structs.replace(tagged, parts=self.queue.parts)

    def put(self, queue_id: int, priority: int, messages: int) -> None:
        """Have this number of messages of one priority in a part."""
        self.messages[queue_id], self.first[queue_id] = messages, priority + 1


@virtual
async def test_with_strict_priority_a_receive_begins_at_the_part_with_the_highest() -> None:
    receiver = Receiver(Strict(4))
    parts = cast(Strict, receiver.parts)
    for queue_id in range(1, 5):
        parts.put(queue_id, 2, 1_000)
    await receiver.receive()  # the parts are asked meanwhile

    for queue_id in (3, 1, 4):
        parts.put(queue_id, 9, 5)
        await asyncio.sleep(FIRST_S)
        await receiver.receive()
        assert [(await receiver.receive())[1] for _ in range(4)] == [f"of {queue_id}"] * 4
        parts.put(queue_id, 2, 1_000)


@virtual
async def test_a_part_that_failed_is_not_preferred_for_what_it_had() -> None:
    receiver = Receiver(Strict(4))
    parts = cast(Strict, receiver.parts)
    for queue_id in range(1, 5):
        parts.put(queue_id, 9 if queue_id == 3 else 2, 1_000)
    await receiver.receive()  # the parts are asked meanwhile
    parts.failing[3] = ServiceUnavailable()
    assert isinstance((await receiver.receive())[1], ServiceUnavailable)

    await asyncio.sleep(FAILED_S)

    assert {(await receiver.receive())[1] for _ in range(50)} <= {"of 1", "of 2", "of 4"}
    del parts.failing[3]
    await asyncio.sleep(FIRST_S)
    await receiver.receive()
    assert (await receiver.receive())[1] == "of 3"


@virtual
async def test_a_long_receive_finds_the_highest_of_all_parts_before_it_waits() -> None:
    receiver = Receiver(Strict(4))
    parts = cast(Strict, receiver.parts)
    parts.put(2, 1, 1)
    parts.put(3, 8, 1)

    found = [(await receiver.receive(wait_s=20))[1] for _ in range(2)]

    assert found == ["of 3", "of 2"]


@virtual
async def test_parts_are_asked_for_their_first_message_ten_times_a_second_at_most() -> None:
    receiver = Receiver(Strict(4))
    parts = cast(Strict, receiver.parts)
    parts.put(1, 2, 10_000)
    for _ in range(100):
        await receiver.receive()
    begun_s, parts.asked = now_s(), []

    for _ in range(500):
        await receiver.receive()

    questions = sum(not is_receive for _, _, is_receive in parts.asked)
    assert questions <= 4 * (1 + (now_s() - begun_s) / FIRST_S)
