"""Fixtures of the gateway's tests."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

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


class Folder(NamedTuple):
    """A data folder to copy, and the access key in it."""

    path: Path
    root: SigningKey


@pytest.fixture(scope="session")
def data_to_copy(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    path = tmp_path_factory.mktemp("data")
    return Folder(path, keys_of(run("credentials", "--data", path, "add")))


@pytest.fixture(scope="session")
def root(data_to_copy: Folder) -> SigningKey:
    """The access key in `data`, of the account that a service there belongs to."""
    return data_to_copy.root


@pytest.fixture
def data(data_to_copy: Folder, tmp_path: Path) -> Path:
    """A data folder with one access key."""
    return Path(shutil.copytree(data_to_copy.path, tmp_path / "data"))


@pytest_asyncio.fixture
async def served(data: Path) -> AsyncIterator[Served]:
    """A node in open mode on that folder."""
    async with serving(data) as node:
        yield node


@pytest.fixture
def operators(served: Served) -> Operators:
    """A caller of its operators' API."""
    return Operators(served)


@pytest_asyncio.fixture
async def kept() -> AsyncIterator[Kept]:
    """A shard whose deleted and purged queues are kept."""
    async with keeping() as parts:
        yield parts
