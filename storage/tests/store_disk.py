"""A MemoryStore as the disk of `visibility.tests.driver.Driver`, and how a shard starts from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from storage.appliers import APPLIERS, write_queue
from storage.codec import QueueRow
from storage.memory import MemoryStore
from visibility.engine import PAGE_BYTES, Engine, PageWanted
from visibility.events import Event, MessageDeadLettered, MessagesSent, StoredMessage
from visibility.state import QueueState


class StoreDisk:
    """Writes events by their appliers, and one row for each changed queue at the end of a turn."""

    def __init__(
        self, store: MemoryStore, on_event: Callable[[Event], None] = lambda event: None
    ) -> None:
        self.store = store
        self.on_event = on_event
        self.released = 0
        self._sent: dict[tuple[int, int], StoredMessage] = {}
        """Messages of the open batch, which the store does not show yet."""

    def write(self, event: Event) -> None:
        moved: StoredMessage | None = None
        if isinstance(event, MessagesSent):
            for sequence, _, message in event.numbered():
                self._sent[event.queue_id, sequence] = message
        elif isinstance(event, MessageDeadLettered):
            moved = self.read_message(event.queue_id, event.sequence)
        APPLIERS[type(event)](self.store.batch, event, moved)
        self.on_event(event)

    def read_page(self, page: PageWanted) -> tuple[list[tuple[int, StoredMessage]], int]:
        found, following = self.store.read_page(
            page.queue_id,
            page.from_sequence,
            page.until_sequence,
            messages=page.messages,
            size=PAGE_BYTES,
        )
        return found, following or page.until_sequence

    def read_message(self, queue_id: int, sequence: int) -> StoredMessage:
        (stored,) = self.store.read_messages([(queue_id, sequence)])
        return stored or self._sent[queue_id, sequence]

    def commit(self, queues: Iterable[QueueState]) -> None:
        for queue in queues:
            row = QueueRow(queue.next_sequence, queue.low_water, queue.waiting, queue.purged_at_ms)
            write_queue(self.store.batch, queue.queue_id, row)
        self._sent.clear()
        self.store.commit(self._release)

    def _release(self) -> None:
        self.released += 1


def engine_from(store: MemoryStore) -> Engine:
    """The engine after a restart."""
    engine = Engine()
    for queue_id, row, leases in store.load():
        engine.restore_queue(
            queue_id,
            next_sequence=row.next_sequence,
            low_water=row.low_water,
            waiting=row.waiting,
            purged_at_ms=row.purged_at_ms,
        )
        for lease in leases:
            engine.restore_lease(queue_id, lease)
    return engine
