"""SplitFifoSends: sends to FIFO queues of several parts.

Each message goes to the part that has its group; a batch is cut by part. For five minutes after a
part closed, it is asked first whether it knows the deduplication id: then the message is a
duplicate, and the answer is that of the first. It says itself when these are over; one that nobody
leads is not asked any more half a minute later. A part that closed meanwhile answers Moved: it
decided nothing, and the message goes to the part that has the group now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import structlog

from cluster.parts.asked_anew import later_than
from cluster.parts.part_requests import View, of_places, to_part
from cluster.shards.router import Router, answer_to
from cluster.tasks import start_task
from visibility.content.receipts import sequence_number
from visibility.contract.errors import (
    InternalError,
    Moved,
    QueueDoesNotExist,
    QueueError,
    ServiceUnavailable,
)
from visibility.contract.model import Content, QueueDefinition, Request
from visibility.contract.operations import SendMessageBatch
from visibility.contract.outcomes import Answer, Deduplicated, IdsKnown, batch_failure
from visibility.contract.queue_parts import Part
from visibility.contract.results import (
    BatchResultErrorEntry,
    SendMessageBatchResult,
    SendMessageBatchResultEntry,
    SendMessageResult,
)
from visibility.rules.earlier_parts import FindIds
from visibility.rules.remembered_ids import DRAINED_MS
from visibility.state.waiters import Ticket

_ROUNDS_MAX = 4
"""Times that a message is sent to the part that has its group, each after the news of parts."""
_OVER_MAX = 10_000

_Known = Mapping[bytes, tuple[str, int]]
"""MessageId and sequence of the first message, by deduplication id."""


class _Sent(NamedTuple):
    """The outcome of a message, as its client is told."""

    message_id: str
    sequence_number: str | None


class _Sending:
    """A request under way."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.left = [place for place, part in enumerate(request.parts) if isinstance(part, Content)]
        """Places of the messages of which nothing is known yet."""
        self.sent: dict[int, _Sent] = {}
        self.refused: dict[int, QueueError] = {
            place: part for place, part in enumerate(request.parts) if isinstance(part, QueueError)
        }
        self.failed: dict[int, BatchResultErrorEntry] = {}
        self.duplicates = 0

    def content(self, place: int) -> Content:
        """A message."""
        content = self.request.parts[place]
        assert isinstance(content, Content)
        return content

    def answer(self) -> Answer:
        """The answer to all. Raises QueueError if all were refused by parts."""
        operation = self.request.operation
        if not isinstance(operation, SendMessageBatch):
            if self.refused:
                raise self.refused[0]
            return self._counted(self._result(0))
        if not (self.sent or self.failed) and self.refused:
            first = next(iter(self.refused.values()))
            if isinstance(first, ServiceUnavailable):
                raise first
        successful: list[SendMessageBatchResultEntry] = []
        failed: list[BatchResultErrorEntry] = []
        for place, entry in enumerate(operation.entries or ()):
            entry_id = entry.id or ""
            if place in self.sent:
                fields = msgspec.structs.asdict(self._result(place))
                successful.append(SendMessageBatchResultEntry(entry_id, **fields))
            elif place in self.failed:
                failed.append(self.failed[place])
            else:
                failed.append(batch_failure(entry_id, self.refused[place]))
        return self._counted(SendMessageBatchResult(successful or None, failed or None))

    def _result(self, place: int) -> SendMessageResult:
        content, sent = self.content(place), self.sent[place]
        return SendMessageResult(
            md5_of_message_body=content.md5_of_message_body,
            message_id=sent.message_id,
            md5_of_message_attributes=content.md5_of_message_attributes,
            md5_of_message_system_attributes=content.md5_of_message_system_attributes,
            sequence_number=sent.sequence_number,
        )

    def _counted(self, result: SendMessageResult | SendMessageBatchResult) -> Answer:
        return Deduplicated(result, self.duplicates) if self.duplicates else result

    def take(self, places: Sequence[int], answer: Answer) -> None:
        """Note the answer of a part to these messages."""
        if isinstance(answer, Deduplicated):
            self.duplicates += answer.duplicates
            answer = answer.result
        if isinstance(answer, SendMessageResult):
            self.sent[places[0]] = _Sent(answer.message_id, answer.sequence_number)
            return
        assert isinstance(answer, SendMessageBatchResult)
        operation = self.request.operation
        assert isinstance(operation, SendMessageBatch)
        entries = operation.entries or []
        place_of = {entries[place].id: place for place in places}
        for done in answer.successful or ():
            self.sent[place_of[done.id]] = _Sent(done.message_id, done.sequence_number)
        for failure in answer.failed or ():
            self.failed[place_of[failure.id]] = failure


class SplitFifoSends:
    """Those of one process."""

    def __init__(self, router: Router, view: View, wall_s: Callable[[], float]) -> None:
        """`wall_s` reads the time in epoch seconds."""
        self._router = router
        self._wall_s = wall_s
        self._view = view
        self._over: dict[Part, None] = {}
        """Closed parts that know no deduplication ids any more; a restored etcd may give an id
        again."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = structlog.get_logger("parts")

    def begin(self, ticket: Ticket) -> None:
        """Send the messages of a request."""
        start_task(self._tasks, self._run(ticket))

    async def _run(self, ticket: Ticket) -> None:
        answer: Answer | QueueError
        try:
            answer = await self._send(_Sending(ticket.request))
        except QueueError as error:
            answer = error
        except Exception:  # a bug
            self._log.exception("send_failed", queue=ticket.request.queue.name)
            answer = InternalError()
        ticket.on_answer(answer)

    async def _send(self, sending: _Sending) -> Answer:
        queue = sending.request.queue
        for attempt in range(_ROUNDS_MAX):
            if attempt:
                queue = await later_than(self._view, queue)
            cut: dict[int, tuple[QueueDefinition, list[int]]] = {}
            for place in sending.left:
                part = queue.part_for(sending.content(place).group)
                cut.setdefault(part.queue_id, (part, []))[1].append(place)
            sending.left = []
            await _all(self._to_part(sending, part, places) for part, places in cut.values())
            if not sending.left:
                return sending.answer()
        sending.refused |= dict.fromkeys(sending.left, ServiceUnavailable())
        return sending.answer()

    async def _to_part(self, sending: _Sending, part: QueueDefinition, places: list[int]) -> None:
        """Send these messages to a part. Those for which it is closed stay in `left`."""
        try:
            known = await self._known(sending, part, places)
        except QueueError as error:
            self._refuse(sending, places, error)
            return
        new: list[int] = []
        for place in places:
            first = known.get(sending.content(place).deduplication)
            if first is None:
                new.append(place)
            else:
                sending.duplicates += 1
                sending.sent[place] = _Sent(first[0], sequence_number(first[1]))
        if not new:
            return
        try:
            sending.take(new, await self._ask(of_places(sending.request, part, new)))
        except QueueError as error:
            self._refuse(sending, new, error)

    @staticmethod
    def _refuse(sending: _Sending, places: list[int], error: QueueError) -> None:
        if isinstance(error, Moved | QueueDoesNotExist):
            sending.left += places
        else:
            sending.refused |= dict.fromkeys(places, error)

    async def _known(self, sending: _Sending, part: QueueDefinition, places: list[int]) -> _Known:
        """The ids of these messages that closed parts know. Raises QueueError."""
        if not part.parts:
            return {}
        questions: dict[int, tuple[QueueDefinition, list[bytes]]] = {}
        for place in places:
            content = sending.content(place)
            for earlier in part.earlier_parts(content.group):
                if earlier.part not in self._over and not self._is_away(earlier):
                    asked = questions.setdefault(earlier.queue_id, (earlier, []))
                    asked[1].append(content.deduplication)
        known: dict[bytes, tuple[str, int]] = {}

        async def ask(earlier: QueueDefinition, digests: list[bytes]) -> None:
            answer = await self._ask(to_part(sending.request, earlier, FindIds(digests)))
            assert isinstance(answer, IdsKnown)
            known.update({each: (name, sequence) for each, name, sequence in answer.ids})
            if answer.are_over:
                if len(self._over) >= _OVER_MAX:
                    self._over.clear()
                self._over[earlier.part] = None

        await _all(ask(*question) for question in questions.values())
        return known

    def _is_away(self, part: QueueDefinition) -> bool:
        """True if nobody leads a part which has drained for so long that it knows no ids. As long
        as somebody does it is asked, since it closes when it hears of that: perhaps by asking."""
        if not part.part.drained_for(DRAINED_MS, int(self._wall_s() * 1000)):
            return False
        return not self._router.has_leader(part.shard)

    async def _ask(self, request: Request) -> Answer:
        """Have a part decide. Raises QueueError."""
        return await answer_to(self._router.submit, request)


async def _all(work: Any) -> None:
    """Do this side by side; one alone without a task. Raises the first exception."""
    each: list[Coroutine[Any, Any, None]] = list(work)
    if len(each) == 1:
        await each[0]
    else:
        await asyncio.gather(*each)
