"""A place for a store of each kind, and small durable stores."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from storage.engines.durable import DurableStore
from storage.engines.opening import open_store
from storage.engines.store_options import StoreOptions
from storage.tests.durable_stores import SMALL, Open
from storage.tests.store_places import ROW_KINDS, Place, place_of


@pytest.fixture(params=ROW_KINDS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    async with place_of(request.param, tmp_path / "shard-0") as made:
        yield made


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Open]:
    """Opens a store that is closed at the end; by default in the same folder."""
    stores: list[DurableStore] = []

    def opened_store(options: StoreOptions = SMALL, folder: Path | None = None) -> DurableStore:
        stores.append(open_store(folder or tmp_path / "shard-0", options))
        return stores[-1]

    yield opened_store
    for store in stores:
        await store.abandon()
