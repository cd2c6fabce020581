"""The catalog over restarts: the original scope of deduplication, and permissions."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from cluster.catalog.catalog_records import queue_key
from cluster.tests.catalog_file import FIFO, CatalogFile, arn_of, owner
from visibility.contract.errors import InvalidAttributeValue, InvalidParameterValue

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


async def test_a_policy_that_older_versions_took_stays_and_can_be_changed(tmp_path: Path) -> None:
    file = CatalogFile(tmp_path / "catalog.sqlite")
    queue = await (await file.open()).create_queue(owner("q"), {}, {})
    older = {"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Sid": "old"}]}
    attributes = queue.attributes | {"Policy": json.dumps(older)}
    with_policy = msgspec.structs.replace(queue, attributes=attributes)
    await file.write({queue_key(owner("q")): with_policy})

    queue = (await file.reopen()).queue(*owner("q"))
    await file.catalog.add_permission(queue, "new", ["1" * 12], ["SendMessage"])
    await file.catalog.set_attributes(queue, {"DelaySeconds": "1"})
    with pytest.raises(InvalidAttributeValue):
        await file.catalog.set_attributes(queue, {"Policy": json.dumps(older)})
    await file.catalog.remove_permission(queue, "old")

    policy = json.loads((await file.reopen()).queue(*owner("q")).attributes["Policy"])
    assert [statement["Sid"] for statement in policy["Statement"]] == ["new"]
    await file.catalog.close()


async def test_a_policy_for_another_queue_is_stored_with_a_warning(tmp_path: Path) -> None:
    file = CatalogFile(tmp_path / "catalog.sqlite")
    grant = {"Effect": "Allow", "Principal": "*", "Action": "sqs:*", "Resource": arn_of("other")}
    given = {"Policy": json.dumps({"Statement": grant})}
    await file.open()

    with capture_logs() as logs:
        queue = await file.catalog.create_queue(owner("q"), given, {})
        await file.catalog.set_attributes(queue, given)
        await file.catalog.create_queue(owner("other"), given, {})

    assert [(line["event"], line["queue"], line["statements"]) for line in logs] == [
        ("policy_without_effect", arn_of("q"), ["statement 1"])
    ] * 2
    assert file.catalog.queue(*owner("q")).attributes["Policy"] == given["Policy"]
    with pytest.raises(InvalidAttributeValue, match=r"^Invalid value for the parameter Policy\.$"):
        await file.catalog.set_attributes(queue, {"Policy": '{"Statement": []}'})
    await file.catalog.close()
