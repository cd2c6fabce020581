"""Stores of every kind, each in a place where it can be opened again, and how tests put rows into them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from storage.engines.memory import MemoryStore
from storage.engines.rocks import Durability, RocksStore
from storage.engines.store import Store, StoreFailed
from storage.rows.appliers import APPLIERS, Moved
from visibility.state.events import Event, StoredMessage

KINDS = (*Durability, "MemoryStore")


class Place:
    """Where a store lies, so that it can be opened again."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.failures: list[StoreFailed] = []
        self.memory = MemoryStore()
        self.opened: list[RocksStore] = []

    def open(self) -> Store:
        if self.kind == "MemoryStore":
            return self.memory
        store = RocksStore(self.folder, Durability(self.kind), self.failures.append)
        self.opened.append(store)
        return store

    def reopen(self, store: Store) -> Store:
        store.close()
        if isinstance(store, RocksStore):
            self.opened.remove(store)
        self.memory.crash()
        return self.open()

    def reopen_after_abandon(self, store: Store) -> Store:
        store.abandon()
        if isinstance(store, RocksStore):
            self.opened.remove(store)
        self.memory.sync()
        self.memory.crash()
        return self.open()


def message(number: int, size: int = 10) -> StoredMessage:
    return StoredMessage(f"id-{number}", 1_000 + number, size, bytes([65]) * size)


def put(store: Store, *events: Event, moved: Moved | None = None) -> None:
    for event in events:
        APPLIERS[type(event)](store.batch, event, moved or {})


async def committed(store: Store) -> None:
    released = asyncio.get_running_loop().create_future()
    store.commit(lambda: released.set_result(None))
    await asyncio.wait_for(released, 60)


def everything(store: Store) -> dict[bytes, bytes]:
    """All rows."""
    return dict(store.scan(b"", b"\xff" * 40))
