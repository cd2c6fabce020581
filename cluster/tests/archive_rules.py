"""The archive in the models: expired or deleted messages wait for it exactly once, until
acknowledged."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from hypothesis.stateful import invariant, rule

from cluster.shards.shard_report import ArchiveLimits
from cluster.tests.driver import Driver
from storage.tests.memory_store import MemoryStore
from visibility.contract.tags import ARCHIVE_ALL, ARCHIVE_TAG
from visibility.rows.row_codec import decode_row
from visibility.rows.row_keys import ARCHIVED, table_range
from visibility.rows.row_values import THE_SHARD, ArchivedMessage
from visibility.rules.archive_batches import AcknowledgeArchive, SealArchive, the_shard
from visibility.state.shard_state import ShardState
from visibility.tests import prepared

LIMITS = ArchiveLimits(1 << 40, retains=False)
TAGS = {ARCHIVE_TAG: ARCHIVE_ALL}
SHARD = the_shard(0)


@lru_cache(maxsize=20_000)
def _decoded(key: bytes, value: bytes) -> ArchivedMessage:
    return decode_row(ArchivedMessage, key, value)


def waiting(store: MemoryStore) -> list[ArchivedMessage]:
    """The messages waiting for the archive, in order."""
    rows = store.scan(*table_range(THE_SHARD, ARCHIVED))
    return [_decoded(key, value) for key, value in rows]


def acknowledge(driver: Driver, batch: int) -> None:
    source = driver.state.archive.source
    assert driver.submit(
        prepared.prepared(SHARD, AcknowledgeArchive(source=source, batch=batch))
    ).answers == [None]


def seal(driver: Driver) -> None:
    assert driver.submit(prepared.prepared(SHARD, SealArchive())).answers == [None]


class ArchiveRules:
    """For a machine whose queues have TAGS; its model notes deleted and expired messages in
    `archived`."""

    driver: Driver
    store: MemoryStore
    model: Any
    follower: ShardState

    @rule()
    def seal(self) -> None:
        seal(self.driver)

    @rule()
    def acknowledge(self) -> None:
        seal(self.driver)
        acknowledge(self.driver, self.driver.state.archive.next_batch - 1)
        self.archived.clear()

    @property
    def archived(self) -> dict[bytes, str]:
        """Reasons by body."""
        found: dict[bytes, str] = self.model.archived
        return found

    @invariant()
    def what_left_waits_for_the_archive_once(self) -> None:
        rows = waiting(self.store)
        assert {row.message.data: row.reason for row in rows} == self.archived
        assert len(rows) == len(self.archived)

    @invariant()
    def a_follower_knows_what_waits(self) -> None:
        ours = self.driver.state.archive
        theirs = self.follower.archive
        assert (theirs.next_position, theirs.next_batch, theirs.open_first, theirs.size) == (
            ours.next_position,
            ours.next_batch,
            ours.open_first,
            ours.size,
        )
        assert theirs.batches == ours.batches
