"""RocksStore on a disk that takes no more for a while: it fails, lets go, and opens again with what was acknowledged.

A limit on the size of files stands for the full disk: it needs no privileges and holds for this process only.
"""

from __future__ import annotations

import asyncio
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage.engines.rocks import Durability, RocksStore
from storage.engines.store import StoreFailed
from storage.tests.places import committed


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process can grow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_store_that_failed_on_a_full_disk_lets_go_of_it(tmp_path: Path) -> None:
    failures: list[StoreFailed] = []
    released: list[str] = []
    store = RocksStore(tmp_path, Durability.FSYNC, failures.append)
    store.batch.put(b"kept", b"1")
    await committed(store)

    with full_disk():
        store.batch.put(b"unknown", b"2")
        store.commit(lambda: released.append("unknown"))
        async with asyncio.timeout(60):
            while not failures:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        store.abandon()
    again = RocksStore(tmp_path, Durability.FSYNC, failures.append)

    assert len(failures) == 1
    assert released == []
    assert again.get(b"kept") == b"1"
    again.batch.put(b"next", b"3")
    await committed(again)
    again.close()


async def test_a_store_that_failed_during_a_backup_is_let_go_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RocksStore(tmp_path / "s", Durability.FSYNC, lambda error: None)
    begun, goes_on = threading.Event(), threading.Event()
    check_alive = store._check_alive

    def check_and_wait() -> None:
        check_alive()
        begun.set()
        assert goes_on.wait(60)

    monkeypatch.setattr(store, "_check_alive", check_and_wait)
    flushing = asyncio.create_task(asyncio.to_thread(store.flush))
    await asyncio.to_thread(begun.wait)

    with pytest.raises(StoreFailed, match="a backup is just copying"):
        store.abandon()
    goes_on.set()
    await flushing
    store.abandon()

    RocksStore(tmp_path / "s", Durability.FSYNC, lambda error: None).close()
    with pytest.raises(StoreFailed, match="failed meanwhile"):
        store.flush()
