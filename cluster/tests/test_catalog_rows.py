"""What the catalog keeps over restarts: the scope of deduplication as it was created, and permissions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster.tests.catalog_file import FIFO, CatalogFile, owner
from visibility.errors import InvalidParameterValue

GROUPED = {**FIFO, "DeduplicationScope": "messageGroup"}
MADE = {"q": {}, "a.fifo": FIFO, "b.fifo": GROUPED}
SCOPES = {"q": "", "a.fifo": "queue", "b.fifo": "messageGroup"}


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
