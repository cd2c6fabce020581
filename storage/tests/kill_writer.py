"""A process that writes until it is killed: each synced message's number goes to standard output, one a line."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from storage.engines.rocks import Durability, RocksStore
from storage.engines.store import StoreFailed
from storage.rows.appliers import APPLIERS, write_queue
from storage.rows.codec import QueueRow
from storage.rows.stored_rows import StoredRows
from visibility.state.events import MessagesSent, StoredMessage
from visibility.state.state import SPAN_BITS

QUEUE_ID = 1
TURN_MESSAGES = 3


def body(sequence: int) -> bytes:
    """What message `sequence` holds: something different, and not always short."""
    return str(sequence).encode() * (1 + sequence % 50)


class Writer:
    """Commits turn after turn, as soon as the one before is durable."""

    def __init__(self, folder: Path) -> None:
        self.store = RocksStore(folder, Durability.FSYNC, self._failed)
        self.next_sequence = 1
        self.spans: dict[int, int] = {}
        for queue in StoredRows(self.store).load():
            self.next_sequence = queue.row.next_sequence
            self.spans = queue.spans

    def commit_turn(self) -> None:
        first = self.next_sequence
        self.next_sequence += TURN_MESSAGES
        for sequence in range(first, self.next_sequence):
            data = body(sequence)
            message = StoredMessage("id", 0, len(data), data)
            event = MessagesSent(QUEUE_ID, sequence, [message])
            self.spans[sequence >> SPAN_BITS] = self.spans.get(sequence >> SPAN_BITS, 0) + 1
            APPLIERS[MessagesSent](self.store.batch, event, {})
            self._write_queue(sequence)
            if sequence % 2:
                self.store.write()  # as a decision does that reads what its turn changed
        self.store.commit(self._released)

    def _write_queue(self, sequence: int) -> None:
        row = QueueRow(sequence + 1, 1, sequence, 0)
        write_queue(self.store.batch, QUEUE_ID, row, self.spans)

    def _released(self) -> None:
        os.write(sys.stdout.fileno(), b"%d\n" % (self.next_sequence - 1))
        self.commit_turn()

    def _failed(self, error: StoreFailed) -> None:
        raise error


async def write_until_killed(folder: Path) -> None:
    writer = Writer(folder)
    writer.commit_turn()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(write_until_killed(Path(sys.argv[1])))
