"""Lead: one loaded memory of a shard, and the loop of Turns that decides requests over it.

    inbox → run a Turn → append its Entry → sync → (committed) answers leave → rows

Only this order counts. While an Entry is under way, the inbox fills. Every answer, even a refusal
or one without changes, leaves only when all Entries that its Turn could see are committed (in a
cluster with asynchronous replication see `EarlyAnswers`): rule 7. The next Turn runs at the next
pass of the event loop after the last one's answers, so that it finds the requests that they cause;
with peers it waits while more of them come (`TurnBatching`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import partial
from typing import Final

import structlog

from cluster.shards.answers import (
    GIVING_BACK,
    EarlyAnswers,
    ReadBarrier,
    RefusedReceives,
    UnderWay,
    answer_all,
    in_time,
    log_notice,
    refuse_all,
)
from cluster.shards.loading import prevented
from cluster.shards.shard_parts import LeadOwner, ShardParts, TurnTimes
from cluster.shards.shard_report import News
from cluster.shards.turn_timing import TURN_REQUESTS_MAX, Alarm, TurnBatching
from storage.engines.store import Store, StoreFailed
from storage.rows.entry_body import EntryBody, encode_body
from storage.rows.stored_rows import StoredRows
from visibility.contract.errors import QueueError, ServiceUnavailable
from visibility.contract.model import Request
from visibility.rules.decided import DamageMet, Decided, TurnFailed
from visibility.rules.events import Damage
from visibility.rules.turn import nothing_for, run
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp
from visibility.state.waiters import OnAnswer, Room, Ticket


class Takes(Enum):
    """The requests that a Lead takes."""

    ALL = 1
    GIVING_BACK = 2
    """The shard stops: other hosts ask for as long as this one leads."""
    NOTHING = 3
    """It is over."""


_ALL: Final = Takes.ALL
"""Read for each request: from the class it takes 0.2 µs."""
_NOTHING: Final = Takes.NOTHING


class Lead:
    """`begin` it, then `submit`; `end` it once."""

    def __init__(
        self,
        owner: LeadOwner,
        store: Store,
        rows: StoredRows,
        state: ShardState,
        parts: ShardParts,
        *,
        times: TurnTimes,
        log: structlog.stdlib.BoundLogger,
    ) -> None:
        """`state` is loaded from `rows`, which are those of the store."""
        self._rows = rows
        self._state = state
        self._under_way: deque[UnderWay] = deque()
        self._under_way_max = parts.under_way_max
        self._owner = owner
        self._followed = owner.followed
        self._store = store
        self._clock = parts.clock
        self._entropy = parts.entropy
        self._archive = parts.archive
        self._times = times
        self._log = log
        self._answer_all = partial(answer_all, log)
        self._takes = Takes.ALL
        self._inbox: deque[Ticket] = deque()
        self._deferred: list[Ticket] = []
        """Tickets to decide in the next Turn, before the inbox."""
        self._is_planned = False
        """True while a Turn is planned: soon, or once an Entry under way is committed."""
        self._alarm = Alarm(self._plan_turn)
        self._damage: Damage | None = None
        """Damage that no event can avoid: the next Turn gives way to a rebuild of the queue."""
        self._shared = shared = store.shared
        """The store if other hosts have its log too; only then there are the next two."""
        self._batching = TurnBatching(self._run_turn, lone_waits=shared is not None)
        self._barrier: ReadBarrier | None = None
        self._early: EarlyAnswers | None = None
        """None also if all answers wait for a majority."""
        if shared is not None:
            self._under_way_max = max(parts.under_way_max, shared.under_way_max)
            self._barrier = ReadBarrier(shared, self._under_way, self._answer_all)
            if shared.answers_early:
                self._early = EarlyAnswers(shared, self._answer_all)
        store.on_room(self._go_on)

    # -- begin and end -----------------------------------------------------------------------------

    def begin(self, now_ms: int, number: int, *, is_older: bool) -> None:
        """Commit the events that a crash prevented, and plan the first Turn of the shard with this
        number; see `prevented`."""
        state = self._state
        stamp = self._stamp(now_ms)
        if self._archive is not None:
            state.archive.is_on = True
            state.archive.size_max, state.archive.retains = self._archive
        new_id = self._entropy.bits128
        for decided in prevented(state, stamp, number, new_id, is_older=is_older):
            self._commit(decided, stamp)
            if self._takes is _NOTHING:
                break
        self._plan_turn()

    def check_queues(self) -> None:
        """Have all queues checked now."""
        now_ms = self._clock.now_ms()
        for queue in self._state.queues.values():
            self._state.plan_pulse(queue, now_ms)
        self._plan_turn()

    def end_long_polls(self) -> None:
        """Answer every parked request now, empty, and park no more."""
        self._state.waits.is_open = False
        self._answer_all([(each, nothing_for(each)) for each in self._state.waits.take_all()])

    def stop_taking(self) -> None:
        """Take no more requests but those that give messages back."""
        self._takes = Takes.GIVING_BACK

    @property
    def is_pending(self) -> bool:
        """True while there are requests that are not answered, besides long polls."""
        return bool(self._inbox or self._deferred or self._under_way or self._barrier)

    def end(self, refused: RefusedReceives | None = None) -> None:
        """Refuse everything unreleased. The outcome of what was decided is unknown: `refused` notes
        its receives."""
        self._takes = Takes.NOTHING
        tickets = [ticket for entry in self._under_way for ticket, _ in entry.answers]
        for held in (self._barrier, self._early):
            if held is not None:
                tickets += [ticket for ticket, _ in held.take_all()]
        tickets += [*self._state.waits.take_all(), *self._deferred]
        undecided = list(self._inbox)
        if refused is not None:
            refused.note(self._under_way)
        self._under_way.clear()
        self._deferred = []
        self._inbox.clear()
        self._is_planned = False
        self._alarm.cancel()
        self.refuse(tickets)
        self.refuse(undecided, self._owner.undecided())

    def refuse(self, tickets: Sequence[Ticket], refusal: QueueError | None = None) -> None:
        """Refuse each ticket once, although a failed Turn may have parked or answered some."""
        for ticket in {id(ticket): ticket for ticket in tickets}.values():
            self._state.waits.remove(ticket.number)
            refuse_all(self._log, [ticket], refusal or ServiceUnavailable())

    # -- requests ----------------------------------------------------------------------------------

    def submit(
        self, request: Request, on_answer: OnAnswer, age_ms: int = 0, room: Room | None = None
    ) -> Ticket:
        """Put a request into the inbox; `on_answer` is called once, later."""
        ticket = Ticket(request, on_answer, age_ms=age_ms, room=room)
        self.take(ticket)
        return ticket

    def take(self, ticket: Ticket) -> None:
        """The same for a ticket that there is already."""
        if self._takes is not _ALL and type(ticket.request.operation) not in GIVING_BACK:
            refusal = self._owner.undecided()
            asyncio.get_running_loop().call_soon(refuse_all, self._log, [ticket], refusal)
            return
        self._inbox.append(ticket)
        if not self._is_planned:
            self._plan_turn()

    def submit_all(
        self, requests: Iterable[Request], on_answers: Iterable[OnAnswer]
    ) -> list[Ticket]:
        """Submit several first tries, none of a receive, each with the receiver of its answer."""
        tickets = list(map(Ticket, requests, on_answers))
        if self._takes is _ALL:
            self._inbox.extend(tickets)
            if not self._is_planned:
                self._plan_turn()
        else:
            for ticket in tickets:
                self.take(ticket)
        return tickets

    # -- the Turn ----------------------------------------------------------------------------------

    def _plan_turn(self) -> None:
        """Run a Turn once the loop has read the input, and an Entry may be appended."""
        if not self._is_planned:
            self._is_planned = True
            if len(self._under_way) < self._under_way_max:
                asyncio.get_running_loop().call_soon(self._run_turn)

    def _go_on(self) -> None:
        """Run the Turn that waited for a commit, or for the end of a flush."""
        if self._is_planned:
            asyncio.get_running_loop().call_soon(self._run_turn)

    def _run_turn(self) -> None:
        if not self._is_planned or len(self._under_way) >= self._under_way_max:
            return  # a commit runs the planned Turn
        if self._takes is _NOTHING:
            return
        if not self._store.has_room:
            return  # the end of a flush runs it
        if self._batching.goes_on(len(self._inbox)):
            return
        self._is_planned = False
        damage, self._damage = self._damage, None
        if damage is not None and self._owner.rebuilds(damage):
            return
        state = self._state
        now_ms = self._clock.now_ms()
        stamp = self._stamp(now_ms)
        deferred, self._deferred = self._deferred, []
        tickets = self._take_inbox()
        begun_s = self._clock.monotonic_s()
        state.quarantines = self._shared is None or self._shared.quarantines
        try:
            decided = run(state, stamp, deferred, tickets)
        except DamageMet as error:
            self._owner.on_damage(error, tickets)
            return
        except TurnFailed as error:
            self._log.exception("turn_failed")
            self._owner.on_failure(StoreFailed(str(error)), error.tickets)
            return
        self._deferred = decided.deferred
        self._inbox.extendleft(reversed(decided.untaken))
        if decided.deferred or decided.untaken or state.due or state.to_wake:
            self._plan_turn()
        self._alarm.set(state.deadlines.next_at_ms(), now_ms)
        self._commit(decided, stamp)
        if decided.departs:
            self._owner.tell(News.DEPARTURES)
        if decided.locks:
            self._owner.tell(News.LOCKS)
        if decided.damage is not None and self._shared is None:
            self._damage = decided.damage
            self._plan_turn()
        taken_s = self._clock.monotonic_s() - begun_s
        self._times.seconds.observe(taken_s)
        self._times.requests.observe(len(tickets) - len(decided.untaken))
        if self._times.sample is not None:
            self._times.sample.see(tickets, taken_s)

    def _stamp(self, now_ms: int) -> Stamp:
        return Stamp(now_ms, self._entropy.bits128, self._clock.trusted_ms(now_ms))

    def _take_inbox(self) -> list[Ticket]:
        if len(self._inbox) <= TURN_REQUESTS_MAX:
            tickets = list(self._inbox)
            self._inbox.clear()
            return tickets
        self._plan_turn()
        return [self._inbox.popleft() for _ in range(TURN_REQUESTS_MAX)]

    # -- the Entry, and its answers ----------------------------------------------------------------

    def _commit(self, decided: Decided, stamp: Stamp) -> None:
        """Append the Entry, and hold the Turn's answers until it is committed."""
        for notice in decided.notices:
            log_notice(notice, self._log)
        changes, answers = self._rows.take_changes(), decided.answers
        if self._early is not None:
            answers = self._early.hold(answers, has_entry=bool(changes))
        if not changes:
            if self._barrier is not None and decided.answers:  # also if all of them left early:
                self._barrier.hold(answers)  # without peers it must not lead on
            elif self._under_way:
                self._under_way[-1].answers.extend(answers)
            else:
                self._answer_all(answers)
            return
        is_followed = self._followed.concerns(decided.queue_ids)
        begun_s = self._clock.monotonic_s()
        self._under_way.append(UnderWay(changes, answers, stamp.now_ms, begun_s, is_followed))
        body = EntryBody(stamp.now_ms, decided.request_ids, changes.ops)
        try:
            self._store.append(encode_body(body), decided.queue_ids)
            self._store.sync(self._committed)
            if self._early is not None:
                self._early.appended()
        except Exception as error:
            if not isinstance(error, StoreFailed):
                self._log.exception("append_failed")
                error = StoreFailed("an append failed; the shard is loaded anew")
            if self._takes is not _NOTHING:  # a replica that failed was deposed before
                self._owner.on_failure(error)

    def _committed(self, failure: StoreFailed | None) -> None:
        """Release the answers of the oldest Entry, now committed; then apply it to the rows."""
        if self._takes is _NOTHING:
            return
        if failure is not None:
            self._owner.on_failure(failure)
            return
        entry = self._under_way.popleft()
        held_s = self._clock.monotonic_s() - entry.begun_s
        self._answer_all(in_time(entry, held_s, self._owner.submit))
        try:
            self._store.apply(entry.changes)
        except StoreFailed as error:
            self._owner.on_failure(error)
            return
        self._rows.forget(entry.changes)
        if entry.is_followed:
            self._followed.tell(entry.changes.ops)
        self._go_on()
