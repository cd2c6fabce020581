"""Files of older versions are opened, and the scope of deduplication stays as it was created."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cluster.tests.catalog_file import FIFO, CatalogFile, owner
from visibility.attributes import initial_attributes
from visibility.errors import InvalidParameterValue

OLD_SCHEMA = """
CREATE TABLE queues (
    queue_id INTEGER PRIMARY KEY AUTOINCREMENT,
    account TEXT NOT NULL, region TEXT NOT NULL, name TEXT NOT NULL,
    version INTEGER NOT NULL, shard INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL, modified_at_ms INTEGER NOT NULL,
    receipt_key BLOB NOT NULL, attributes TEXT NOT NULL, tags TEXT NOT NULL,
    UNIQUE (account, region, name));
CREATE TABLE deleted_names (
    account TEXT NOT NULL, region TEXT NOT NULL, name TEXT NOT NULL, deleted_at_ms INTEGER NOT NULL,
    PRIMARY KEY (account, region, name));
"""
"""As version 0.1 made it."""

GROUPED = {**FIFO, "DeduplicationScope": "messageGroup"}
MADE = {"q": {}, "a.fifo": FIFO, "b.fifo": GROUPED}
SCOPES = {"q": "", "a.fifo": "queue", "b.fifo": "messageGroup"}


def _old_file(file: Path) -> None:
    with closing(sqlite3.connect(file)) as database:
        database.executescript(OLD_SCHEMA)
        for name, given in MADE.items():
            attributes = json.dumps(initial_attributes(name, given))
            database.execute(
                "INSERT INTO queues (account, region, name, version, shard, created_at_ms, "
                "modified_at_ms, receipt_key, attributes, tags) VALUES (?,?,?,3,0,5,6,?,?,?)",
                (*owner(name), b"k" * 32, attributes, '{"a": "b"}'),
            )
        database.commit()


async def test_a_file_of_version_0_1_is_opened_more_than_once(tmp_path: Path) -> None:
    _old_file(tmp_path / "catalog.sqlite")
    file = CatalogFile(tmp_path / "catalog.sqlite")

    for catalog in (await file.open(), await file.reopen()):
        assert {queue.name: queue.deduplication_scope for queue in catalog} == SCOPES
        queue = catalog.queue(*owner("q"))
        assert (queue.version, queue.created_at_ms, queue.modified_at_ms) == (3, 5, 6)
        assert (queue.receipt_key, queue.tags) == (b"k" * 32, {"a": "b"})
        assert catalog.highest_queue_id == 3

    await file.catalog.create_queue(owner("c.fifo"), GROUPED, {})
    assert file.catalog.queue(*owner("c.fifo")).deduplication_scope == "messageGroup"
    await file.catalog.close()


async def test_the_scope_of_the_creation_stays_whatever_is_set_and_shown(tmp_path: Path) -> None:
    file = CatalogFile(tmp_path / "catalog.sqlite")
    await file.open()
    for name, given in MADE.items():
        await file.catalog.create_queue(owner(name), given, {})
    for name, scope in (("a.fifo", "messageGroup"), ("b.fifo", "queue")):
        queue = file.catalog.queue(*owner(name))
        await file.catalog.set_attributes(queue, {"DeduplicationScope": scope})
        assert file.catalog.queue(*owner(name)).attributes["DeduplicationScope"] == scope

    for catalog in (file.catalog, await file.reopen()):
        assert {queue.name: queue.deduplication_scope for queue in catalog} == SCOPES
    await file.catalog.close()


async def test_permissions_are_kept_and_the_last_takes_the_policy_along(tmp_path: Path) -> None:
    file = CatalogFile(tmp_path / "catalog.sqlite")
    queue = await (await file.open()).create_queue(owner("q"), {}, {})

    for label in ("b", "a"):
        await file.catalog.add_permission(queue, label, ["1" * 12], ["SendMessage"])
    with pytest.raises(InvalidParameterValue, match="Already exists"):
        await file.catalog.add_permission(queue, "a", ["2" * 12], ["*"])
    policy = json.loads((await file.reopen()).queue(*owner("q")).attributes["Policy"])
    for label in ("a", "b"):
        await file.catalog.remove_permission(queue, label)

    assert [statement["Sid"] for statement in policy["Statement"]] == ["b", "a"]
    assert policy["Id"] == f"{queue.arn}/SQSDefaultPolicy"
    assert "Policy" not in (await file.reopen()).queue(*owner("q")).attributes
    with pytest.raises(InvalidParameterValue, match="can't find label"):
        await file.catalog.remove_permission(queue, "a")
    await file.catalog.close()
