"""A catalog of version 0.1 (`catalog_0_1.sql`) opens complete, even if its conversion is
interrupted."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cluster.catalog import catalog_0_1
from cluster.catalog.catalog_records import KeptState
from cluster.catalog.sqlite_coordination import read_records
from cluster.tests.catalog_file import CatalogFile, owner
from visibility.contract.errors import QueueDeletedRecently

HOUR_MS = 3_600_000


@pytest.fixture
def file(tmp_path: Path) -> CatalogFile:
    """The file of version 0.1, closed."""
    found = CatalogFile(tmp_path / "catalog.sqlite", restore_window_ms=HOUR_MS)
    with closing(sqlite3.connect(found.file)) as database:
        database.executescript(Path(__file__).with_name("catalog_0_1.sql").read_text())
    return found


async def check_content(file: CatalogFile) -> None:
    catalog = await file.open()
    queues = {queue.name: queue for queue in catalog}
    assert {name: (q.queue_id, q.version, q.receipt_key[-1]) for name, q in queues.items()} == {
        "plain": (1, 1, 1),
        "scoped.fifo": (2, 2, 2),
        "purged": (4, 2, 3),
    }
    assert (queues["plain"].attributes["DelaySeconds"], queues["plain"].tags) == (
        "7",
        {"team": "blue"},
    )
    assert queues["scoped.fifo"].attributes["DeduplicationScope"] == "queue"
    assert queues["scoped.fifo"].deduplication_scope == "messageGroup"
    kept = {each.queue.queue_id: each for each in catalog.kept}
    assert {at: (k.queue.name, k.state, k.continued_as) for at, k in kept.items()} == {
        3: ("purged", KeptState.KEPT, 4),
        5: ("deleted", KeptState.KEPT, 0),
    }
    assert kept[5].queue.settings.visibility_timeout_ms == 9_000
    assert catalog.highest_queue_id == 6
    await catalog.close()


async def test_everything_is_taken_over_once_and_stays(file: CatalogFile) -> None:
    await check_content(file)
    await check_content(file)

    catalog = await file.open()
    with pytest.raises(QueueDeletedRecently):
        await catalog.create_queue(owner("last"), {}, {})
    assert (await catalog.create_queue(owner("new"), {}, {})).queue_id == 7
    assert (await catalog.restore_queue(5)).attributes["VisibilityTimeout"] == "9"
    await catalog.close()


async def test_the_first_catalogs_had_no_state_of_deleted_queues(file: CatalogFile) -> None:
    with closing(sqlite3.connect(file.file)) as database:
        for column in ("state", "continued_as"):
            database.execute(f"ALTER TABLE deleted_queues DROP COLUMN {column}")

    kept = {each.queue.queue_id: each for each in (await file.open()).kept}

    assert {at: (k.state, k.continued_as) for at, k in kept.items()} == {
        3: (KeptState.KEPT, 0),
        5: (KeptState.KEPT, 0),
    }
    await file.catalog.close()


async def test_a_conversion_that_fails_changes_nothing(
    file: CatalogFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(file.file)) as database:
        before = list(database.iterdump())
    monkeypatch.setattr(catalog_0_1, "_TABLES", ("queues", "deleted_queues", "no_such_table"))
    with pytest.raises(sqlite3.OperationalError):
        await file.open()
    monkeypatch.undo()

    with closing(sqlite3.connect(file.file)) as database:
        assert list(database.iterdump()) == before
    await check_content(file)


async def test_a_row_that_cannot_be_read_is_named(file: CatalogFile) -> None:
    with closing(sqlite3.connect(file.file)) as database, database:
        database.execute("UPDATE queues SET tags = '[]' WHERE name = 'plain'")

    with pytest.raises(sqlite3.DataError, match="queue 'plain' cannot be read"):
        await file.open()


async def test_its_records_can_be_read_without_converting_it(file: CatalogFile) -> None:
    with closing(sqlite3.connect(file.file)) as database:
        before = {record.key: record.value for record in read_records(database).records}
    await check_content(file)

    with closing(sqlite3.connect(file.file)) as database:
        after = {record.key: record.value for record in read_records(database).records}
    assert before == after
