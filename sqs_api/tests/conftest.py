"""Fixtures of the gateway's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from sqs_api.tests.commands import run
from sqs_api.tests.serving import Service, running
from storage.engines.durable import StoreOptions


@pytest.fixture(scope="module", autouse=True)
def small_segments() -> Iterator[None]:
    """Half of a service's start is the writing of a log's first segments of 16 MiB."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sqs_api.node.StoreOptions", partial(StoreOptions, segment_bytes=2 << 20))
        yield


@pytest_asyncio.fixture
async def service() -> AsyncIterator[Service]:
    """A service over memory in open mode."""
    async with running() as started:
        yield started


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with one access key."""
    folder = tmp_path / "data"
    folder.mkdir()
    assert run("credentials", "--data", folder, "add").status == 0
    return folder
