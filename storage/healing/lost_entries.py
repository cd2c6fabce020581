"""Queues that lost Entries of the log may have changed, of which not even the head can be read.

A queue is ruled out if an Entry behind the loss changed it and its rows agree all the same: each
Entry writes the queue's counters as a whole, so what the lost one did would be missing from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from storage.checks.consistency import check_queue
from storage.healing.rebuild import queue_ids_of
from storage.log import Reading
from storage.rows.entry_body import decode_body
from visibility.rows.overlay import Overlay, RowReader
from visibility.rows.row_changes import Changes, Ops
from visibility.rows.row_codec import DamagedRecord
from visibility.rows.row_keys import queue_key

_SHOWN_MAX = 20


def perhaps_changed(rows: RowReader, reading: Reading, known: Iterable[int]) -> list[int]:
    """Queues that the lost Entries without heads cannot be shown to have left alone; none if all
    heads can be read. Blocks.

    `rows` are without the log's Entries. `known` has the ids of queues that may have no row yet.
    Raises OSError.
    """
    headless = [lost.last for lost in reading.lost if lost.headless]
    if not headless:
        return []
    ops: Ops = []
    behind: set[int] = set()
    for entry in reading.entries():
        ops += decode_body(entry.body).ops
        if entry.index > max(headless):
            behind.update(entry.queue_ids)
    replayed = Overlay(rows, Changes(ops))
    sure = set().union(*[lost.queue_ids for lost in reading.lost])
    return sorted(
        queue_id
        for queue_id in {*known, *queue_ids_of(replayed)} - sure
        if queue_id not in behind or not _agrees(replayed, queue_id)
    )


def _agrees(rows: RowReader, queue_id: int) -> bool:
    """True if the queue has a row of its own, and its rows fit that."""
    with suppress(DamagedRecord):
        return rows.get(queue_key(queue_id)) is not None and not any(check_queue(rows, queue_id))
    return False


def named(queue_ids: Iterable[int], names: Mapping[int, str]) -> list[str]:
    """The queues by name, those without a known one by number; the first ones of many."""
    found = [names.get(queue_id) or f"queue {queue_id}" for queue_id in queue_ids]
    more = len(found) - _SHOWN_MAX
    return found if more <= 0 else [*found[:_SHOWN_MAX], f"and {more} more"]


def changed_queues(sure: Iterable[int], perhaps: Iterable[int], names: Mapping[int, str]) -> str:
    """The queues that lost Entries changed, in words."""
    parts = [", ".join(shown)] if (shown := named(sure, names)) else []
    parts += [f"one of these: {', '.join(shown)}"] if (shown := named(perhaps, names)) else []
    return " and ".join(parts) or "unknown queues"
