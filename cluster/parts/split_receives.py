"""SplitReceives: receives from queues of several parts.

    short   a part drawn by chance, weighted by the messages that it had when last heard of;
            if it is empty, one question to all others at once; then those that have some
    long    the first step of the same; then it is parked here, once for all parts

While receives of a queue are parked, one FindMessages is under way at each of its parts. It looks
and waits in one decision of the shard, so no message can come between the two. It is renewed each
second, with the parts that the queue has then. So no poll waits at one part alone (rule 45).

With strict priority a receive begins at the part whose first message has the highest priority, as
far as is known: each answer tells, and while there are receives, all parts are asked ten times a
second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from cluster.catalog.catalog_records import QueueName, name_of
from cluster.clock import Entropy
from cluster.parts.part_requests import View, to_part
from cluster.shards.router import Router
from visibility.content.id_digests import attempt_digest
from visibility.contract.errors import OverLimit, QueueDoesNotExist, QueueError, ServiceUnavailable
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.outcomes import Answer, AttemptKnown, Deliveries, MessagesFound
from visibility.contract.priority import is_strict, place_of
from visibility.rules.closing_parts import FindMessages
from visibility.rules.decided import NO_MESSAGES
from visibility.rules.earlier_parts import FindAttempt
from visibility.rules.levelling import LIMITED
from visibility.rules.receive import wait_ms
from visibility.state.waiters import OnAnswer, Room, Ticket

ANSWER_S = 0.2
"""Time after which a part that has not answered counts as empty, for a receive that does not
wait and has heard from another part."""
WATCH_S = 1
"""Time for which a part is asked to wait for messages."""
AGAIN_S = 0.1
"""Time until a part is asked again that failed, or had messages that no receive got."""
FIRST_S = 0.1
"""Time after which the parts of a queue with strict priority are asked for their first message."""
FAILED_S = 5.0
"""Time for which receives begin at other parts than one that failed."""
_HEARD_MAX = 100_000
_NEAR = 4
"""Weight of a message in a part of this process, whose receive need not be passed on."""


class SplitReceive(Ticket):
    """A receive that asks parts."""

    until_s: float = 0.0
    """End of its wait on the loop's clock, 0 if it does not wait."""
    order: int = 0
    """Its place among those that are parked; 0 until it was."""
    part: QueueDefinition | None = None
    """The part that is asked, or whose messages these are."""
    part_ticket: Ticket | None = None
    has_heard: bool = False
    """True once a part has answered that it is empty, or has too many messages in flight."""
    is_limited: bool = False
    """True if a part has messages that a limit of the queue's tags holds back."""
    refusal: QueueError | None = None
    """The last refusal of a part."""
    timer: asyncio.TimerHandle | None = None


class _Waiting:
    """The parked receives of one queue."""

    def __init__(self, name: QueueName) -> None:
        self.name = name
        self.polls: dict[int, SplitReceive] = {}
        """By their order."""
        self.watched: set[int] = set()
        """Ids of the parts that are asked, or about to be."""
        self.limited: set[int] = set()
        """Ids of the parts whose messages a limit held back when they were last looked at."""
        self.queue: QueueDefinition | None = None
        """The queue with its parts as they were last looked at; a restored etcd may give a version
        again."""


class SplitReceives:
    """Those of one process, and what it last heard of each part."""

    def __init__(self, router: Router, view: View, entropy: Entropy) -> None:
        self._router = router
        self._view = view
        self._bits128 = entropy.bits128
        self._waiting: dict[QueueName, _Waiting] = {}
        self._last_order = 0
        self._is_open = True
        self._heard: dict[int, int] = {}
        """Messages to receive in parts by id, when they were last heard of."""
        self._first: dict[int, int] = {}
        """Places of the first messages in parts of queues with strict priority, by id, when they
        were last heard of; see `priority.place_of`."""
        self._first_asked_s: dict[QueueName, float] = {}
        """Times at which the parts of such queues were asked."""
        self._failed_until_s: dict[int, float] = {}
        """Parts that failed, and the time until which receives begin elsewhere."""

    def begin(self, request: Request, on_answer: OnAnswer, room: Room | None) -> SplitReceive:
        """Ask parts one after the other, and park a long poll that found nothing."""
        receive = SplitReceive(request, on_answer, room=room)
        wait_s = wait_ms(request.operation, request.queue.settings) / 1000  # type: ignore[arg-type]
        loop = asyncio.get_running_loop()
        if wait_s:
            receive.until_s = loop.time() + wait_s
        queue = self._view.find(name_of(request.queue))
        if queue is None:
            loop.call_soon(on_answer, QueueDoesNotExist())
        elif request.operation.receive_request_attempt_id:  # type: ignore[attr-defined]
            self._find_attempt(receive, queue)
        else:
            self._try(receive, self._drawn(queue, receive.request), self._go_on)
        return receive

    def cancel(self, receive: SplitReceive) -> bool:
        """Stop waiting for messages; True for a receive that was parked."""
        receive.is_cancelled = True
        waiting = self._waiting.get(name_of(receive.request.queue))
        if waiting is None or waiting.polls.pop(receive.order, None) is None:
            return False
        self._unpark(receive)
        return True

    def end_waiting(self) -> None:
        """Answer every parked receive now, empty, and park no more."""
        self._is_open = False
        for waiting in self._waiting.values():
            for receive in list(waiting.polls.values()):
                self._expire(waiting, receive)

    def notice(self, queue: QueueDefinition) -> None:
        """Ask new parts of a queue at once, if receives of it are parked."""
        waiting = self._waiting.get(name_of(queue)) if self._waiting else None
        if waiting is not None and waiting.queue is not queue:
            self._watch(waiting)

    def _find_attempt(self, receive: SplitReceive, queue: QueueDefinition) -> None:
        """Begin at the part that knows the attempt, which may repeat it. Each part must say."""
        parts = queue.all_parts()
        answers: list[Answer | QueueError] = []
        knowing: list[QueueDefinition] = []

        def answered(part: QueueDefinition, answer: Answer | QueueError) -> None:
            answers.append(answer)
            if isinstance(answer, AttemptKnown) and answer.is_known:
                knowing.append(part)
            if len(answers) < len(parts):
                return
            are_known = not any(map(_is_unknown, answers))
            if knowing or are_known:
                self._try(
                    receive,
                    knowing[0] if knowing else self._drawn(queue, receive.request),
                    self._go_on,
                )
            else:
                receive.on_answer(ServiceUnavailable())

        digest = attempt_digest(receive.request.operation.receive_request_attempt_id)  # type: ignore[attr-defined]
        for part in parts:
            question = to_part(receive.request, part, FindAttempt(digest))
            self._router.submit(question, partial(answered, part))

    # -- one part after the other ------------------------------------------------------------------

    def _drawn(self, queue: QueueDefinition, request: Request) -> QueueDefinition:
        """A part by chance. A part with more messages is more likely: they are received about in
        the order of their age, and none is passed over for ever. One of this process is, too."""
        parts: Sequence[QueueDefinition] = queue.all_parts()
        if self._failed_until_s:
            now_s = asyncio.get_running_loop().time()
            sound = [p for p in parts if self._failed_until_s.get(p.queue_id, 0) <= now_s]
            parts = sound or parts
        if is_strict(queue.settings.own_tags):
            self._ask_for_first(queue, request)
            first = max(self._first.get(part.queue_id, 0) for part in parts)
            parts = [part for part in parts if self._first.get(part.queue_id, 0) == first]
        leads = self._router.leads
        weights = [
            (_NEAR if leads(part.shard) else 1) * (1 + self._heard.get(part.queue_id, 0))
            for part in parts
        ]
        left = self._bits128() % sum(weights)
        for part, weight in zip(parts, weights, strict=True):
            if left < weight:
                return part
            left -= weight
        raise AssertionError("the weights are added up")

    def _ask_for_first(self, queue: QueueDefinition, request: Request) -> None:
        """Ask all parts for the place of their first message, if that was not done just now."""
        name, now_s = name_of(queue), asyncio.get_running_loop().time()
        asked_s = self._first_asked_s.get(name)
        if asked_s is not None and now_s < asked_s + FIRST_S:
            return
        if len(self._first_asked_s) >= _HEARD_MAX:
            self._first_asked_s.clear()
        self._first_asked_s[name] = now_s
        asking = msgspec.structs.replace(request, request_id=f"{request.request_id}/first")
        for part in queue.all_parts():
            look = to_part(asking, part, FindMessages())
            self._router.submit(look, partial(self._hear_answer, part.queue_id))

    def _hear_answer(self, queue_id: int, answer: Answer | QueueError) -> None:
        """Note what a part says that was asked for messages."""
        if isinstance(answer, MessagesFound):
            self._hear(queue_id, answer.visible, answer.first)
        elif not isinstance(answer, QueueError):
            self._hear(queue_id, 0, 0)

    def _place_and_number(self, part: QueueDefinition) -> tuple[int, int]:
        """The place of the part's first message and its number of messages, as far as known."""
        queue_id = part.queue_id
        return self._first.get(queue_id, 0), self._heard.get(queue_id, 0)

    def _try(
        self,
        receive: SplitReceive,
        part: QueueDefinition,
        if_empty: Callable[[SplitReceive], None],
        after: Callable[[bool], None] | None = None,
    ) -> None:
        """Receive from one part. `after` is told whether it gave messages."""
        operation = msgspec.structs.replace(receive.request.operation, wait_time_seconds=0)
        receive.part = part
        on_answer = partial(self._tried, receive, part.queue_id, if_empty, after)
        receive.part_ticket = self._router.submit(
            to_part(receive.request, part, operation), on_answer, receive.room
        )

    def _tried(
        self,
        receive: SplitReceive,
        queue_id: int,
        if_empty: Callable[[SplitReceive], None],
        after: Callable[[bool], None] | None,
        answer: Answer | QueueError,
    ) -> None:
        has_messages = isinstance(answer, Deliveries) and bool(answer.leases)
        if isinstance(answer, Deliveries):
            had = self._heard.get(queue_id, 0)
            first = place_of(answer.messages[-1].level) if has_messages else 0
            self._hear(queue_id, max(had - len(answer.leases), 1) if has_messages else 0, first)
        if has_messages:
            assert receive.part_ticket is not None
            receive.part = receive.part_ticket.request.queue  # a purge may have renamed it
            receive.on_answer(answer)
        elif isinstance(answer, QueueDoesNotExist | OverLimit):
            receive.refusal = answer
            receive.has_heard |= isinstance(answer, OverLimit)
            if_empty(receive)
        elif isinstance(answer, QueueError):  # it may have taken messages, which nobody gets
            self._note_failure(queue_id, answer)
            receive.on_answer(answer)
        else:
            receive.has_heard = True
            receive.is_limited |= _is_limited(answer)
            if_empty(receive)
        if after is not None:
            after(has_messages)

    def _note_failure(self, queue_id: int, refusal: QueueError) -> None:
        """Let receives begin at other parts for a while."""
        if isinstance(refusal, ServiceUnavailable):
            now_s = asyncio.get_running_loop().time()
            kept = {each: at for each, at in self._failed_until_s.items() if at > now_s}
            self._failed_until_s = kept | {queue_id: now_s + FAILED_S}
            self._first.pop(queue_id, None)

    def _hear(self, queue_id: int, messages: int, first: int) -> None:
        if len(self._heard) >= _HEARD_MAX:
            self._heard.clear()
            self._first.clear()
        self._heard[queue_id] = messages
        self._first[queue_id] = first

    def _go_on(self, receive: SplitReceive) -> None:
        """The first part is empty, or gone."""
        queue = self._view.find(name_of(receive.request.queue))
        if queue is None:
            receive.on_answer(QueueDoesNotExist())
        elif receive.is_cancelled:
            self._nothing(receive)
        elif receive.until_s and not is_strict(queue.settings.own_tags):
            self._park(receive)
        else:
            self._ask_others(receive, queue)

    def _ask_others(self, receive: SplitReceive, queue: QueueDefinition) -> None:
        tried = receive.part
        others = [
            part for part in queue.all_parts() if tried is None or part.queue_id != tried.queue_id
        ]
        answers: dict[int, int] = {}
        is_late = is_over = False

        def late() -> None:
            nonlocal is_late
            is_late = True
            if receive.has_heard or receive.until_s:
                over()

        def over() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                timer.cancel()
                found = [part for part in others if answers.get(part.queue_id)]
                found.sort(key=self._place_and_number)
                self._try_each(found, receive)

        def answered(queue_id: int, answer: Answer | QueueError) -> None:
            answers[queue_id] = answer.visible if isinstance(answer, MessagesFound) else 0
            self._hear_answer(queue_id, answer)
            if not isinstance(answer, QueueError):
                receive.has_heard = True
                receive.is_limited |= _is_limited(answer)
            elif type(receive.refusal) is QueueDoesNotExist:  # one part was gone, not the queue
                receive.refusal = answer
            if len(answers) == len(others) or (is_late and receive.has_heard):
                over()

        loop = asyncio.get_running_loop()
        timer = loop.call_later(ANSWER_S, late) if others else loop.call_soon(over)
        for part in others:
            look = to_part(receive.request, part, FindMessages())
            self._router.submit(look, partial(answered, part.queue_id))

    def _try_each(self, found: list[QueueDefinition], receive: SplitReceive) -> None:
        """Receive from these parts until one gives messages, the last one first."""
        if found and not receive.is_cancelled:
            self._try(receive, found.pop(), partial(self._try_each, found))
        elif receive.until_s:
            self._park(receive)
        else:
            self._nothing(receive)

    def _nothing(self, receive: SplitReceive) -> None:
        """No part gave messages. One that does not answer does not make others fail."""
        refusal, nothing = receive.refusal, LIMITED if receive.is_limited else NO_MESSAGES
        if refusal is None or (receive.has_heard and not isinstance(refusal, OverLimit)):
            receive.on_answer(nothing)
        else:
            receive.on_answer(nothing if receive.until_s else refusal)

    # -- parked ------------------------------------------------------------------------------------

    def _park(self, receive: SplitReceive) -> None:
        """Let a receive wait for messages, in its old place if it waited before."""
        loop = asyncio.get_running_loop()
        if not self._is_open or receive.is_cancelled or loop.time() >= receive.until_s:
            self._nothing(receive)
            return
        name = name_of(receive.request.queue)
        waiting = self._waiting.get(name)
        if waiting is None:
            waiting = self._waiting[name] = _Waiting(name)
        if receive.order:
            waiting.polls = dict(sorted([*waiting.polls.items(), (receive.order, receive)]))
        else:
            self._last_order += 1
            receive.order = self._last_order
            waiting.polls[receive.order] = receive
        receive.timer = loop.call_at(receive.until_s, self._expire, waiting, receive)
        self._watch(waiting)

    def _unpark(self, receive: SplitReceive) -> None:
        if receive.timer is not None:
            receive.timer.cancel()
            receive.timer = None

    def _expire(self, waiting: _Waiting, receive: SplitReceive) -> None:
        del waiting.polls[receive.order]
        self._unpark(receive)
        receive.is_limited = bool(waiting.limited)
        self._nothing(receive)

    def _watch(self, waiting: _Waiting) -> None:
        """Ask each part that is not asked yet."""
        queue = self._view.find(waiting.name)
        if queue is None:
            for receive in list(waiting.polls.values()):
                del waiting.polls[receive.order]
                self._unpark(receive)
                receive.on_answer(QueueDoesNotExist())
        if queue is None or not waiting.polls:
            if not waiting.watched:
                self._waiting.pop(waiting.name, None)
            return
        waiting.queue = queue
        first = next(iter(waiting.polls.values())).request
        for part in queue.all_parts():
            if part.queue_id not in waiting.watched:
                waiting.watched.add(part.queue_id)
                look = to_part(first, part, FindMessages(WATCH_S))
                self._router.submit(look, partial(self._found, waiting, part))

    def _found(self, waiting: _Waiting, part: QueueDefinition, answer: Answer | QueueError) -> None:
        """A part has messages, or had none for a while, or failed."""
        if _is_limited(answer):
            waiting.limited.add(part.queue_id)
        else:
            waiting.limited.discard(part.queue_id)
        if isinstance(answer, MessagesFound) and waiting.polls:
            self._hear_answer(part.queue_id, answer)
            self._hand_over(waiting, part, answer.visible)
        elif isinstance(answer, QueueError):
            self._note_failure(part.queue_id, answer)
            self._watch_later(waiting, part)
        else:
            waiting.watched.discard(part.queue_id)
            self._watch(waiting)

    def _hand_over(self, waiting: _Waiting, part: QueueDefinition, messages: int) -> None:
        """Let the longest waiting receives ask the part, then ask it again for the others."""
        taken = list(waiting.polls.values())[:messages]
        left = len(taken)
        got_some = False

        def after(has_messages: bool) -> None:
            nonlocal left, got_some
            left -= 1
            got_some |= has_messages
            if left:
                return
            if got_some:
                waiting.watched.discard(part.queue_id)
                self._watch(waiting)
            else:
                self._watch_later(waiting, part)

        for receive in taken:
            del waiting.polls[receive.order]
            self._unpark(receive)
        for receive in taken:
            self._try(receive, part, self._park, after)

    def _watch_later(self, waiting: _Waiting, part: QueueDefinition) -> None:
        def again() -> None:
            waiting.watched.discard(part.queue_id)
            self._watch(waiting)

        asyncio.get_running_loop().call_later(AGAIN_S, again)


def _is_unknown(answer: Answer | QueueError) -> bool:
    """True if a part that may be there did not answer."""
    return isinstance(answer, QueueError) and not isinstance(answer, QueueDoesNotExist)


def _is_limited(answer: Answer | QueueError) -> bool:
    return isinstance(answer, Deliveries) and answer.is_limited
