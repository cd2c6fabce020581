"""A catalog in a file, and an etcd of three processes that the tests of a file share, each below a
prefix of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cluster.tests.catalog_file import CatalogFile
from cluster.tests.coordinations import SHARED, Hosts, leasing
from cluster.tests.etcd_processes import EtcdProcesses, etcd_program, running_etcd
from cluster.tests.stores import KINDS, Place, opened_place


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcesses]:
    """Three members; a file whose tests stop one repairs it.

    They start in a tenth of a second, and take as much processor time in two seconds of rest.
    """
    if etcd_program() is None:
        pytest.skip("no etcd on this machine, and none in a package for its kind")
    with running_etcd(tmp_path_factory.mktemp("etcd")) as started:
        yield started


@pytest.fixture(params=SHARED)
async def hosts(request: pytest.FixtureRequest) -> AsyncIterator[Hosts]:
    """Hosts on every coordination that has leases."""

    def endpoints() -> tuple[str, ...]:
        found: tuple[str, ...] = request.getfixturevalue("etcd").endpoints
        return found

    async with leasing(request.param, endpoints) as made:
        yield made


@pytest.fixture(params=KINDS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """Records of each kind."""
    async with opened_place(request, request.param, tmp_path) as place:
        yield place


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[CatalogFile]:
    """An open catalog in a file."""
    opened = CatalogFile(tmp_path / "catalog.sqlite")
    await opened.open()
    yield opened
    await opened.catalog.close()
