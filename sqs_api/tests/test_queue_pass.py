"""The count of a queue's failures, while messages come and go between any two steps of it."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import pytest

from sqs_api.failures import queue_pass
from sqs_api.failures.queue_pass import PENDING_MAX, QueuePass
from visibility.content.content import Extras, with_body
from visibility.contract.errors import KmsDisabled, ServiceUnavailable
from visibility.contract.model import QueueDefinition
from visibility.contract.outcomes import Browsed, BrowsedPage
from visibility.contract.stored_message import StoredMessage
from visibility.rows.row_keys import DELAYED, MESSAGE, QUARANTINED, message_key, pair_key, row_key
from visibility.rules.browse import BrowseMessages
from visibility.tests import prepared

Q = prepared.queue_named("dead", 5)
_PAGE = 4


class Rows:
    """The rows of a queue, and changes of them that happen while a page is on its way."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.waiting: dict[int, str] = {}
        self.delayed: dict[tuple[int, int], str] = {}
        self.next_sequence = 1
        self.counting = QueuePass(Q)
        self.untold: list[tuple[bytes, object]] = []
        """Changes of Entries that are not committed yet."""

    def _tell(self, key: bytes, change: object) -> None:
        self.untold.append((key, change))

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
            Browsed(sequence, "visible", message(kind), None, due_ms)
            for due_ms, sequence, kind in found[:limit]
        ]
        token = (page[-1].due_ms, page[-1].sequence) if len(found) > limit else None
        self.commit()
        self._some_changes()
        return BrowsedPage(page, token)

    def _some_changes(self) -> None:
        for _ in range(self.random.choice((0, 0, 0, 1, 3))):
            self.change()

    async def step(self) -> None:
        await self.counting.step(self.browse, lambda stored: stored.data)

    async def counted(self) -> dict[str, int]:
        """The counts, once they are exact and nothing is under way."""
        self.commit()
        self._some_changes = lambda: None  # type: ignore[method-assign]
        while not self.counting.is_exact:
            await self.step()
        return self.shown()

    def shown(self) -> dict[str, int]:
        groups = self.counting.counted.groups.values()
        return {g.failure.signs[0][1]: g.messages for g in groups if g.failure is not None}

    def there(self) -> dict[str, int]:
        """The messages of the rows."""
        return Counter([*self.waiting.values(), *self.delayed.values()])


def message(kind: str) -> StoredMessage:
    empty = bytes(20) + msgspec.msgpack.encode(Extras("me"))
    return StoredMessage("id", 1_000, 1, with_body(empty, kind))


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
    await rows.counting.step(rows.browse, open_)  # the delayed ones
    with pytest.raises(ServiceUnavailable):
        await rows.counting.step(rows.browse, open_)
    await rows.counting.step(rows.browse, open_)

    assert await rows.counted() == {queue_pass.UNREADABLE.signs[0][1]: 1}
