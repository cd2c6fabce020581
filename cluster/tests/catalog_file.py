"""A catalog in a file, for the tests of it."""

from __future__ import annotations

import json
from pathlib import Path

from cluster.catalog.catalog import Catalog
from cluster.catalog.catalog_records import Entries
from cluster.catalog.record_codec import RecordCodec
from cluster.coordination.coordination import Done, Transaction
from cluster.coordination.sqlite_coordination import SqliteCoordination
from cluster.tests.catalogs import opened_catalog
from cluster.tests.planned_hosts import HearingHosts
from cluster.tests.virtual_time import CountingEntropy, SettableClock, some_secrets
from visibility.tests.prepared import ACCOUNT, REGION

MINUTE_MS = 60_000
FIFO = {"FifoQueue": "true"}


def owner(name: str) -> tuple[str, str, str]:
    return ACCOUNT, REGION, name


def arn_of(queue_name: str, *, account: str = ACCOUNT, region: str = REGION) -> str:
    return f"arn:aws:sqs:{region}:{account}:{queue_name}"


def policy_for(queue_name: str, *, account: str = ACCOUNT, region: str = REGION) -> str:
    """A redrive policy that names this queue."""
    target = arn_of(queue_name, account=account, region=region)
    return json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": 3})


def allowing(permission: str, *source_names: str) -> str:
    """A redrive allow policy."""
    policy: dict[str, object] = {"redrivePermission": permission}
    if source_names:
        policy["sourceQueueArns"] = [arn_of(name) for name in source_names]
    return json.dumps(policy)


class CatalogFile:
    """A catalog that can be closed and opened again."""

    def __init__(self, file: Path, *, restore_window_ms: int = 0) -> None:
        self.file = file
        self.restore_window_ms = restore_window_ms
        self.clock = SettableClock()
        self.entropy = CountingEntropy()
        self.others = HearingHosts()
        self.catalog: Catalog

    async def open(self, shards: tuple[int, ...] = (0,)) -> Catalog:
        self._records = await SqliteCoordination.open(self.file)
        self.catalog = await opened_catalog(
            self._records,
            clock=self.clock,
            entropy=self.entropy,
            shards=shards,
            restore_window_ms=self.restore_window_ms,
            others=self.others,
        )
        return self.catalog

    async def write(self, entries: Entries) -> None:
        """Write records that no action would write."""
        codec = RecordCodec(some_secrets())
        records = {
            key: None if entry is None else codec.encode(entry) for key, entry in entries.items()
        }
        assert isinstance(await self._records.commit(Transaction({}, records)), Done)
        assert await self.catalog.caught_up()

    async def reopen(self) -> Catalog:
        await self.catalog.close()
        return await self.open()
