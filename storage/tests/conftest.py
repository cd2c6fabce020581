"""A place for a store of each kind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from storage.tests.places import KINDS, Place


@pytest.fixture(params=KINDS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    made = Place(request.param, tmp_path / "shard-0")
    yield made
    for store in made.opened:
        await store.abandon()
