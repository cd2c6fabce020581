"""The catalog owns queue definitions, on disk before in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cluster.catalog.catalog import Catalog
from cluster.catalog.queue_rules import Waits
from cluster.coordination.sqlite_coordination import SqliteCoordination
from cluster.tests.catalog_file import MINUTE_MS, CatalogFile, owner, policy_for
from cluster.tests.catalogs import opened_catalog
from visibility.contract.errors import (
    InvalidAttributeName,
    QueueDeletedRecently,
    QueueDoesNotExist,
    QueueNameExists,
)
from visibility.contract.model import QueueDefinition
from visibility.tests import prepared
from visibility.tests.prepared import ACCOUNT, REGION


async def test_a_new_queue_has_all_attributes_and_keeps_its_tags(file: CatalogFile) -> None:
    queue = await file.catalog.create_queue(owner("q"), {"DelaySeconds": "7"}, {"team": "blue"})

    assert file.catalog.queue(*owner("q")) == queue
    assert (queue.attributes["DelaySeconds"], queue.attributes["VisibilityTimeout"]) == ("7", "30")
    assert (queue.settings.delay_ms, queue.tags, queue.version) == (7_000, {"team": "blue"}, 1)
    assert queue.created_at_ms == queue.modified_at_ms == file.clock.at_ms
    assert len(queue.receipt_key) == 32
    assert len(file.catalog) == 1


async def test_creating_a_queue_again_gives_the_same_if_nothing_given_differs(
    file: CatalogFile,
) -> None:
    queue = await file.catalog.create_queue(owner("q"), {"DelaySeconds": "7"}, {})

    for given in ({}, {"DelaySeconds": "7"}, {"VisibilityTimeout": "30"}):
        assert await file.catalog.create_queue(owner("q"), given, {"tag": "new"}) == queue

    assert len(file.catalog) == 1


async def test_creating_a_queue_with_another_attribute_is_refused_and_changes_nothing(
    file: CatalogFile,
) -> None:
    queue = await file.catalog.create_queue(owner("q"), {}, {})

    with pytest.raises(QueueNameExists, match="DelaySeconds"):
        await file.catalog.create_queue(owner("q"), {"DelaySeconds": "7"}, {})

    assert file.catalog.queue(*owner("q")) == queue


async def test_a_refused_attribute_creates_no_queue(file: CatalogFile) -> None:
    with pytest.raises(InvalidAttributeName):
        await file.catalog.create_queue(owner("q"), {"Nonsense": "1"}, {})

    assert list(file.catalog) == []


async def test_accounts_and_regions_have_names_of_their_own(file: CatalogFile) -> None:
    places = [owner("q"), ("1" * 12, REGION, "q"), (ACCOUNT, "eu-west-1", "q")]

    made = [await file.catalog.create_queue(place, {}, {}) for place in places]

    assert len({queue.queue_id for queue in made}) == 3
    assert [file.catalog.queue_of_arn(queue.arn) for queue in made] == made
    assert file.catalog.queue_of_arn("arn:aws:sqs:us-east-1:000000000000:none") is None
    assert file.catalog.queue_of_arn("rubbish") is None
    assert file.catalog.accounts == 2
    for queue in made[:2]:
        await file.catalog.delete_queue(queue)
    assert file.catalog.accounts == 1


async def test_names_are_sorted_and_of_one_account_region_and_prefix(file: CatalogFile) -> None:
    for name in ("b2", "a", "b1", "b10"):
        await file.catalog.create_queue(owner(name), {}, {})
    await file.catalog.create_queue(("1" * 12, REGION, "b3"), {}, {})
    await file.catalog.create_queue((ACCOUNT, "eu-west-1", "b4"), {}, {})

    assert file.catalog.names(ACCOUNT, REGION, "") == ["a", "b1", "b10", "b2"]
    assert file.catalog.names(ACCOUNT, REGION, "b") == ["b1", "b10", "b2"]
    assert file.catalog.names(ACCOUNT, REGION, "c") == []


async def test_names_are_sorted_once_and_follow_creates_and_deletes(file: CatalogFile) -> None:
    """A client that reads 100,000 names in pages would have them sorted a hundred times."""
    catalog = file.catalog
    for name in ("b", "a"):
        await catalog.create_queue(owner(name), {}, {})
    sorted_once = catalog.names(ACCOUNT, REGION, "")

    assert catalog.names(ACCOUNT, REGION, "") is sorted_once
    await catalog.create_queue(owner("ab"), {}, {})
    assert catalog.names(ACCOUNT, REGION, "") == ["a", "ab", "b"]
    await catalog.delete_queue(catalog.queue(*owner("a")))
    assert catalog.names(ACCOUNT, REGION, "") == ["ab", "b"]
    assert catalog.names(ACCOUNT, REGION, "a") == ["ab"]


async def test_a_deleted_name_is_taken_for_60_seconds_also_over_a_restart(
    file: CatalogFile,
) -> None:
    queue = await file.catalog.create_queue(owner("q"), {}, {})
    await file.catalog.delete_queue(queue)
    with pytest.raises(QueueDoesNotExist):
        file.catalog.queue(*owner("q"))

    file.clock.at_ms += MINUTE_MS - 1
    for catalog in (file.catalog, await file.reopen()):
        with pytest.raises(QueueDeletedRecently):
            await catalog.create_queue(owner("q"), {}, {})

    file.clock.at_ms += 1
    again = await file.catalog.create_queue(owner("q"), {}, {})
    assert again.queue_id > queue.queue_id
    assert again.receipt_key != queue.receipt_key


async def test_a_name_may_be_taken_at_once_when_the_wait_is_off(tmp_path: Path) -> None:
    catalog = await opened_catalog(
        await SqliteCoordination.open(tmp_path / "catalog.sqlite"),
        waits=Waits(deleted_name_ms=0),
    )

    await catalog.delete_queue(await catalog.create_queue(owner("q"), {}, {}))

    assert (await catalog.create_queue(owner("q"), {}, {})).queue_id == 2
    await catalog.close()


async def test_a_queue_is_deleted_once(file: CatalogFile) -> None:
    queue = await file.catalog.create_queue(owner("q"), {}, {})

    answers = await asyncio.gather(
        *[file.catalog.delete_queue(queue) for _ in range(5)], return_exceptions=True
    )

    assert [type(answer) for answer in answers] == [type(None)] + [QueueDoesNotExist] * 4


async def test_an_old_definition_does_not_delete_the_new_queue_of_its_name(
    file: CatalogFile,
) -> None:
    old = await file.catalog.create_queue(owner("q"), {}, {})
    await file.catalog.delete_queue(old)
    file.clock.at_ms += MINUTE_MS
    new = await file.catalog.create_queue(owner("q"), {}, {})

    with pytest.raises(QueueDoesNotExist):
        await file.catalog.delete_queue(old)

    assert file.catalog.queue(*owner("q")) == new


async def test_ids_are_never_used_again_even_if_the_last_queue_was_deleted(
    file: CatalogFile,
) -> None:
    seen: list[int] = []
    for number in range(4):
        queue = await file.catalog.create_queue(owner(f"q{number}"), {}, {})
        seen.append(queue.queue_id)
        await file.catalog.delete_queue(queue)
        await file.reopen()

    assert seen == sorted(set(seen))


async def test_everything_is_there_after_a_restart(file: CatalogFile) -> None:
    made = await file.catalog.create_queue(owner("q"), {"DelaySeconds": "7"}, {"a": "1", "b": "2"})
    await file.catalog.create_queue(owner("r"), {}, {})
    file.clock.at_ms += 5_000
    await file.catalog.set_attributes(made, {"VisibilityTimeout": "9"})
    await file.catalog.tag_queue(made, {"c": "3", "a": "4"})
    await file.catalog.untag_queue(made, ["b", "unknown"])
    before = sorted(file.catalog, key=lambda queue: queue.queue_id)

    catalog = await file.reopen()

    assert sorted(catalog, key=lambda queue: queue.queue_id) == before
    queue = catalog.queue(*owner("q"))
    assert (queue.tags, queue.version) == ({"a": "4", "c": "3"}, 4)
    assert (queue.settings.visibility_timeout_ms, queue.settings.delay_ms) == (9_000, 7_000)
    assert queue.modified_at_ms == queue.created_at_ms + 5_000
    assert queue.receipt_key == made.receipt_key


async def test_tags_do_not_count_as_a_modification(file: CatalogFile) -> None:
    queue = await file.catalog.create_queue(owner("q"), {}, {})
    file.clock.at_ms += 5_000

    await file.catalog.tag_queue(queue, {"a": "1"})

    assert file.catalog.queue(*owner("q")).modified_at_ms == queue.modified_at_ms


async def test_changes_of_a_deleted_queue_are_refused(file: CatalogFile) -> None:
    queue = await file.catalog.create_queue(owner("q"), {}, {})
    await file.catalog.delete_queue(queue)

    with pytest.raises(QueueDoesNotExist):
        await file.catalog.set_attributes(queue, {"DelaySeconds": "1"})
    with pytest.raises(QueueDoesNotExist):
        await file.catalog.tag_queue(queue, {"a": "1"})
    with pytest.raises(QueueDoesNotExist):
        await file.catalog.untag_queue(queue, ["a"])


async def test_creates_of_one_name_at_the_same_time_make_one_queue(file: CatalogFile) -> None:
    made = await asyncio.gather(*[file.catalog.create_queue(owner("q"), {}, {}) for _ in range(20)])

    assert len({queue.queue_id for queue in made}) == 1
    assert len(await file.reopen()) == 1


async def test_changes_at_the_same_time_are_all_kept(file: CatalogFile) -> None:
    queue = await file.catalog.create_queue(owner("q"), {}, {})

    await asyncio.gather(
        file.catalog.set_attributes(queue, {"DelaySeconds": "1"}),
        file.catalog.set_attributes(queue, {"VisibilityTimeout": "2"}),
        *[file.catalog.tag_queue(queue, {f"tag{number}": "x"}) for number in range(5)],
    )

    for catalog in (file.catalog, await file.reopen()):
        changed = catalog.queue(*owner("q"))
        assert changed.attributes["DelaySeconds"] == "1"
        assert changed.attributes["VisibilityTimeout"] == "2"
        assert (len(changed.tags), changed.version) == (5, 8)


async def test_queues_spread_over_the_shards(tmp_path: Path) -> None:
    file = CatalogFile(tmp_path / "catalog.sqlite")
    catalog = await file.open(shards=(3, 1))

    made = [await catalog.create_queue(owner(f"q{number}"), {}, {}) for number in range(4)]

    assert sorted(queue.shard for queue in made) == [1, 1, 3, 3]
    await catalog.close()


# -- requests that waited --------------------------------------------------------------------------


async def make_source(catalog: Catalog) -> tuple[QueueDefinition, QueueDefinition]:
    """A queue "q" and the queue "dead" that its policy names."""
    target = await catalog.create_queue(owner("dead"), {}, {})
    source = await catalog.create_queue(owner("q"), {"RedrivePolicy": policy_for("dead")}, {})
    return source, target


async def test_a_request_is_renewed_to_itself_when_nothing_changed(file: CatalogFile) -> None:
    source, target = await make_source(file.catalog)
    request = prepared.receive(source, dead_letter_queue=target)

    assert file.catalog.renewed(request) is request


async def test_a_renewed_request_has_the_definitions_of_now(file: CatalogFile) -> None:
    source, target = await make_source(file.catalog)
    request = prepared.receive(source, 7, dead_letter_queue=target)

    await file.catalog.set_attributes(source, {"VisibilityTimeout": "9"})
    changed = file.catalog.renewed(request)
    await file.catalog.delete_queue(target)
    without_target = file.catalog.renewed(request)
    await file.catalog.set_attributes(source, {"RedrivePolicy": ""})
    without_policy = file.catalog.renewed(request)

    assert changed is not None
    assert changed.queue.settings.visibility_timeout_ms == 9_000
    assert (changed.dead_letter_queue, changed.operation) == (target, request.operation)
    assert without_target is not None
    assert without_target.dead_letter_queue is None
    assert without_policy is not None
    assert without_policy.queue.settings.redrive_policy is None


async def test_a_move_is_renewed_with_the_destination_of_now(file: CatalogFile) -> None:
    source, target = await make_source(file.catalog)
    request = prepared.start_move_task(target, source)

    await file.catalog.set_attributes(source, {"VisibilityTimeout": "9"})
    changed = file.catalog.renewed(request)
    purged = await file.catalog.purge_queue(file.catalog.queue(*owner("q")))
    continued = file.catalog.renewed(request)
    await file.catalog.delete_queue(purged)

    assert changed is not None
    assert changed.destination is not None
    assert changed.destination.settings.visibility_timeout_ms == 9_000
    assert continued is not None
    assert continued.destination == purged
    gone = file.catalog.renewed(request)
    assert gone is not None
    assert gone.destination == request.destination, "the shard refuses it"


async def test_a_request_of_a_deleted_queue_is_not_renewed_to_the_new_one_of_its_name(
    file: CatalogFile,
) -> None:
    source, target = await make_source(file.catalog)
    request = prepared.receive(source, dead_letter_queue=target)

    await file.catalog.delete_queue(source)
    assert file.catalog.renewed(request) is None

    file.clock.at_ms += MINUTE_MS
    await file.catalog.create_queue(owner("q"), {}, {})
    assert file.catalog.renewed(request) is None


async def test_the_highest_id_counts_deleted_queues(file: CatalogFile) -> None:
    assert file.catalog.highest_queue_id == 0
    for name in ("a", "b"):
        await file.catalog.create_queue(owner(name), {}, {})
    await file.catalog.delete_queue(file.catalog.queue(*owner("b")))

    assert (await file.reopen()).highest_queue_id == 2
