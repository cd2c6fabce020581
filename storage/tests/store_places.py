"""Stores of every kind, each in a place where it can be opened again, and how tests put rows into
them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from storage.engines.durable import DurableStore
from storage.engines.opening import open_store
from storage.engines.store import Store, StoreFailed
from storage.engines.store_options import Durability, StoreOptions, log_folder
from storage.rows.entry_body import EntryBody, encode_body
from storage.rows.stored_rows import StoredRows
from storage.tests.memory_store import MemoryStore
from visibility.contract.stored_message import StoredMessage
from visibility.rows.overlay import RowReader
from visibility.rows.row_changes import Changes
from visibility.rows.row_keys import APPLIED_KEY
from visibility.rules.events import Event
from visibility.rules.message_events import MessagesSent

KINDS = (*Durability, "MemoryStore")
ROW_KINDS = (Durability.FSYNC, "MemoryStore")
"""Kinds whose rows differ: a durability is about the log."""
SEGMENT_BYTES = 2 << 20
"""Half of a start is the writing of the log's first segments, which have 16 MiB otherwise."""


class Place:
    """The location of a store, so that it can be reopened."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.memory = MemoryStore()
        self.opened: list[DurableStore] = []

    def open(self) -> Store:
        if self.kind == "MemoryStore":
            return self.memory
        options = StoreOptions(Durability(self.kind), segment_bytes=SEGMENT_BYTES)
        store = open_store(self.folder, options)
        self.opened.append(store)
        return store

    async def reopen(self, store: Store) -> Store:
        await store.close()
        self._forget(store)
        self.memory.crash()
        return self.open()

    async def reopen_after_abandon(self, store: Store) -> Store:
        await store.abandon()
        self._forget(store)
        return self.open()

    def _forget(self, store: Store) -> None:
        if isinstance(store, DurableStore):
            self.opened.remove(store)


@asynccontextmanager
async def place_of(kind: str, folder: Path) -> AsyncIterator[Place]:
    """A place whose stores are closed at the end."""
    made = Place(kind, folder)
    yield made
    for store in made.opened:
        await store.abandon()


def message(number: int, size: int = 10) -> StoredMessage:
    return StoredMessage(f"id-{number}", 1_000 + number, size, bytes([65]) * size)


def sent(queue_id: int, sequence: int, size: int = 10) -> MessagesSent:
    return MessagesSent(queue_id, sequence, [message(sequence, size)])


def sequences(
    store: Store, queue_id: int = 1, *, most: int = 100, size: int = 1 << 20
) -> list[int]:
    """The sequences of the first messages of a queue."""
    page = StoredRows(store).line(queue_id, 1, 1_000, messages=most, size=size)
    return [sequence for sequence, _ in page.messages]


def changes_of(*parts: Event | Changes) -> Changes:
    """The combined changes of these events and row changes."""
    changes = Changes()
    for part in parts:
        if isinstance(part, Changes):
            changes.ops += part.ops
            changes.size += part.size
        else:
            part.record(changes)
    return changes


def append(store: Store, changes: Changes, queue_ids: Sequence[int] = (1,)) -> None:
    store.append(encode_body(EntryBody(1_000, ["request"], changes.ops)), queue_ids)


async def synced(store: Store) -> StoreFailed | None:
    """Sync the appended Entries; returns the failure, if any."""
    answer: asyncio.Future[StoreFailed | None] = asyncio.get_running_loop().create_future()
    store.sync(answer.set_result)
    return await asyncio.wait_for(answer, 60)


async def commit(store: Store, *parts: Event | Changes, queue_ids: Sequence[int] = (1,)) -> None:
    """One Entry: appended, synced and applied."""
    changes = changes_of(*parts)
    append(store, changes, queue_ids)
    assert await synced(store) is None
    store.apply(changes)


def everything(store: RowReader) -> dict[bytes, bytes]:
    """All rows except the one that names the last applied Entry."""
    rows = dict(store.scan(b"", b"\xff" * 40))
    rows.pop(APPLIED_KEY, None)
    return rows


def crash_copy(folder: Path, target: Path) -> Path:
    """The shard's rows and log as a crash of the process would leave them now, without drafts: one
    may get its name while this copies."""
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.new"))
    shutil.copytree(log_folder(folder), log_folder(target))
    return target
