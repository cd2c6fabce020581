"""The answers of a Turn that its shard remembers, and those that retries get again.

A retry is a request whose earlier try may have been decided. Other requests are never looked up
(rule 28).
Operations without a `Replay` may be decided twice: reads change nothing, and these have no request
id of their own, since the service makes them:

    ContinueQueue                     does nothing if the successor continues the queue already
    CloseQueue, QueueChanged          derive everything from the present state
    RestoreMessages, DropQueue        a step takes what is still there
    MoveDeleted                       the same
    SealArchive                       seals what has come since as a batch of its own
    AcknowledgeArchive                names the last batch; earlier ones stay forgotten
    AcceptMessages, ClearOutbox       name messages, which arrive or leave once
    TransactMessages                  is remembered under its token, for longer than answers are
    PrepareDeletes                    finds what is prepared under its token
    AskPrepared                       asks again

So may requests that changed nothing: nothing was sent or received.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain

from visibility.contract import limits
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.model import Request
from visibility.contract.operations import ReceiveMessage
from visibility.contract.outcomes import Answer
from visibility.rules.acknowledge import UndoReceive
from visibility.rules.features import OPERATIONS
from visibility.rules.operation_kinds import Decide
from visibility.state.short_answers import ANSWERS_KEPT_MS, EARLIER_MS, AnswerMemory, ShortAnswer
from visibility.state.waiters import Ticket

_AGE_MAX_MS = ANSWERS_KEPT_MS - EARLIER_MS
"""Age of a retry from which on its answer may be forgotten."""
_REPEATED_MAX = 10_000
_VISIBILITY_MAX_MS = limits.VISIBILITY_TIMEOUT.high * 1000


class TurnAnswers:
    """The answers of one Turn that are to be remembered, and those that its retries ask for."""

    __slots__ = (
        "_answers",
        "_deferred",
        "_found",
        "_memory",
        "_now_ms",
        "_request_ids",
        "_requests",
    )

    def __init__(
        self, memory: AnswerMemory, now_ms: int, deferred: list[Ticket], requests: list[Ticket]
    ) -> None:
        """`deferred` and `requests` are all that the Turn may decide, except parked receives."""
        self._memory = memory
        self._now_ms = now_ms
        self._deferred = deferred
        self._requests = requests
        self._request_ids: list[str] = []
        self._answers: list[ShortAnswer] = []
        self._found: dict[str, ShortAnswer] | None = None
        """Earlier answers to the Turn's retries, None until the first one is decided."""

    def note(self, request: Request, answer: Answer) -> None:
        """Remember the answer to a request that changed something."""
        replay = OPERATIONS[type(request.operation)].replay
        if replay is not None:
            self._request_ids.append(request.request_id)
            self._answers.append(replay.shorten(request, answer))

    def record(self) -> None:
        """Record the answers of the Turn, if there are any."""
        if self._request_ids:
            self._memory.record(self._now_ms, self._request_ids, self._answers)

    def decision(self, ticket: Ticket) -> Decide:
        """The rule for a retry. Raises QueueError, DamagedRecord."""
        operation = type(ticket.request.operation)
        kind = OPERATIONS[operation]
        replay = kind.replay
        if replay is None:
            return kind.decide
        if ticket.age_ms > _AGE_MAX_MS:
            raise ServiceUnavailable
        for short in self._earlier(ticket.request.request_id):
            if isinstance(short, replay.forms):
                if operation in (ReceiveMessage, UndoReceive):
                    self._note_repeated(ticket.request.request_id)
                return partial(replay.repeat, short)
        if ticket.if_first is not None:
            raise ticket.if_first
        ticket.age_ms = 0  # from here on it is a first try, also if it waits for messages
        return kind.decide

    def _note_repeated(self, request_id: str) -> None:
        repeated = self._memory.repeated
        repeated[request_id] = None
        if len(repeated) > _REPEATED_MAX:
            del repeated[next(iter(repeated))]

    def _earlier(self, request_id: str) -> Iterator[ShortAnswer]:
        """The latest answer to a request, if there is one."""
        for place in range(len(self._request_ids) - 1, -1, -1):
            if self._request_ids[place] == request_id:
                yield self._answers[place]
                return
        if self._found is None:
            self._found = self._find()
        if request_id in self._found:
            yield self._found[request_id]

    def _find(self) -> dict[str, ShortAnswer]:
        """Look for all retries of the Turn at once."""
        retries = [ticket for ticket in chain(self._deferred, self._requests) if ticket.age_ms]
        age_ms = min(_AGE_MAX_MS, max(ticket.age_ms for ticket in retries))
        request_ids = {ticket.request.request_id for ticket in retries}
        return self._memory.find(request_ids, self._now_ms - age_ms - EARLIER_MS)
