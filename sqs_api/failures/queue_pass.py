"""QueuePass: counts the messages of one queue, or part of one, on the host that leads its shard.

    notes     what was counted before, of spans that have not changed since
    pages     the delayed messages, then all others, page by page behind a cursor
    rows      what committed Entries change meanwhile and later (`on_row`)

A message that leaves is forgotten, whether it was reached or not; one that comes ahead of the
cursor is found by the next page; one that comes behind it, such as one whose move failed, is looked
up. So the counts are those of the rows once all pages were read, and stay so. What rows do not tell
one by one, such as a quarantine, begins the count anew. Messages of a note are behind the cursor:
it passes by their spans. What was counted is noted in turn (`take_notes`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from enum import IntEnum

import msgspec

from sqs_api.failures.counted_failures import Counted, Dead
from sqs_api.failures.span_notes import Notes, Unnoted, content_of, note_of
from visibility.content.content import unpack
from visibility.content.failures import Failure, failure_of
from visibility.contract.errors import QueueError, ServiceUnavailable
from visibility.contract.model import QueueDefinition
from visibility.contract.outcomes import BrowsedPage, FailureNote
from visibility.contract.stored_message import StoredMessage
from visibility.rows.row_keys import DELAYED, MESSAGE, QUARANTINED, SPAN_BITS, number_of, pair_of
from visibility.rules.browse import BrowseMessages
from visibility.rules.failure_notes import SPANS_MAX

_NOT_DELAYED = -1
_PAGE_MESSAGES = 100
"""Opened and counted without a pause: a few milliseconds."""
PENDING_MAX = 1_000
"""Messages to look up one by one; beyond that the count begins anew."""
UNREADABLE = Failure((("text", "cannot be opened"),))

Browse = Callable[[QueueDefinition, BrowseMessages], Awaitable[BrowsedPage]]
"""Asks the shard, on this host. Raises QueueError."""
Open = Callable[[StoredMessage], bytes | None]
"""The content of a message. Raises QueueError."""


class _Stage(IntEnum):
    """The rows that are read."""

    NOTES = 0
    DELAYED = 1
    OTHERS = 2


class QueuePass:
    """One step runs at a time."""

    def __init__(self, queue: QueueDefinition, notes: Notes) -> None:
        self.queue = queue
        self._notes = notes
        self.counted = Counted()
        self.has_room = True
        """False while the host counts too many messages: then the cursor stays."""
        self._anew = False
        self._forgets = False
        """True if the notes do not count any more: they are removed first."""
        self._begin()

    def _begin(self) -> None:
        self.counted = Counted()
        self._stage = _Stage.NOTES
        self._from_span = 0
        self._after = (0, 0)
        self._noted: set[int] = set()
        """Spans that were counted from notes and that the cursor has not passed."""
        self._timed: set[int] = set()
        """Spans with messages that have a time to live, whose notes depend on the retention."""
        self._unfit: set[int] = set()
        """Spans that get no note, since one of their messages may not be in one."""
        self._delayed: Counter[int] = Counter()
        """Delayed messages by span, which get no note meanwhile: a span does not tell of them."""
        self.unnoted = Unnoted()
        self._is_at_end = False
        self._comes = 0
        """Rows of messages that came, ever."""
        self._is_reading = False
        self._left: set[int] = set()
        """Sequences that left while a page is read."""
        self._ahead: set[int] = set()
        """Sequences that came ahead of the cursor meanwhile."""
        self._touched: set[int] = set()
        """Spans that changed while notes are read."""
        self._pending: set[tuple[int, int]] = set()
        """Ends of delays and sequences of messages to look up."""
        self._anew = False

    @property
    def _retention_ms(self) -> int:
        return self.queue.settings.retention_ms

    @property
    def is_exact(self) -> bool:
        """True if the counts are those of the rows of all committed Entries."""
        return self._is_at_end and not self._pending and not self._anew

    @property
    def has_work(self) -> bool:
        """True if a step would do something."""
        return not self.is_exact and (self.has_room or self._anew)

    @property
    def is_loading(self) -> bool:
        """True until the notes are read, which takes no long time."""
        return self._stage is _Stage.NOTES or self._anew

    def begin_anew(self) -> None:
        """Forget the counts at the next step: rows may have changed unseen."""
        self._anew = True

    def count_anew(self) -> None:
        """Forget the counts and the notes at the next step."""
        self._anew = self._forgets = True

    # -- rows --------------------------------------------------------------------------------------

    def on_row(self, key: bytes, change: object) -> None:
        """See a change of a row of this queue."""
        table = key[8:9]
        if type(change) is list:  # a range
            if table <= DELAYED:
                self._anew = True
        elif table == MESSAGE:
            self._change((_NOT_DELAYED, number_of(key)), is_there=change is not None)
        elif table == DELAYED:
            self._change(pair_of(key), is_there=change is not None)
        elif table == QUARANTINED:
            self._anew = True

    def _change(self, place: tuple[int, int], *, is_there: bool) -> None:
        due_ms, sequence = place
        span = sequence >> SPAN_BITS
        if due_ms == _NOT_DELAYED:
            self.unnoted.changed(span)
            if self.is_loading:
                self._touched.add(span)
        if not is_there:
            if self.counted.remove(sequence) and due_ms != _NOT_DELAYED:
                self._delayed[span] -= 1
            if self._is_reading:
                self._left.add(sequence)
            self._pending.discard(place)
            return
        self._comes += 1
        self._left.discard(sequence)
        if self._is_ahead(place):
            self._is_at_end = False
            if self._is_reading:
                self._ahead.add(sequence)
            return
        self._pending.add(place)
        if len(self._pending) > PENDING_MAX:
            self._anew = True

    def _is_ahead(self, place: tuple[int, int]) -> bool:
        """True if the cursor will come to a message."""
        due_ms, sequence = place
        if due_ms != _NOT_DELAYED:
            return self._stage < _Stage.DELAYED or (
                self._stage is _Stage.DELAYED and place > self._after
            )
        if sequence >> SPAN_BITS in self._noted:
            return False
        return self._stage < _Stage.OTHERS or sequence > self._after[1]

    # -- pages -------------------------------------------------------------------------------------

    async def step(self, browse: Browse, open_: Open) -> int:
        """Read and count a page; returns the number of messages. Raises QueueError."""
        if self._anew:
            if self._forgets:
                await self._notes.forget(self.queue)
                self._forgets = False
            self._begin()
        if self._stage is _Stage.NOTES:
            return await self._load()
        if self._pending:
            return await self._look_up(browse, open_)
        comes = self._comes
        is_delayed = self._stage is _Stage.DELAYED
        look = BrowseMessages(is_delayed, self._after, _PAGE_MESSAGES)
        page = await self._page(browse, look)
        if self._anew:
            return 0
        for found in page.messages:
            if not is_delayed and found.sequence >> SPAN_BITS in self._noted:
                self._pass_by(found.sequence >> SPAN_BITS)
                break
            if found.sequence not in self._left:
                self._count(found.sequence, found.message, open_, is_delayed=is_delayed)
            self._after = (found.due_ms if is_delayed else 0, found.sequence)
        else:
            if page.next_token is not None:
                self._after = page.next_token
            elif is_delayed:
                self._stage, self._after = _Stage.OTHERS, (0, 0)
            else:
                self._is_at_end = comes == self._comes
        for sequence in self._ahead:  # it may have come behind what the page shows
            is_behind = self._stage is _Stage.OTHERS and sequence <= self._after[1]
            if is_behind and sequence not in self.counted:
                self._pending.add((_NOT_DELAYED, sequence))
        return len(page.messages)

    async def _page(self, browse: Browse, look: BrowseMessages) -> BrowsedPage:
        """Read a page, and see what comes and goes meanwhile."""
        self._left.clear()
        self._ahead.clear()
        self._is_reading = True
        try:
            return await browse(self.queue, look)
        finally:
            self._is_reading = False

    def _pass_by(self, span: int) -> None:
        """Move the cursor behind the messages of notes."""
        while span in self._noted:
            self._noted.discard(span)
            self._after = (0, max(self._after[1], self.counted.last_of(span)))
            span += 1

    async def _look_up(self, browse: Browse, open_: Open) -> int:
        due_ms, sequence = place = next(iter(self._pending))
        comes = self._comes
        is_delayed = due_ms != _NOT_DELAYED
        look = BrowseMessages(is_delayed, (due_ms if is_delayed else 0, sequence - 1), 1)
        page = await self._page(browse, look)
        found = page.messages[0] if page.messages else None
        if found is not None and found.sequence == sequence and sequence not in self._left:
            self._count(sequence, found.message, open_, is_delayed=is_delayed)
        if comes == self._comes:
            self._pending.discard(place)
        return 1

    def _count(
        self, sequence: int, message: StoredMessage, open_: Open, *, is_delayed: bool
    ) -> None:
        data = _opened(message, open_)
        failure, span = UNREADABLE, sequence >> SPAN_BITS
        if data is not None:
            _, body, extras = unpack(data)
            failure = failure_of(body, extras)
        retained_ms = message.retained_from_ms
        if message.expires_ms:
            self._timed.add(span)
            retained_ms = min(retained_ms, max(0, message.expires_ms - self._retention_ms))
        source = (message.dead_letter_source_arn or "").rpartition(":")[2]
        seen_ms = message.joined_at_ms or message.sent_at_ms
        dead = Dead(sequence, failure, source, seen_ms // 1000, retained_ms // 1000)
        if not self.counted.add(dead):
            return
        self.unnoted.changed(span)
        if is_delayed:
            self._delayed[span] += 1
        if data is None or not self._notes.may_note(message, self.queue):
            self._unfit.add(span)

    # -- notes -------------------------------------------------------------------------------------

    async def _load(self) -> int:
        """Count a page of notes, in place of their messages."""
        self._touched.clear()
        page = await self._notes.read(self.queue, self._from_span)
        if self._anew:
            return 0
        for note in page.notes:
            content = content_of(note, self._notes) if note.span not in self._touched else None
            if content is None or content.retention_ms not in (0, self._retention_ms):
                continue
            if not self.counted.load(note.span, note.sequences, content):
                self.count_anew()
                return 0
            self._noted.add(note.span)
            if content.retention_ms:
                self._timed.add(note.span)
        if page.next_span is None:
            self._stage = _Stage.DELAYED
        else:
            self._from_span = page.next_span
        return len(page.notes)

    async def take_notes(self) -> None:
        """Note the spans that are due, unless they change just now. Raises QueueError."""
        if self.is_loading or self._pending:
            return
        unnoted = self.unnoted
        opens: list[int] = []
        for span in list(unnoted.due()):
            if span in self._unfit or not self.counted.last_of(span):
                unnoted.give_up(span)
            elif self._is_whole(span) and len(opens) < SPANS_MAX:
                opens.append(span)
        if not opens:
            return
        await self._notes.keep(self.queue, [], opens)
        kept: list[int] = []
        if not self.is_loading and not self._pending:
            numbers = unnoted.numbers(filter(self._is_whole, opens))
            notes = [note for span in numbers if (note := self._note(span)) is not None]
            kept = await self._notes.keep(self.queue, notes, [])
            unnoted.noted({span: numbers[span] for span in kept})
        unnoted.put_off(set(opens).difference(kept))

    def _is_whole(self, span: int) -> bool:
        """True if all messages of a span are counted, and none waits for the end of a delay."""
        is_read = self._is_at_end or (
            self._stage is _Stage.OTHERS and self._after[1] >= (span + 1 << SPAN_BITS) - 1
        )
        return is_read and span not in self._unfit and self._delayed[span] <= 0

    def _note(self, span: int) -> FailureNote | None:
        counted = self.counted.note(span)
        note = None
        if counted is not None:
            sequences, content = counted
            if span in self._timed:
                content = msgspec.structs.replace(content, retention_ms=self._retention_ms)
            note = note_of(span, sequences, content, self.queue, self._notes)
        if note is None:
            self._unfit.add(span)
        return note


def _opened(message: StoredMessage, open_: Open) -> bytes | None:
    try:
        return open_(message)
    except ServiceUnavailable:  # its key is not here yet
        raise
    except QueueError:  # its key is disabled: it is counted all the same
        return None
