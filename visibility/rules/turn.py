"""Turn: one pass of a shard over its waiting requests, free of I/O.

    time passes → pulses → deferred and new requests, each: decide → apply → record
    → long polls wake → queue rows

It changes the given state and records row changes through `state.rows`; sockets, disk, clock and
chance stay outside. Its caller appends the recorded changes to the log as one Entry and releases
the answers once that is committed. A Turn that raises makes no Entry: memory is then reloaded from
the rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from visibility.contract.errors import (
    InternalError,
    QueueDoesNotExist,
    QueueError,
    ServiceUnavailable,
    without_frames,
)
from visibility.contract.model import Request
from visibility.contract.operations import ReceiveMessage
from visibility.contract.outcomes import Answer, Deliveries
from visibility.rows.row_codec import DamagedRecord
from visibility.rows.row_values import THE_SHARD
from visibility.rules.closing_parts import FindMessages
from visibility.rules.decided import (
    NO_MESSAGES,
    DamageMet,
    Decided,
    NoAnswer,
    Outcome,
    RefusedWithEvents,
    TurnFailed,
    failure_notice,
)
from visibility.rules.events import Effects, Event
from visibility.rules.features import OPERATIONS
from visibility.rules.handing_out import TURN_BYTES_MAX, HandingOut
from visibility.rules.levelling import without_messages
from visibility.rules.operation_kinds import Decide
from visibility.rules.pulses import run_due
from visibility.rules.quarantine import ask_for_rebuild, is_for_others, quarantine
from visibility.rules.queues import CloseQueue
from visibility.rules.receive import wait_ms
from visibility.rules.retries import TurnAnswers
from visibility.rules.transactions import NOT_SETTLED, SETTLING_MS, FindTransaction
from visibility.state.advance import advance, park
from visibility.state.rows import MessagesMissing
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp
from visibility.state.waiters import Ticket, place_of

# Each request reads them; looking them up in their class would take 0.2 µs more.
_PARK: Final = NoAnswer.PARK
_DEFER: Final = NoAnswer.DEFER
_FOR_EVENTS = 8
"""The events of a start may record this part of a Turn: the rows of their queues come to them."""


def run(state: ShardState, stamp: Stamp, deferred: list[Ticket], requests: list[Ticket]) -> Decided:
    """Let time pass up to the stamp, then decide deferred and new requests, in order.

    Raises TurnFailed; DamageMet is one.
    """
    turn = Turn(state, stamp)
    try:
        turn.run(deferred, requests)
        return turn.end()
    except Exception as error:
        answered = [ticket for ticket, _ in turn.effects.answers]
        failed = DamageMet if is_for_others(state, error) else TurnFailed
        raise failed([*answered, *turn.effects.deferred, *deferred, *requests]) from error


def begin(state: ShardState, stamp: Stamp, events: Iterable[Event]) -> Decided:
    """The Turn of a start: events that a crash prevented. It takes as many as its Entry may have;
    the others are left in an iterator.

    `events` may be empty; the row of THE_SHARD is written in any case.
    """
    turn = Turn(state, stamp)
    turn.effects.changed[THE_SHARD] = None
    for event in events:
        turn.effects.do(event)
        if state.rows.is_full(_FOR_EVENTS):
            break
    return turn.end()


class Turn:
    """One pass while it runs."""

    __slots__ = (
        "_stamp",
        "answers",
        "effects",
        "handing_out",
        "remembered",
        "request_ids",
        "state",
        "untaken",
    )

    def __init__(self, state: ShardState, stamp: Stamp) -> None:
        self.state = state
        self._stamp = stamp
        self.effects = Effects(state)
        self.answers = self.effects.answers
        self.untaken: list[Ticket] = []
        self.request_ids: list[str] = []
        self.remembered: TurnAnswers | None = None
        self.handing_out = HandingOut(state.without_room)

    def run(self, deferred: list[Ticket], requests: list[Ticket]) -> None:
        """Time passes, pulses run, then requests are decided."""
        state = self.state
        if state.memory is not None:
            self.remembered = TurnAnswers(state.memory, self._stamp.now_ms, deferred, requests)
        were_left = bool(state.to_wake)
        for ticket in advance(state, self._stamp.now_ms):
            queue = state.queues.get(ticket.queue_id)
            none = nothing_for(ticket) if queue is None else without_messages(queue)
            self.answers.append((ticket, none))
        if state.due:
            run_due(self.effects, self._stamp)
        for place, ticket in enumerate(deferred):
            if self._is_full():
                self.effects.deferred += deferred[place:]
                break
            self._decide_later(ticket)
        if were_left:
            self._wake()
        for place, ticket in enumerate(requests):
            if self._is_full():
                self.untaken = requests[place:]
                break
            self._decide(ticket)
        if state.to_wake:
            self._wake()

    def _is_full(self) -> bool:
        return self.handing_out.size >= TURN_BYTES_MAX or self.state.rows.is_full()

    def end(self) -> Decided:
        """Record the changed queues' own rows, and the answers to remember."""
        state, effects = self.state, self.effects
        if self.remembered is not None:
            self.remembered.record()
        changes = state.rows.changes
        for queue_id in effects.changed:
            if queue_id == THE_SHARD:
                state.archive.record(changes)
            else:
                state.queue(queue_id).record(changes, self._stamp.now_ms)
        return Decided(
            self.answers,
            effects.deferred,
            self.untaken,
            [*effects.changed, *effects.dropped],
            self.request_ids,
            effects.notices,
            effects.damage,
            effects.departs,
            effects.locks,
        )

    # -- requests ----------------------------------------------------------------------------------

    def _decide(self, ticket: Ticket) -> bool:
        """Decide one request, and apply its events. False if it remains a long poll."""
        request = ticket.request
        try:
            outcome = self._outcome_of(ticket)
        except QueueError as refusal:
            self.answers.append((ticket, without_frames(refusal)))
            return True
        except RefusedWithEvents as refused:
            for event in refused.events:
                self.effects.do(event)
            self.answers.append((ticket, without_frames(refused.refusal)))
            return True
        except (DamagedRecord, MessagesMissing) as error:
            ask_for_rebuild(self.effects, request.queue.queue_id, error)
            self.answers.append((ticket, ServiceUnavailable()))
            return True
        except Exception as error:  # deciding changes nothing, so only this request is lost
            self.effects.notices.append(failure_notice(request, error))
            self.answers.append((ticket, InternalError()))
            return True
        if outcome is None:
            self.effects.deferred.append(ticket)
            return True
        answer, events = outcome
        if events:
            if self.remembered is None:
                self.request_ids.append(request.request_id)
            elif answer is not _PARK and answer is not _DEFER:
                self.remembered.note(request, answer)
            for event in events:
                self.effects.do(event)
        if type(request.operation) is CloseQueue:
            self.effects.close(request.queue.queue_id)
        if answer is _PARK:
            return self._park(ticket)
        if answer is _DEFER:
            self.effects.deferred.append(ticket)
        else:
            self.answers.append((ticket, answer))
        return True

    def _outcome_of(self, ticket: Ticket) -> Outcome | None:
        request = ticket.request
        decide = OPERATIONS[type(request.operation)].decide
        if ticket.age_ms:
            decide = self._decision_on_retry(ticket)
        if self.state.without_room:
            self.handing_out.check(ticket)
        outcome = self._outcome(decide, request)
        if outcome is not None and type(outcome[0]) is Deliveries:
            return self.handing_out.fitting(ticket, outcome, partial(self._outcome, decide))
        return outcome

    def _outcome(self, decide: Decide, request: Request) -> Outcome | None:
        """Decide, behind the quarantine of damage that is met; None if the Turn is full of that."""
        while True:
            try:
                return decide(self.state, request, self._stamp)
            except (DamagedRecord, MessagesMissing) as error:
                quarantine(self.effects, error, self._stamp.now_ms)
            if self.state.rows.is_full():
                return None

    def _decision_on_retry(self, ticket: Ticket) -> Decide:
        """The rule for a request that may have been decided before. Raises QueueError."""
        request_id = ticket.request.request_id
        if any(other.request.request_id == request_id for other in self.effects.deferred):
            return _after_first_try
        assert self.remembered is not None
        return self.remembered.decision(ticket)

    def _decide_later(self, ticket: Ticket) -> bool:
        """Decide a request that waited, with the present definitions of its queue and the dead
        letters'. False if it remains a long poll."""
        request = ticket.request
        if request.queue.queue_id == THE_SHARD or OPERATIONS[type(request.operation)].is_fixed:
            return self._decide(ticket)
        renewed = self.state.definitions.renewed(request)
        if renewed is None:
            self.answers.append((ticket, QueueDoesNotExist()))
            return True
        ticket.request = renewed
        return self._decide(ticket)

    def _park(self, ticket: Ticket) -> bool:
        """Let a request wait, most for messages. False if it does, True if it is answered
        instead."""
        if not self.state.waits.is_open or ticket.is_cancelled:
            self.answers.append((ticket, nothing_for(ticket)))
            return True
        if not ticket.number:
            operation, queue = ticket.request.operation, ticket.request.queue
            if isinstance(operation, FindTransaction):
                place, wait = place_of(operation.token), SETTLING_MS
            else:
                assert isinstance(operation, ReceiveMessage | FindMessages)
                place, wait = queue.queue_id, wait_ms(operation, queue.settings)
            ticket.until_ms = ticket.until_ms or self._stamp.now_ms + wait
            park(self.state, ticket, place)
        return False

    def _wake(self) -> None:
        """Give visible messages to the receives that wait for them, longest waiting first."""
        waits, to_wake = self.state.waits, self.state.to_wake
        while to_wake:
            queue_id = next(iter(to_wake))
            del to_wake[queue_id]
            while (ticket := waits.first(queue_id)) is not None:
                if self._is_full():
                    to_wake[queue_id] = None  # for the next Turn
                    return
                if not self._decide_later(ticket):
                    break
                waits.remove(ticket.number)


def nothing_for(ticket: Ticket) -> Answer:
    """The answer to a request whose wait ends without what it waited for."""
    return NOT_SETTLED if type(ticket.request.operation) is FindTransaction else NO_MESSAGES


def _after_first_try(state: ShardState, request: Request, stamp: Stamp) -> Outcome:
    return _DEFER, ()
