"""QueuePass: counts the messages of one queue, or part of one, on the host that leads its shard.

    pages     the delayed messages, then all others, page by page behind a cursor
    rows      what committed Entries change meanwhile and later (`on_row`)

A message that leaves is forgotten, whether it was reached or not; one that comes ahead of the
cursor is found by the next page; one that comes behind it, such as one whose move failed, is looked
up. So the counts are those of the rows once all pages were read, and stay so. What rows do not tell
one by one, such as a quarantine, begins the count anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sqs_api.failures.counted_failures import Counted, Dead
from visibility.content.content import unpack
from visibility.content.failures import Failure, failure_of
from visibility.contract.errors import QueueError, ServiceUnavailable
from visibility.contract.model import QueueDefinition
from visibility.contract.outcomes import BrowsedPage
from visibility.contract.stored_message import StoredMessage
from visibility.rows.row_keys import DELAYED, MESSAGE, QUARANTINED, number_of, pair_of
from visibility.rules.browse import BrowseMessages

_NOT_DELAYED = -1
_PAGE_MESSAGES = 50
"""Opened and counted without a pause: a few milliseconds."""
PENDING_MAX = 1_000
"""Messages to look up one by one; beyond that the count begins anew."""
UNREADABLE = Failure((("text", "cannot be opened"),))

Browse = Callable[[QueueDefinition, BrowseMessages], Awaitable[BrowsedPage]]
"""Asks the shard, on this host. Raises QueueError."""
Open = Callable[[StoredMessage], bytes | None]
"""The content of a message. Raises QueueError."""


class QueuePass:
    """Belongs to the event loop's thread. One step runs at a time."""

    def __init__(self, queue: QueueDefinition) -> None:
        self.queue = queue
        self.counted = Counted()
        self.has_room = True
        """False while the host counts too many messages: then the cursor stays."""
        self._anew = False
        self._begin()

    def _begin(self) -> None:
        self.counted = Counted()
        self._is_delayed = True
        self._after = (0, 0)
        self._is_at_end = False
        self._comes = 0
        """Rows of messages that came, ever."""
        self._left: set[int] = set()
        """Sequences that left while a page is read."""
        self._ahead: set[int] = set()
        """Sequences that came ahead of the cursor meanwhile."""
        self._pending: set[tuple[int, int]] = set()
        """Ends of delays and sequences of messages to look up."""
        self._anew = False

    @property
    def is_exact(self) -> bool:
        """True if the counts are those of the rows of all committed Entries."""
        return self._is_at_end and not self._pending and not self._anew

    @property
    def has_work(self) -> bool:
        """True if a step would do something."""
        return not self.is_exact and (self.has_room or self._anew)

    def begin_anew(self) -> None:
        """Forget the counts at the next step: rows may have changed unseen."""
        self._anew = True

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
        if not is_there:
            self.counted.remove(sequence)
            self._left.add(sequence)
            self._pending.discard(place)
            return
        self._comes += 1
        self._left.discard(sequence)
        if due_ms != _NOT_DELAYED:
            is_ahead = self._is_delayed and place > self._after
        else:
            is_ahead = self._is_delayed or sequence > self._after[1]
        if is_ahead:
            self._is_at_end = False
            self._ahead.add(sequence)
            return
        self._pending.add(place)
        if len(self._pending) > PENDING_MAX:
            self._anew = True

    # -- pages -------------------------------------------------------------------------------------

    async def step(self, browse: Browse, open_: Open) -> int:
        """Read and count a page; returns the number of messages. Raises QueueError."""
        if self._anew:
            self._begin()
        if self._pending:
            return await self._look_up(browse, open_)
        self._left.clear()
        self._ahead.clear()
        comes = self._comes
        look = BrowseMessages(self._is_delayed, self._after, _PAGE_MESSAGES)
        page = await browse(self.queue, look)
        if self._anew:
            return 0
        for found in page.messages:
            if found.sequence not in self._left:
                self._count(found.sequence, found.message, open_)
        if page.messages:
            last = page.messages[-1]
            self._after = (last.due_ms if self._is_delayed else 0, last.sequence)
        if page.next_token is not None:
            self._after = page.next_token
        elif self._is_delayed:
            self._is_delayed, self._after = False, (0, 0)
        else:
            self._is_at_end = comes == self._comes
        for sequence in self._ahead:  # it may have come behind what the page shows
            if not self._is_delayed and sequence <= self._after[1] and sequence not in self.counted:
                self._pending.add((_NOT_DELAYED, sequence))
        return len(page.messages)

    async def _look_up(self, browse: Browse, open_: Open) -> int:
        due_ms, sequence = place = next(iter(self._pending))
        self._left.clear()
        comes = self._comes
        is_delayed = due_ms != _NOT_DELAYED
        look = BrowseMessages(is_delayed, (due_ms if is_delayed else 0, sequence - 1), 1)
        page = await browse(self.queue, look)
        found = page.messages[0] if page.messages else None
        if found is not None and found.sequence == sequence and sequence not in self._left:
            self._count(sequence, found.message, open_)
        if comes == self._comes:
            self._pending.discard(place)
        return 1

    def _count(self, sequence: int, message: StoredMessage, open_: Open) -> None:
        data = _opened(message, open_)
        failure = UNREADABLE
        if data is not None:
            _, body, extras = unpack(data)
            failure = failure_of(body, extras)
        settings = self.queue.settings
        retained_ms = message.retained_from_ms
        if message.expires_ms:
            retained_ms = min(retained_ms, max(0, message.expires_ms - settings.retention_ms))
        source = (message.dead_letter_source_arn or "").rpartition(":")[2]
        seen_ms = message.joined_at_ms or message.sent_at_ms
        self.counted.add(Dead(sequence, failure, source, seen_ms // 1000, retained_ms // 1000))


def _opened(message: StoredMessage, open_: Open) -> bytes | None:
    try:
        return open_(message)
    except ServiceUnavailable:  # its key is not here yet
        raise
    except QueueError:  # its key is disabled: it is counted all the same
        return None
