"""A process that writes until it is killed: each synced message's number goes to standard output,
one a line."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from storage.engines.opening import open_store
from storage.engines.store import StoreFailed
from storage.engines.store_options import StoreOptions
from storage.rows.stored_rows import StoredRows
from storage.tests.store_places import append, changes_of
from visibility.contract.stored_message import StoredMessage
from visibility.rows.row_changes import Changes
from visibility.rows.row_keys import SPAN_BITS
from visibility.rows.row_values import QueueRow
from visibility.rows.state_rows import write_queue
from visibility.rules.message_events import MessagesSent

QUEUE_ID = 1
TURN_MESSAGES = 3
OPTIONS = StoreOptions(segment_bytes=32 << 10, flush_bytes=40 << 10)
"""Small enough that the writer reuses segments and flushes."""


def body(sequence: int) -> bytes:
    """The content of message `sequence`: distinct, and of varying length."""
    return str(sequence).encode() * (1 + sequence % 50)


class Writer:
    """Appends Entry after Entry, as soon as the one before is durable."""

    def __init__(self, folder: Path) -> None:
        self.store = open_store(folder, OPTIONS)
        self.store.on_room(self.commit_turn)
        self.next_sequence = 1
        self.spans: dict[int, int] = {}
        self.is_under_way = False
        rows = StoredRows(self.store)
        for queue_id, row in rows.queues():
            self.next_sequence = row.next_sequence
            self.spans = dict(rows.spans(queue_id))

    def commit_turn(self) -> None:
        if self.is_under_way or not self.store.has_room:
            return
        first = self.next_sequence
        self.next_sequence += TURN_MESSAGES
        changes = Changes()
        for sequence in range(first, self.next_sequence):
            data = body(sequence)
            message = StoredMessage("id", 0, len(data), data)
            changes.ops += changes_of(MessagesSent(QUEUE_ID, sequence, [message])).ops
            self.spans[sequence >> SPAN_BITS] = self.spans.get(sequence >> SPAN_BITS, 0) + 1
        last = self.next_sequence - 1
        write_queue(changes, QUEUE_ID, QueueRow(last + 1, 1, last, 0), self.spans)
        self.is_under_way = True
        append(self.store, changes)
        self.store.sync(lambda failure: self._committed(failure, changes))

    def _committed(self, failure: StoreFailed | None, changes: Changes) -> None:
        if failure is not None:
            raise failure
        os.write(sys.stdout.fileno(), b"%d\n" % (self.next_sequence - 1))
        self.store.apply(changes)
        self.is_under_way = False
        self.commit_turn()


async def write_until_killed(folder: Path) -> None:
    writer = Writer(folder)
    writer.commit_turn()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(write_until_killed(Path(sys.argv[1])))
