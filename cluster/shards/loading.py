"""How an engine begins with what a store holds."""

from __future__ import annotations

from storage.engines.store import Store
from storage.rows.stored_rows import StoredQueue, StoredRows, load_archive
from visibility.content.sealing import Sealing
from visibility.contract.model import Definitions
from visibility.rules.engine import Engine
from visibility.state.archive_state import ArchiveState
from visibility.state.state import SPAN_BITS, QueueState


def load_engine(
    rows: StoredRows, definitions: Definitions, sealing: Sealing | None = None
) -> tuple[Engine, int]:
    """The engine as the store left it, and the latest stamp it gave (0: none). Raises DamagedRecord.

    O(queues + messages in flight), whatever waits.
    """
    engine = Engine(rows=rows, definitions=definitions, sealing=sealing)
    last_stamp_ms = 0
    _load_archive(engine.state.archive, rows.store)
    for stored in rows.load():
        engine.restore(_queue_state(stored), stored.leases, stored.tasks)
        last_stamp_ms = max(last_stamp_ms, stored.row.stamp_ms)
    return engine, last_stamp_ms


def _load_archive(archive: ArchiveState, store: Store) -> None:
    row, batches = load_archive(store)
    if row is None:
        return
    for name in row.__struct_fields__:
        setattr(archive, name, getattr(row, name))
    archive.batches = {batch.number: batch for batch in batches}
    archive.sealed_size = sum(batch.size for batch in batches)


def _queue_state(stored: StoredQueue) -> QueueState:
    row = stored.row
    queue = QueueState(stored.queue_id)
    queue.next_sequence = row.next_sequence
    queue.spans = stored.spans
    first = min(stored.spans) << SPAN_BITS if stored.spans else row.next_sequence
    queue.low_water = queue.head = max(row.low_water, first)
    queue.waiting = row.waiting
    queue.continues = row.continues
    queue.first_sequence = row.first_sequence
    queue.delayed = row.delayed
    queue.heads.restore(row.listed)
    queue.aliases = row.aliases
    queue.remembered_ms = row.remembered_ms
    queue.fifo = row.fifo
    return queue
