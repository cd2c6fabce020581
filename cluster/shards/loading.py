"""Loading: fills a shard's memory from its rows, in slices that let the event loop continue, and
finishes what a crash prevented."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import TypeVar

import structlog

from storage.engines.store import Store
from storage.healing.rebuild import report_rebuilt
from storage.rows.stored_rows import StoredRows
from visibility.content.sealing import Sealing
from visibility.contract.model import Definitions
from visibility.rows.row_codec import DamagedRecord
from visibility.rows.row_keys import queue_key
from visibility.rows.state_rows import DEPARTED_LOST
from visibility.rules.closing_parts import unfinished_changes
from visibility.rules.decided import Decided
from visibility.rules.features import SHARD_TABLES, TABLES
from visibility.rules.kept_queues import unfinished_purges
from visibility.rules.turn import begin
from visibility.state.advance import restore
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

SLICE_ROWS = 1_000
"""Rows read before the event loop may continue."""
_T = TypeVar("_T")


def load(state: ShardState, rows: StoredRows) -> Generator[None, None, int]:
    """Fill an empty state; yields after each slice and returns the latest stamp (0: none). Raises
    DamagedRecord.

    O(queues + messages in flight + spans), however many messages wait.
    """
    last_stamp_ms = 0
    departed: dict[int, int] = {}
    undone: list[QueueState] = []
    loads = [table.load for table in TABLES.values() if table.load is not None]
    for place, (queue_id, row) in enumerate(rows.queues()):
        spans = yield from _in_slices(rows.spans(queue_id))
        queue = QueueState.of(queue_id, row, dict(spans))
        if not spans:
            state.begin(queue)  # a rebuild of an empty part lost its first sequence
        leases = yield from _in_slices(rows.leases(queue_id))
        for load_rows in loads:
            load_rows(rows, queue, leases)
        restore(state, queue, leases)
        last_stamp_ms = max(last_stamp_ms, row.stamp_ms)
        if row.departed:
            departed[queue_id] = row.departed
        if row.heir_id:
            undone.append(queue)
        if place % SLICE_ROWS == 0:
            yield
    for queue in undone:
        if (heir := state.queues.get(queue.heir_id)) is not None:
            heir.heir_of.append(queue.queue_id)
    for each in SHARD_TABLES:
        each.load(state, rows.store)
    for queue_id, messages in departed.items():
        if state.queue(queue_id).departed < messages:
            raise DamagedRecord(queue_key(queue_id), DEPARTED_LOST)
    return last_stamp_ms


async def load_healed(
    store: Store,
    definitions: Definitions,
    sealing: Sealing | None,
    log: structlog.stdlib.BoundLogger,
) -> tuple[StoredRows, ShardState, int]:
    """Load memory and the latest stamp from the store's rows; rebuilds damaged queues first.

    Raises DamagedRecord for damage that cannot be healed, and StoreFailed.
    """
    known = {queue.queue_id: queue.settings.fifo for queue in definitions.all_queues()}
    for is_last in (False, True):
        if not store.needs_healing:
            try:
                return await _with_pauses(
                    StoredRows(store, store.turn_bytes_max), definitions, sealing
                )
            except DamagedRecord as damage:
                if is_last:
                    raise
                log.error("rows_damaged", error=str(damage))
        report_rebuilt(await store.heal(known), log, partial(_name_of, definitions))
    raise AssertionError("a rebuild removes the mark")


def _name_of(definitions: Definitions, queue_id: int) -> str:
    queue = definitions.queue_of_id(queue_id)
    return "" if queue is None else queue.name


async def _with_pauses(
    rows: StoredRows, definitions: Definitions, sealing: Sealing | None
) -> tuple[StoredRows, ShardState, int]:
    """Load with pauses for the event loop. Raises DamagedRecord."""
    state = ShardState(rows, definitions, sealing)
    steps = load(state, rows)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return rows, state, int(end.value)
        await asyncio.sleep(0)


def _in_slices(rows: Iterable[_T]) -> Generator[None, None, list[_T]]:
    found: list[_T] = []
    source: Iterator[_T] = iter(rows)
    while page := list(islice(source, SLICE_ROWS)):
        found += page
        if len(page) == SLICE_ROWS:
            yield
    return found


def prevented(
    state: ShardState, stamp: Stamp, number: int, new_id: Callable[[], int], *, is_older: bool
) -> Iterator[Decided]:
    """The Turns of a start of the shard with this number: events that a crash prevented. Each is to
    be committed before the next is asked for.

    An older store gets a new source and a new origin: it would repeat numbers of batches that the
    archive has, and of messages that other shards know.
    """
    archive = state.archive
    if is_older:
        state.outbox.renew_origin()
    if archive.is_on and (is_older or not archive.source):
        archive.source = f"{new_id():032x}"
        yield begin(state, stamp, [])
    while unfinished := unfinished_purges(state):
        # One at a time: the next may continue from its result.
        yield begin(state, stamp, [unfinished[0]])
    missed = unfinished_changes(state, stamp.now_ms, number)
    for first in missed:
        yield begin(state, stamp, chain([first], missed))
