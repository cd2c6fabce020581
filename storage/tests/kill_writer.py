"""A process that writes until it is killed: each synced message's number goes to standard output, one a line."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from storage.appliers import APPLIERS, write_queue
from storage.codec import QueueRow
from storage.rocks import Durability, RocksStore
from storage.store import StoreFailed
from visibility.events import MessagesSent, StoredMessage

QUEUE_ID = 1
TURN_MESSAGES = 3


def body(sequence: int) -> bytes:
    """What message `sequence` holds: something different, and not always short."""
    return str(sequence).encode() * (1 + sequence % 50)


class Writer:
    """Commits turn after turn, as soon as the one before is durable."""

    def __init__(self, folder: Path) -> None:
        self.store = RocksStore(folder, Durability.FSYNC, self._failed)
        rows = [queue.row for queue in self.store.load()]
        self.next_sequence = rows[0].next_sequence if rows else 1

    def commit_turn(self) -> None:
        first = self.next_sequence
        self.next_sequence += TURN_MESSAGES
        for sequence in range(first, self.next_sequence):
            data = body(sequence)
            message = StoredMessage("id", 0, len(data), data)
            event = MessagesSent(QUEUE_ID, sequence, [message], [])
            APPLIERS[MessagesSent](self.store.batch, event, None)
        row = QueueRow(self.next_sequence, 1, self.next_sequence - 1, 0)
        write_queue(self.store.batch, QUEUE_ID, row)
        self.store.commit(self._released)

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
