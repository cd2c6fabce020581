"""Fixtures of the gateway's tests."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from auth.signing import SigningKey
from sqs_api.tests.commands import run
from sqs_api.tests.keeping import Kept, keeping
from sqs_api.tests.operator_client import Operators, keys_of
from sqs_api.tests.served import Served, serving
from sqs_api.tests.serving import Service, running
from storage.engines.store_options import StoreOptions


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


@pytest.fixture(scope="session")
def data_to_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    assert run("credentials", "--data", folder, "add").status == 0
    return folder


@pytest.fixture
def data(data_to_copy: Path, tmp_path: Path) -> Path:
    """A data folder with one access key."""
    return Path(shutil.copytree(data_to_copy, tmp_path / "data"))


@pytest_asyncio.fixture
async def served(data: Path) -> AsyncIterator[Served]:
    """A node in open mode on that folder."""
    async with serving(data) as node:
        yield node


@pytest.fixture
def operators(served: Served) -> Operators:
    """A caller of its operators' API."""
    return Operators(served)


@pytest.fixture
def root(data: Path) -> SigningKey:
    """A further key of the account that the service belongs to."""
    return keys_of(run("credentials", "--data", data, "add"))


@pytest_asyncio.fixture
async def kept() -> AsyncIterator[Kept]:
    """A shard whose deleted and purged queues are kept."""
    async with keeping() as parts:
        yield parts
