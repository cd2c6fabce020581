"""The count of a queue's failures, while messages come and go between any two steps of it."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import cast

import msgspec
import pytest

from sqs_api.failures import counted_failures, queue_pass
from sqs_api.failures.counted_failures import Counted
from sqs_api.failures.queue_pass import PENDING_MAX, QueuePass
from sqs_api.failures.span_notes import LATE_LOOKS, QUIET_LOOKS, Notes, content_of
from visibility.content.content import Extras, unpack, with_body
from visibility.content.noted_failures import NOTE_VERSION
from visibility.contract.errors import KmsDisabled, ServiceUnavailable
from visibility.contract.model import QueueDefinition
from visibility.contract.outcomes import Browsed, BrowsedPage, FailureNote, FailureNotesPage
from visibility.contract.stored_message import StoredMessage
from visibility.rows.row_keys import (
    DELAYED,
    MESSAGE,
    QUARANTINED,
    message_key,
    number_of,
    pair_key,
    row_key,
)
from visibility.rules import failure_notes
from visibility.rules.browse import BrowseMessages
from visibility.tests import prepared

Q = prepared.queue_named("dead", 5)
_PAGE = 4
_SPAN_BITS = 3
UNFIT = "under another key"


@pytest.fixture(autouse=True)
def short_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans of eight sequences."""
    for module in (queue_pass, counted_failures, failure_notes):
        monkeypatch.setattr(module, "SPAN_BITS", _SPAN_BITS)
    monkeypatch.setattr(counted_failures, "OFFSET", (1 << _SPAN_BITS) - 1)


class Rows:
    """The rows of a queue with its notes, and changes of them that happen while a page is on its
    way."""

    def __init__(self, seed: int) -> None:
        self.notes: dict[int, FailureNote] = {}
        self.opened: set[int] = set()
        self.expires_ms = 0
        self.read_alone = 0
        """Messages that were read."""
        self.random = Random(seed)
        self.waiting: dict[int, str] = {}
        self.delayed: dict[tuple[int, int], str] = {}
        self.next_sequence = 1
        self.counting = QueuePass(Q, cast(Notes, self))
        self.untold: list[tuple[bytes, object]] = []
        """Changes of Entries that are not committed yet."""

    def _tell(self, key: bytes, change: object) -> None:
        self.untold.append((key, change))
        if key[8:9] == MESSAGE:
            self.notes.pop(number_of(key) >> _SPAN_BITS, None)
            self.opened.discard(number_of(key) >> _SPAN_BITS)

    def commit(self) -> None:
        for key, change in self.untold:
            self.counting.on_row(key, change)
        self.untold.clear()

    def put(self, sequence: int | None = None) -> None:
        if sequence is None:
            sequence, self.next_sequence = self.next_sequence, self.next_sequence + 1
        self.waiting[sequence] = self.random.choice("abc")
        self._tell(message_key(Q.queue_id, sequence), b"")

    def delay(self) -> None:
        sequence, self.next_sequence = self.next_sequence, self.next_sequence + 1
        place = (self.random.randrange(9), sequence)
        self.delayed[place] = self.random.choice("abc")
        self._tell(pair_key(Q.queue_id, DELAYED, *place), b"")

    def change(self) -> None:
        """Something happens."""
        chance = self.random.random()
        if chance < 0.4:
            self.put()
        elif chance < 0.5:
            self.delay()
        elif chance < 0.6 and self.delayed:
            place = self.random.choice(sorted(self.delayed))
            self.waiting[place[1]] = self.delayed.pop(place)
            self._tell(pair_key(Q.queue_id, DELAYED, *place), None)
            self._tell(message_key(Q.queue_id, place[1]), b"")
        elif chance < 0.7 and self.next_sequence > 1:
            gone = set(range(1, self.next_sequence)) - self.waiting.keys()
            gone -= {sequence for _, sequence in self.delayed}
            if gone:
                self.put(self.random.choice(sorted(gone)))  # back in its place
        elif self.waiting:
            sequence = self.random.choice(sorted(self.waiting))
            del self.waiting[sequence]
            self._tell(message_key(Q.queue_id, sequence), None)
        if self.random.random() < 0.5:
            self.commit()

    async def browse(self, queue: QueueDefinition, look: BrowseMessages) -> BrowsedPage:
        """A page as of some moment; its answer leaves once all that it saw is committed."""
        self._some_changes()
        after = look.after or (0, 0)
        limit = min(look.limit, _PAGE)
        found = (
            [(*place, kind) for place, kind in sorted(self.delayed.items()) if place > after]
            if look.delayed
            else [(0, at, kind) for at, kind in sorted(self.waiting.items()) if at > after[1]]
        )
        page = [
            Browsed(sequence, "visible", message(kind, self.expires_ms), None, due_ms)
            for due_ms, sequence, kind in found[:limit]
        ]
        token = (page[-1].due_ms, page[-1].sequence) if len(found) > limit else None
        self.commit()
        self._some_changes()
        return BrowsedPage(page, token)

    def restart(self) -> None:
        """All that happened is in the rows, and what was counted is forgotten."""
        self.untold.clear()
        self.opened.clear()
        self.counting = QueuePass(Q, cast(Notes, self))

    # -- notes -------------------------------------------------------------------------------------

    async def read(self, queue: QueueDefinition, from_span: int) -> FailureNotesPage:
        self._some_changes()
        found = sorted(span for span in self.notes if span >= from_span)
        page = [self.notes[span] for span in found[:2]]
        self.commit()
        self._some_changes()
        return FailureNotesPage(page, found[2] if len(found) > 2 else None)

    async def keep(
        self, queue: QueueDefinition, notes: list[FailureNote], opens: list[int]
    ) -> list[int]:
        self._some_changes()
        kept = [note for note in notes if note.span in self.opened]
        self.notes |= {note.span: note for note in kept}
        self.opened = set(opens)
        self.commit()
        self._some_changes()
        return [note.span for note in kept]

    async def forget(self, queue: QueueDefinition) -> None:
        self.notes.clear()

    def may_note(self, message: StoredMessage, queue: QueueDefinition) -> bool:
        return unpack(message.data)[1] != UNFIT

    def seal(self, queue: QueueDefinition, content: bytes) -> tuple[int, bytes]:
        return 7, content[::-1]

    def open(self, number: int, data: bytes) -> bytes | None:
        return data[::-1] if number == 7 else None

    def is_true(self, note: FailureNote) -> bool:
        """A note is that of the messages which are there."""
        content = content_of(note, cast(Notes, self))
        assert content is not None
        counts = Counted()
        assert counts.load(note.span, note.sequences, content)
        there = {at: kind for at, kind in self.waiting.items() if at >> _SPAN_BITS == note.span}
        return counted(counts) == Counter(there.values()) and all(at in counts for at in there)

    def _some_changes(self) -> None:
        for _ in range(self.random.choice((0, 0, 0, 1, 3))):
            self.change()

    async def step(self) -> None:
        self.read_alone += await self.counting.step(self.browse, lambda stored: stored.data)

    async def counted(self) -> dict[str, int]:
        """The counts, once they are exact and nothing is under way."""
        self.commit()
        self._some_changes = lambda: None  # type: ignore[method-assign]
        while not self.counting.is_exact:
            await self.step()
        return self.shown()

    def shown(self) -> dict[str, int]:
        return counted(self.counting.counted)

    def there(self) -> dict[str, int]:
        """The messages of the rows."""
        return Counter([*self.waiting.values(), *self.delayed.values()])


def counted(counts: Counted) -> dict[str, int]:
    groups = counts.groups.values()
    return {g.failure.signs[0][1]: g.messages for g in groups if g.failure is not None}


def message(kind: str, expires_ms: int = 0) -> StoredMessage:
    empty = bytes(20) + msgspec.msgpack.encode(Extras("me"))
    data = with_body(empty, kind)
    return StoredMessage("id", 100_000_000, 1, data, expires_ms=expires_ms)


@pytest.mark.parametrize("seed", range(40))
async def test_counts_are_those_of_the_rows(seed: int) -> None:
    rows = Rows(seed)
    for _ in range(rows.random.randrange(60)):
        rows.change()
    rows.untold.clear()  # from before it was followed
    for _ in range(rows.random.randrange(400)):
        await rows.step()
        if rows.counting.is_exact and not rows.untold:
            assert rows.shown() == rows.there()
        for _ in range(rows.random.choice((0, 0, 1, 2))):
            rows.change()
        if rows.random.random() < 0.5:
            await rows.counting.take_notes()
        assert all(map(rows.is_true, rows.notes.values()))
        if rows.random.random() < 0.02:
            rows.restart()

    assert await rows.counted() == rows.there()


async def noted(messages: int, unfit: int | None = None) -> Rows:
    """A queue whose messages were counted, and noted; one may not be in a note."""
    rows = Rows(0)
    for _ in range(messages):
        rows.put()
    if unfit is not None:
        rows.waiting[unfit] = UNFIT
    await rows.counted()
    for _ in range(QUIET_LOOKS + messages):
        await rows.counting.take_notes()
    assert not rows.counting.unnoted
    rows.restart()
    return rows


async def test_what_was_noted_is_not_read_again() -> None:
    rows = await noted(100)
    rows.put(sequence=rows.next_sequence + 30)
    del rows.waiting[50]
    rows._tell(message_key(Q.queue_id, 50), None)
    rows.restart()
    rows.read_alone = 0

    assert await rows.counted() == rows.there()
    assert rows.read_alone < 30  # notes, the messages of one span, and those that tell where to go


async def test_messages_under_other_keys_are_never_noted() -> None:
    rows = await noted(100, unfit=20)

    assert rows.notes.keys() == set(range(13)) - {20 >> _SPAN_BITS}
    assert await rows.counted() == rows.there()


@pytest.mark.parametrize(
    "other",
    [{"version": NOTE_VERSION - 1}, {"sealed": 8}, {"data": b"no note"}],
    ids=["version", "key", "content"],
)
async def test_notes_that_cannot_be_used_are_made_anew(other: dict[str, object]) -> None:
    rows = await noted(100)
    before = dict(rows.notes)
    rows.notes = {span: msgspec.structs.replace(note, **other) for span, note in rows.notes.items()}

    assert await rows.counted() == rows.there()
    for _ in range(200):
        await rows.counting.take_notes()
    assert rows.notes == before


async def test_notes_of_messages_with_a_time_to_live_are_of_one_retention() -> None:
    """Their times depend on the retention of the queue."""
    rows = Rows(0)
    rows.expires_ms = 90_000_000
    rows.put()
    await rows.counted()
    for _ in range(10):
        await rows.counting.take_notes()
    rows.restart()
    rows.read_alone = 0
    await rows.counted()
    assert rows.read_alone == 2, "the note, and a message that tells where to go"

    rows.restart()
    rows.counting.queue = prepared.queue_named("dead", 5, MessageRetentionPeriod="60")
    rows.read_alone = 0
    await rows.counted()
    assert rows.read_alone == 2, "the note, which is of no use, and the message"
    (group,) = rows.counting.counted.groups.values()
    assert group.retained.first_s == 90_000 - 60


async def test_a_span_that_always_changes_is_tried_only_now_and_then() -> None:
    rows = Rows(0)
    rows.put()
    await rows.counted()
    keep, opened = rows.keep, list[int]()

    async def change_meanwhile(
        queue: QueueDefinition, notes: list[FailureNote], opens: list[int]
    ) -> list[int]:
        opened.extend(opens)
        kept = await keep(queue, notes, opens)
        rows.put()
        rows.commit()
        return kept

    rows.keep = change_meanwhile  # type: ignore[method-assign]
    for _ in range(3 * LATE_LOOKS):
        rows.put(1)
        await rows.counted()
        await rows.counting.take_notes()

    assert opened.count(0) == 3


async def test_nothing_is_remembered_while_nothing_is_read() -> None:
    rows = await noted(30)
    await rows.counted()
    for sequence in list(rows.waiting):
        del rows.waiting[sequence]
        rows._tell(message_key(Q.queue_id, sequence), None)
    rows.commit()

    counting = rows.counting
    assert [*counting._left, *counting._ahead, *counting._touched, *counting._pending] == []
    assert counting.counted.weight == 0


async def test_a_delayed_message_is_in_no_note() -> None:
    rows = Rows(1)
    for _ in range(6):
        rows.put()
    rows.delay()
    await rows.counted()
    for _ in range(50):
        await rows.counting.take_notes()
    assert rows.notes == {}

    rows.waiting[7] = rows.delayed.pop(next(iter(rows.delayed)))
    rows._tell(pair_key(Q.queue_id, DELAYED, 0, 7), None)
    rows._tell(message_key(Q.queue_id, 7), b"")
    await rows.counted()
    for _ in range(50):
        await rows.counting.take_notes()
    assert all(map(rows.is_true, rows.notes.values()))


async def test_a_count_anew_forgets_the_notes_first() -> None:
    rows = await noted(30)
    await rows.counted()
    rows.counting.count_anew()
    await rows.step()

    assert rows.notes == {}
    assert await rows.counted() == rows.there()


async def test_what_rows_do_not_tell_begins_the_count_anew() -> None:
    for key, change in (
        (row_key(Q.queue_id, QUARANTINED, 0), b""),
        (row_key(Q.queue_id, MESSAGE, 0), [b"end"]),
    ):
        rows = Rows(0)
        for _ in range(9):
            rows.put()
        assert sum((await rows.counted()).values()) == 9
        rows.waiting.popitem()
        rows.counting.on_row(key, change)
        assert not rows.counting.is_exact
        assert sum((await rows.counted()).values()) == 8


async def test_too_many_that_come_behind_the_cursor_begin_the_count_anew() -> None:
    rows = Rows(0)
    rows.next_sequence = PENDING_MAX + 100
    for _ in range(3):
        rows.put()
    await rows.counted()
    for sequence in range(1, PENDING_MAX + 10):
        rows.put(sequence)

    assert sum((await rows.counted()).values()) == PENDING_MAX + 12


async def test_a_message_under_a_disabled_key_counts_and_a_key_that_is_away_is_waited_for() -> None:
    rows = Rows(0)
    rows.put()
    errors = [ServiceUnavailable(), KmsDisabled("disabled")]

    def open_(stored: StoredMessage) -> bytes:
        raise errors.pop(0)

    rows._some_changes = lambda: None  # type: ignore[method-assign]
    for _ in range(2):  # the notes, and the delayed ones
        await rows.counting.step(rows.browse, open_)
    with pytest.raises(ServiceUnavailable):
        await rows.counting.step(rows.browse, open_)
    await rows.counting.step(rows.browse, open_)

    assert await rows.counted() == {queue_pass.UNREADABLE.signs[0][1]: 1}
