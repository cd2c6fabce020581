"""Turn: one pass of a shard over the requests that waited.

It lets time pass, decides each request, applies and writes what that changes, and serves the long polls for which a message
became visible. Everything it changes is made durable by one commit; a decision that reads rows which this very turn changed
has them written (not synced) first, queue rows included, so that a crash in between leaves whole decisions.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import structlog

from cluster.shards.clock import Entropy
from storage.engines.store import Store, StoreFailed
from storage.rows.appliers import APPLIERS, Moved, write_archive, write_queue
from storage.rows.codec import ArchiveRow, DamagedRecord, QueueRow
from storage.rows.keys import MESSAGE, group_name, message_key, message_name
from storage.rows.stored_rows import StoredRows
from visibility.contract.errors import InternalError, QueueDoesNotExist, QueueError
from visibility.contract.model import Request
from visibility.contract.operations import CloseQueue, ReceiveMessage
from visibility.contract.outcomes import Answer, Deliveries, NoAnswer
from visibility.rules.engine import DECIDE, Engine
from visibility.rules.pulse import STEPS, Step
from visibility.rules.receive import wait_ms
from visibility.state import window
from visibility.state.events import (
    THE_SHARD,
    BatchesArchived,
    BatchSealed,
    Event,
    IdsRemembered,
    LeasesEnded,
    MessagesDiscarded,
    MessagesExpired,
    MessagesHandedOver,
    MessagesMoved,
    MoveTask,
    MoveTaskChanged,
    QueueContinued,
    QueueDropped,
)
from visibility.state.stamp import Stamp
from visibility.state.waiters import Wait

NO_MESSAGES = Deliveries([], [])
PULSES_MAX = 100
"""Queues that get a pulse in one turn: bounds how long the event loop is held."""
PULSE_MESSAGES_MAX = 1_000
"""After so many messages that pulses moved or removed, the other queues wait for the next turn, for the same reason. A KiB
that the archive takes over, or that is sealed anew, counts as one more."""
_PULSE_AGAIN_MS = 60_000
"""When a queue is looked at again whose rows could not be read."""
_NOTHING_MOVED: Moved = {}
_OF_THE_ARCHIVE = (MessagesHandedOver, MessagesDiscarded, BatchSealed, BatchesArchived)
_log = structlog.get_logger("turn")

OnAnswer = Callable[[Answer | QueueError], None]


class Ticket(msgspec.Struct):
    """A submitted request and who waits for its answer. A msgspec Struct since those are made fastest."""

    request: Request
    on_answer: OnAnswer
    wait_number: int = 0
    """The long poll's number while it is parked, else 0."""
    until_ms: int = 0
    """When its waiting ends, once it has begun to wait."""
    is_cancelled: bool = False
    """Whether the client hung up: then it does not begin to wait."""


Answers = list[tuple[Ticket, Answer | QueueError]]
"""Who is answered what, in order."""


class Turn:
    """One pass. Made, run, committed, and forgotten."""

    __slots__ = (
        "_believed_ms",
        "_changed",
        "_engine",
        "_entropy",
        "_has_events",
        "_now_ms",
        "_parks",
        "_rows",
        "_store",
        "answers",
        "deferred",
    )

    def __init__(
        self,
        engine: Engine,
        store: Store,
        rows: StoredRows,
        now_ms: int,
        entropy: Entropy,
        *,
        believed_ms: int = 0,
        parks: bool,
    ) -> None:
        """`parks` is False while the shard stops: then no receive begins to wait. `believed_ms`: see Stamp."""
        self._engine = engine
        self._store = store
        self._rows = rows
        self._now_ms = now_ms
        self._believed_ms = believed_ms
        self._entropy = entropy
        self._parks = parks
        self.answers: Answers = []
        self.deferred: list[Ticket] = []
        """To be decided in the next turn."""
        self._changed: dict[int, None] = {}
        """Queues whose own rows are to be written, in order."""
        self._has_events = False

    def run(self, deferred: list[Ticket], tickets: list[Ticket]) -> None:
        """Let time pass up to now, then decide what the turn before deferred, and the new requests, in order.

        Raises StoreFailed.
        """
        self._rows.before_read = self._write
        self._rows.fresh.clear()
        engine = self._engine
        for wait in engine.advance(self._now_ms):
            self.answers.append((ticket_of(wait), NO_MESSAGES))
        if engine.due:
            handled = 0
            for queue_id in list(engine.due)[:PULSES_MAX]:
                if handled >= PULSE_MESSAGES_MAX:
                    break
                del engine.due[queue_id]
                handled += self._pulse(queue_id)
        for ticket in deferred:
            self._decide_later(ticket)
        for ticket in tickets:
            self._decide(ticket)
        if engine.stirred:
            self._wake()

    def note_archive(self) -> None:
        """Have the shard's knowledge of its archive written, though no event changed it."""
        self._has_events = True
        self._changed[THE_SHARD] = None

    def end_batch(self) -> bool:
        """Add the changed queues' own rows to the batch. Whether the turn has anything to commit."""
        if THE_SHARD in self._changed:
            del self._changed[THE_SHARD]
            self._write_archive()
        for queue_id in self._changed:
            queue = self._engine.state.queue(queue_id)
            spans = {span: queue.spans.get(span, 0) for span in queue.changed_spans}
            queue.changed_spans.clear()
            row = QueueRow(
                queue.next_sequence,
                queue.low_water,
                queue.waiting,
                0,
                queue.delayed,
                queue.heads.total,
                queue.aliases,
                queue.remembered_ms,
                queue.fifo,
                self._now_ms,
                queue.continues,
                queue.first_sequence,
            )
            write_queue(self._store.batch, queue_id, row, spans)
        self._changed.clear()
        return self._has_events

    def _write_archive(self) -> None:
        archive = self._engine.state.archive
        row = ArchiveRow(*(getattr(archive, name) for name in ArchiveRow.__struct_fields__))
        write_archive(self._store.batch, row)

    def _write(self) -> None:
        """Have reads see what was decided so far."""
        if self._changed:
            self.end_batch()
        self._store.write()

    def _stamp(self) -> Stamp:
        return Stamp(self._now_ms, self._entropy.bits128(), self._believed_ms)

    def _pulse(self, queue_id: int) -> int:
        """Do what time does to a queue, step by step; how many messages it did something to.

        A step that fails has changed nothing and is tried again.
        """
        handled = 0
        for step in STEPS:
            try:
                events, moved = self._pulse_step(queue_id, step)
            except StoreFailed:
                raise
            except Exception:
                _log.exception("pulse_failed", queue_id=queue_id)
                queue = self._engine.state.queue(queue_id)
                self._engine.state.plan_pulse(queue, self._now_ms + _PULSE_AGAIN_MS)
            else:
                for event in events:
                    self.do(event, moved)
                    if isinstance(event, MessagesExpired | LeasesEnded):
                        handled += len(event.leases)
                    elif isinstance(event, MessagesMoved):
                        handled += len(event.moves)
                        handled += sum(m.envelope.size for m in event.moves if m.resealed) >> 10
                    elif isinstance(event, MessagesHandedOver):
                        handled += event.size >> 10
        return handled

    def _pulse_step(self, queue_id: int, step: Step) -> tuple[tuple[Event, ...], Moved]:
        while True:
            try:
                events = self._engine.pulse(queue_id, step, self._stamp())
                return events, self._moved(events)
            except DamagedRecord as error:
                self._set_aside(error)

    def _decide(self, ticket: Ticket) -> None:
        request = ticket.request
        stamp = self._stamp()
        try:
            while True:
                try:
                    answer, events = DECIDE[type(request.operation)](
                        self._engine.state, request, stamp
                    )
                    moved = self._moved(events)
                except DamagedRecord as error:
                    self._set_aside(error)
                else:
                    break
        except QueueError as refusal:
            self.answers.append((ticket, refusal))
            return
        except StoreFailed:
            raise
        except Exception:  # deciding changes nothing, so only this request is lost
            _log.exception("decision_failed", request_id=request.request_id)
            self.answers.append((ticket, InternalError()))
            return
        for event in events:
            self.do(event, moved)
        if type(request.operation) is CloseQueue:
            self._close(request.queue.queue_id)
        if answer is NoAnswer.PARK:
            self._park(ticket)
        elif answer is NoAnswer.DEFER:
            self.deferred.append(ticket)
        else:
            assert not isinstance(answer, NoAnswer)
            self.answers.append((ticket, answer))

    def _set_aside(self, error: DamagedRecord) -> None:
        """A message that cannot be read stays where it is, and is passed by from here on; so is a group of a FIFO queue.

        Raises any other error.
        """
        name = message_name(error.key)
        if name is None:
            self._set_group_aside(error)
            return
        queue = self._engine.state.queue(name[0])
        is_known = error.key in self._rows.damaged
        if error.key[8:9] == MESSAGE and (name[1] in queue.entries or queue.fifo):
            if name[1] in queue.set_aside:
                raise error
            queue.set_aside.add(name[1])
        elif is_known:  # memory may have it still, and what was decided needs it from the disk
            if not window.discard(self._engine.state, queue, name[1]):
                raise error
            queue.unreadable += 1
            queue.passes_by = True
        if is_known:
            return
        self._rows.damaged.add(error.key)
        _log.error("record_damaged", queue_id=name[0], error=str(error))

    def _set_group_aside(self, error: DamagedRecord) -> None:
        name = group_name(error.key)
        if name is None:
            raise error
        queue = self._engine.state.queue(name[0])
        if not queue.fifo or name[1] in queue.set_aside_groups:
            raise error
        queue.set_aside_groups.add(name[1])
        self._rows.damaged.add(error.key)
        _log.error("group_damaged", queue_id=name[0], error=str(error))

    def _moved(self, events: tuple[Event, ...]) -> Moved:
        """The messages that these events move. Raises DamagedRecord."""
        moved: dict[int, object] = {}
        for event in events:
            if type(event) is MessagesMoved:
                moved |= self._read_moved(event)
            elif type(event) is MessagesHandedOver:
                sequences = [lease.sequence for lease in event.leases]
                moved |= self._read_present(event.queue_id, sequences)
        return moved or _NOTHING_MOVED  # type: ignore[return-value]

    def _read_moved(self, event: MessagesMoved) -> dict[int, object]:
        queue_id = event.queue_id
        found: dict[int, object] = {
            move.lease.sequence: self._rows.delayed_message(
                queue_id, move.due_ms, move.lease.sequence
            )
            for move in event.moves
            if move.due_ms >= 0
        }
        sequences = [move.lease.sequence for move in event.moves if move.due_ms < 0]
        return found | self._read_present(queue_id, sequences)

    def _read_present(self, queue_id: int, sequences: list[int]) -> dict[int, object]:
        found: dict[int, object] = {}
        messages = self._rows.messages(queue_id, sequences)
        for sequence, message in zip(sequences, messages, strict=True):
            if message is None:
                raise DamagedRecord(message_key(queue_id, sequence), "it is missing")
            found[sequence] = message
        return found

    def _park(self, ticket: Ticket) -> None:
        if not self._parks or ticket.is_cancelled:
            self.answers.append((ticket, NO_MESSAGES))
        elif not ticket.wait_number:
            request = ticket.request
            assert isinstance(request.operation, ReceiveMessage)
            if not ticket.until_ms:
                ticket.until_ms = self._now_ms + wait_ms(request.operation, request.queue.settings)
            wait = self._engine.park(request, ticket, ticket.until_ms)
            ticket.wait_number = wait.number

    def _wake(self) -> None:
        """Give messages that became visible to the receives that wait for them, longest waiting first."""
        waits = self._engine.state.waits
        stirred = self._engine.stirred
        while stirred:
            queue_id = next(iter(stirred))
            del stirred[queue_id]
            while (wait := waits.first(queue_id)) is not None:
                ticket = ticket_of(wait)
                before = len(self.answers) + len(self.deferred)
                self._decide_later(ticket)
                if len(self.answers) + len(self.deferred) == before:
                    break
                waits.remove(wait.number)
                ticket.wait_number = 0

    def _decide_later(self, ticket: Ticket) -> None:
        """Decide a request that waited, by the definitions of now: its queue or the dead letters' may have changed."""
        renewed = self._engine.state.definitions.renewed(ticket.request)
        if renewed is None:
            self.answers.append((ticket, QueueDoesNotExist()))
        else:
            ticket.request = renewed
            self._decide(ticket)

    def do(self, event: Event, moved: Moved = _NOTHING_MOVED) -> None:
        """Apply an event to memory and put it into the batch. `moved` has the messages it moves, by sequence."""
        heirs = self._engine.state.continuing(event.queue_id) if type(event) is QueueDropped else ()
        self._engine.apply(event)
        self._has_events = True
        for heir in heirs:
            self._changed[heir.queue_id] = None
        self._changed[event.queue_id] = None
        APPLIERS[type(event)](self._store.batch, event, moved)
        kind = type(event)
        if kind is MessagesMoved:
            assert isinstance(event, MessagesMoved)
            for move in event.moves:
                self._changed[move.target_queue_id] = None
        elif kind is IdsRemembered:
            assert isinstance(event, IdsRemembered)
            for digest, remembered in event.ids:
                self._rows.fresh[event.queue_id, digest] = remembered
        elif kind is MoveTaskChanged:
            assert isinstance(event, MoveTaskChanged)
            _log_end(event.task)
        elif kind in _OF_THE_ARCHIVE:
            self._changed[THE_SHARD] = None
        elif kind is QueueContinued:
            assert isinstance(event, QueueContinued)
            self._changed[event.successor_id] = None
            self._hand_on_polls(event.queue_id)
        elif kind is QueueDropped:
            del self._changed[event.queue_id]
            self._close(event.queue_id)

    def _hand_on_polls(self, queue_id: int) -> None:
        """Long polls of a purged queue wait at the one that continues it."""
        waits = self._engine.state.waits
        for wait in waits.of_queue(queue_id):
            waits.remove(wait.number)
            ticket = ticket_of(wait)
            ticket.wait_number = 0
            self.deferred.append(ticket)

    def _close(self, queue_id: int) -> None:
        """End the long polls of a queue that is gone."""
        waits = self._engine.state.waits
        for wait in waits.of_queue(queue_id):
            waits.remove(wait.number)
            self.answers.append((ticket_of(wait), QueueDoesNotExist()))


def _log_end(task: MoveTask) -> None:
    """ListMessageMoveTasks has no field for the messages that stayed."""
    if not task.is_active:
        _log.info(
            "move_task_ended",
            source_arn=task.source_arn,
            status=task.status,
            reason=task.failure_reason,
            moved=task.moved,
            stayed=task.stayed,
        )


def ticket_of(wait: Wait) -> Ticket:
    """Who waits."""
    assert isinstance(wait.ticket, Ticket)
    return wait.ticket
