"""Answers on their way out of a shard."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import structlog

from storage.engines.store import SharedStore
from visibility.contract.errors import QueueError, ServiceUnavailable
from visibility.contract.model import Receipt, Request
from visibility.contract.outcomes import Answer, Deliveries
from visibility.rows.row_changes import Changes
from visibility.rules.acknowledge import ReturnMessages, UndoReceive
from visibility.rules.at_most_once import RemoveTaken
from visibility.rules.decided import NO_MESSAGES
from visibility.rules.events import Answers, Notice
from visibility.rules.features import OPERATIONS
from visibility.state.waiters import OnAnswer, Ticket

_LATE = 4
"""A receive is late after this part of its visibility timeout."""
_LATE_S_MIN = 1 / _LATE
"""No receive is late before: the shortest visibility timeout is a second."""
GIVING_BACK = (ReturnMessages, UndoReceive, RemoveTaken)
"""Operations that a shard decides as long as it leads, although it stops."""


class NotDecided(ServiceUnavailable):
    """The request was certainly not decided here: another host may be asked."""


class UnderWay(NamedTuple):
    """An Entry that was appended and not committed yet, and the answers that wait for it."""

    changes: Changes
    answers: Answers
    stamp_ms: int
    begun_s: float
    """The time of the append, on the monotonic clock."""
    is_followed: bool
    """True if somebody follows the rows of a changed queue."""


@dataclass(slots=True, eq=False)
class _Held:
    answers: Answers
    seen: UnderWay | None
    """The last Entry under way that the Turn saw."""


class ReadBarrier:
    """Answers of Turns without changes, until a majority has confirmed the term
    (rule 8)."""

    def __init__(
        self,
        store: SharedStore,
        under_way: deque[UnderWay],
        release: Callable[[Answers], None],
    ) -> None:
        self._store = store
        self._under_way = under_way
        self._release = release
        self._held: list[_Held] = []

    def __bool__(self) -> bool:
        return bool(self._held)

    def hold(self, answers: Answers) -> None:
        """Hold the answers of the last Turn until then, and until all that it saw is committed."""
        held = _Held(answers, self._under_way[-1] if self._under_way else None)
        self._held.append(held)
        self._store.confirm(partial(self._confirmed, held))

    def take_all(self) -> Answers:
        """Take the answers out: they must not leave."""
        taken = [each for held in self._held for each in held.answers]
        self._held.clear()
        return taken

    def _confirmed(self, held: _Held, is_leader: bool) -> None:
        if not is_leader or held not in self._held:
            return  # the shard is deposed
        self._held.remove(held)
        for entry in self._under_way:
            if entry is held.seen:
                entry.answers.extend(held.answers)
                return
        self._release(held.answers)


class EarlyAnswers:
    """With asynchronous replication: answers that wait for the leader's own disk, not for a
    majority, and have not left (rule 11)."""

    def __init__(self, store: SharedStore, release: Callable[[Answers], None]) -> None:
        self._store = store
        self._release = release
        self._held: deque[Answers] = deque()
        """By Entry that is not synced here, oldest first."""

    def hold(self, answers: Answers, *, has_entry: bool) -> Answers:
        """Hold the early ones of a Turn until this host has durably what it saw; return the
        others."""
        early: Answers = []
        others: Answers = []
        for each in answers:
            kind = OPERATIONS[type(each[0].request.operation)]
            (early if kind.is_early else others).append(each)
        if has_entry:
            self._held.append(early)
        elif self._held:
            self._held[-1].extend(early)
        else:
            self._release(early)
        return others

    def appended(self) -> None:
        """The Entry of the last Turn is under way."""
        self._store.once_synced(lambda: self._release(self._held.popleft()))

    def take_all(self) -> Answers:
        """Take the answers out: they must not leave."""
        taken = [each for answers in self._held for each in answers]
        self._held.clear()
        return taken


class RefusedReceives:
    """Receives that a shard answered with an error, of Entries that may be durable all the same.
    Once the shard is loaded anew, they are given back before anything else is decided."""

    def __init__(self) -> None:
        self._returns: list[Request] = []

    def note(self, under_way: Iterable[UnderWay]) -> None:
        """These Entries failed."""
        self._returns += [
            returning(ticket.request, answer)
            for entry in under_way
            for ticket, answer in entry.answers
            if isinstance(answer, Deliveries) and answer.leases
        ]

    def give_back(self, submit: Callable[[Request, OnAnswer], object]) -> None:
        """Have them given back. What such a receive did not get has another receive count."""
        returns, self._returns = self._returns, []
        for request in returns:
            submit(request, partial(self._answered, request))

    def _answered(self, request: Request, answer: object) -> None:
        if isinstance(answer, ServiceUnavailable):  # the shard failed once more
            self._returns.append(request)


def log_notice(notice: Notice, log: structlog.stdlib.BoundLogger) -> None:
    """Write a line of the log."""
    if notice.error is not None:
        log.error(notice.event, exc_info=notice.error, **notice.fields)
    elif notice.is_damage:
        log.error(notice.event, **notice.fields)
    else:
        log.info(notice.event, **notice.fields)


def in_time(
    entry: UnderWay, held_s: float, submit: Callable[[Request, OnAnswer], object]
) -> Answers:
    """The answers, which were held that long, with receives that are late empty; their messages are
    given back (rule 12)."""
    if held_s < _LATE_S_MIN:
        return entry.answers
    answers: Answers = []
    for ticket, answer in entry.answers:
        if isinstance(answer, Deliveries) and _is_late(answer, entry.stamp_ms, held_s):
            submit(returning(ticket.request, answer), lambda returned: None)
            answer = NO_MESSAGES
        answers.append((ticket, answer))
    return answers


def _is_late(deliveries: Deliveries, stamp_ms: int, held_s: float) -> bool:
    left_ms = min((lease.visible_at_ms - stamp_ms for lease in deliveries.leases), default=0)
    return left_ms > 0 and held_s * 1000 * _LATE > left_ms


def returning(request: Request, deliveries: Deliveries) -> Request:
    """The request that gives the messages of a receive back."""
    receipts = tuple(
        Receipt(lease.original_sequence or lease.sequence, lease.receive_count)
        for lease in deliveries.leases
    )
    return Request(ReturnMessages(), request.queue, request.caller, request.request_id, receipts)


def answer_all(
    log: structlog.stdlib.BoundLogger, answers: Iterable[tuple[Ticket, Answer | QueueError]]
) -> None:
    """Call back in order. A callback that raises has a bug, which must not delay the others."""
    rest = iter(answers)
    while True:
        try:
            for ticket, answer in rest:
                ticket.on_answer(answer)
        except Exception:
            log.exception("answer_failed", request_id=ticket.request.request_id)
        else:
            return


def refuse_all(
    log: structlog.stdlib.BoundLogger, tickets: Iterable[Ticket], refusal: QueueError
) -> None:
    """The same for tickets that a shard cannot answer."""
    for ticket in tickets:
        try:
            ticket.refuse(refusal)
        except Exception:
            log.exception("answer_failed", request_id=ticket.request.request_id)
