"""Destinations of dead letters: redrive policies that the catalog accepts, and those in force."""

from __future__ import annotations

import re

import msgspec
import pytest

from cluster.catalog.catalog import Catalog
from cluster.tests.catalog_file import FIFO, CatalogFile, allowing, arn_of, owner, policy_for
from visibility.contract.errors import InvalidParameterValue, QueueNameExists
from visibility.tests import prepared
from visibility.tests.prepared import ACCOUNT, REGION

# -- sources of a queue ----------------------------------------------------------------------------


async def test_dead_letter_sources_are_those_whose_policy_names_the_queue(
    file: CatalogFile,
) -> None:
    target = await file.catalog.create_queue(owner("dead"), {}, {})
    policy = f'{{"deadLetterTargetArn": "{target.arn}", "maxReceiveCount": 3}}'
    for name in ("z", "a"):
        await file.catalog.create_queue(owner(name), {"RedrivePolicy": policy}, {})
    await file.catalog.create_queue(owner("none"), {}, {})

    sources = file.catalog.dead_letter_sources(target)

    assert [queue.name for queue in sources] == ["a", "z"]
    assert file.catalog.dead_letter_sources(sources[0]) == []


async def test_dead_letter_sources_are_of_one_account_and_region(file: CatalogFile) -> None:
    await make_targets(file.catalog)
    for account, region in ((ACCOUNT, REGION), ("1" * 12, REGION), (ACCOUNT, "eu-west-1")):
        policy = policy_for("dead", account=account, region=region)
        await file.catalog.create_queue((account, region, "q"), {"RedrivePolicy": policy}, {})
    await file.catalog.create_queue(owner("undead"), {}, {})
    given = {"RedrivePolicy": policy_for("undead")}
    await file.catalog.create_queue(owner("r"), given, {})

    target = file.catalog.queue(*owner("dead"))

    assert file.catalog.dead_letter_sources(target) == [file.catalog.queue(*owner("q"))]


async def test_sources_that_their_target_denies_are_listed(file: CatalogFile) -> None:
    target = await file.catalog.create_queue(owner("dead"), {}, {})
    source = await file.catalog.create_queue(owner("q"), {"RedrivePolicy": policy_for("dead")}, {})

    await file.catalog.set_attributes(target, {"RedriveAllowPolicy": allowing("denyAll")})

    assert file.catalog.dead_letter_sources(target) == [source]


# -- targets that are not there --------------------------------------------------------------------

FOREIGN_TARGETS = {
    "missing": policy_for("missing"),
    "of another account": policy_for("dead", account="1" * 12),
    "of another region": policy_for("dead", region="eu-west-1"),
}


async def make_targets(catalog: Catalog) -> None:
    """Queues "dead" of this account, of another one, and in another region."""
    for place in (owner("dead"), ("1" * 12, REGION, "dead"), (ACCOUNT, "eu-west-1", "dead")):
        await catalog.create_queue(place, {}, {})


def refused_target(policy: str) -> str:
    """The words of the refusal, as a pattern."""
    words = (
        f"Value {policy} for parameter RedrivePolicy is invalid. "
        "Reason: Dead letter target does not exist."
    )
    return f"^{re.escape(words)}$"


@pytest.mark.parametrize("policy", FOREIGN_TARGETS.values(), ids=FOREIGN_TARGETS)
async def test_a_policy_with_a_target_that_is_not_there_creates_no_queue(
    file: CatalogFile, policy: str
) -> None:
    await make_targets(file.catalog)

    with pytest.raises(InvalidParameterValue, match=refused_target(policy)):
        await file.catalog.create_queue(owner("q"), {"RedrivePolicy": policy}, {})

    assert file.catalog.names(ACCOUNT, REGION, "") == ["dead"]


@pytest.mark.parametrize("policy", FOREIGN_TARGETS.values(), ids=FOREIGN_TARGETS)
async def test_a_policy_with_a_target_that_is_not_there_is_not_set(
    file: CatalogFile, policy: str
) -> None:
    await make_targets(file.catalog)
    queue = await file.catalog.create_queue(owner("q"), {}, {})
    given = {"DelaySeconds": "7", "RedrivePolicy": policy}

    with pytest.raises(InvalidParameterValue, match=refused_target(policy)):
        await file.catalog.set_attributes(queue, given)

    assert file.catalog.queue(*owner("q")) == queue


async def test_a_queue_may_be_its_own_dead_letter_queue(file: CatalogFile) -> None:
    given = {"RedrivePolicy": policy_for("q")}

    queue = await file.catalog.create_queue(owner("q"), given, {})
    assert file.catalog.dead_letter_queue(queue) == queue

    await file.catalog.set_attributes(queue, given)
    queue = file.catalog.queue(*owner("q"))
    assert file.catalog.dead_letter_queue(queue) == queue


async def test_a_policy_can_be_removed_and_other_attributes_set_when_its_target_is_gone(
    file: CatalogFile,
) -> None:
    target = await file.catalog.create_queue(owner("dead"), {}, {})
    queue = await file.catalog.create_queue(owner("q"), {"RedrivePolicy": policy_for("dead")}, {})
    await file.catalog.delete_queue(target)
    assert file.catalog.dead_letter_queue(queue) is None

    await file.catalog.set_attributes(queue, {"DelaySeconds": "7"})
    await file.catalog.set_attributes(queue, {"RedrivePolicy": ""})

    queue = file.catalog.queue(*owner("q"))
    assert (queue.settings.delay_ms, queue.settings.redrive_policy) == (7_000, None)


@pytest.mark.parametrize("policy", FOREIGN_TARGETS.values(), ids=FOREIGN_TARGETS)
async def test_dead_letters_never_leave_the_account_and_region(
    file: CatalogFile, policy: str
) -> None:
    await make_targets(file.catalog)
    older = prepared.queue_named("q", 9, RedrivePolicy=policy)

    assert file.catalog.dead_letter_queue(older) is None


async def test_a_queue_without_a_policy_has_no_dead_letter_queue(file: CatalogFile) -> None:
    queue = await file.catalog.create_queue(owner("q"), {}, {})

    assert file.catalog.dead_letter_queue(queue) is None


# -- targets of another type, and those that do not allow the source -------------------------------


def refusal(policy: str, reason: str) -> str:
    """The whole text of a refused policy, as a pattern."""
    words = f"Value {policy} for parameter RedrivePolicy is invalid. Reason: {reason}"
    return f"^{re.escape(words)}$"


SAME_TYPE = "Dead-letter queue must be same type of queue as the source.."


@pytest.mark.parametrize(
    ("source", "given", "target"), [("q", {}, "dead.fifo"), ("q.fifo", FIFO, "dead")]
)
async def test_a_dead_letter_queue_is_of_the_type_of_its_source(
    file: CatalogFile, source: str, given: dict[str, str], target: str
) -> None:
    await file.catalog.create_queue(owner("dead"), {}, {})
    await file.catalog.create_queue(owner("dead.fifo"), FIFO, {})
    policy = policy_for(target)

    with pytest.raises(InvalidParameterValue, match=refusal(policy, SAME_TYPE)):
        await file.catalog.create_queue(owner(source), {**given, "RedrivePolicy": policy}, {})
    made = await file.catalog.create_queue(owner(source), given, {})
    with pytest.raises(InvalidParameterValue, match=refusal(policy, SAME_TYPE)):
        await file.catalog.set_attributes(made, {"RedrivePolicy": policy})

    assert file.catalog.queue(*owner(source)) == made


async def test_a_fifo_queue_sends_dead_letters_to_a_fifo_queue(file: CatalogFile) -> None:
    target = await file.catalog.create_queue(owner("dead.fifo"), FIFO, {})
    given = {**FIFO, "RedrivePolicy": policy_for("dead.fifo")}

    source = await file.catalog.create_queue(owner("q.fifo"), given, {})

    assert file.catalog.dead_letter_queue(source) == target


async def test_an_older_definition_of_another_type_has_no_dead_letter_queue(
    file: CatalogFile,
) -> None:
    await file.catalog.create_queue(owner("dead"), {}, {})
    older = prepared.queue_named("q", 9, RedrivePolicy=policy_for("dead"))
    settings = msgspec.structs.replace(older.settings, fifo=True)

    assert file.catalog.dead_letter_queue(older) is not None
    changed = msgspec.structs.replace(older, settings=settings)
    assert file.catalog.dead_letter_queue(changed) is None


DENYING = {
    "denies all": allowing("denyAll"),
    "allows others": allowing("byQueue", "other", "q2"),
}


@pytest.mark.parametrize("allowed", DENYING.values(), ids=DENYING)
async def test_a_policy_that_its_target_denies_is_refused(file: CatalogFile, allowed: str) -> None:
    await file.catalog.create_queue(owner("dead"), {"RedriveAllowPolicy": allowed}, {})
    policy = policy_for("dead")
    words = refusal(
        policy,
        f"Queue {arn_of('dead')} does not allow the queue {arn_of('q')} "
        "to use it as a dead-letter queue.",
    )

    with pytest.raises(InvalidParameterValue, match=words):
        await file.catalog.create_queue(owner("q"), {"RedrivePolicy": policy}, {})
    queue = await file.catalog.create_queue(owner("q"), {}, {})
    with pytest.raises(InvalidParameterValue, match=words):
        await file.catalog.set_attributes(queue, {"RedrivePolicy": policy})

    assert file.catalog.queue(*owner("q")) == queue


@pytest.mark.parametrize("allowed", ["", allowing("allowAll"), allowing("byQueue", "other", "q")])
async def test_a_policy_that_its_target_allows_is_taken(file: CatalogFile, allowed: str) -> None:
    target = await file.catalog.create_queue(owner("dead"), {"RedriveAllowPolicy": allowed}, {})

    source = await file.catalog.create_queue(owner("q"), {"RedrivePolicy": policy_for("dead")}, {})

    assert file.catalog.dead_letter_queue(source) == target


async def test_a_policy_set_earlier_stays_and_holds_while_its_target_allows_it(
    file: CatalogFile,
) -> None:
    target = await file.catalog.create_queue(owner("dead"), {}, {})
    given = {"RedrivePolicy": policy_for("dead")}
    source = await file.catalog.create_queue(owner("q"), given, {})
    answers = []

    for allowed in (allowing("denyAll"), allowing("byQueue", "q"), allowing("byQueue", "r"), ""):
        await file.catalog.set_attributes(target, {"RedriveAllowPolicy": allowed})
        found = file.catalog.dead_letter_queue(source)
        answers.append(found)
        assert found in (None, file.catalog.queue(*owner("dead")))
        assert file.catalog.dead_letter_queue(source) is found
        assert await file.catalog.create_queue(owner("q"), given, {}) == source

    assert [found is None for found in answers] == [True, False, True, False]
    assert file.catalog.queue(*owner("q")) == source


async def test_other_attributes_of_a_source_can_be_set_while_its_target_denies_it(
    file: CatalogFile,
) -> None:
    target = await file.catalog.create_queue(owner("dead"), {}, {})
    source = await file.catalog.create_queue(owner("q"), {"RedrivePolicy": policy_for("dead")}, {})
    await file.catalog.set_attributes(target, {"RedriveAllowPolicy": allowing("denyAll")})

    await file.catalog.set_attributes(source, {"DelaySeconds": "7"})

    assert file.catalog.queue(*owner("q")).settings.delay_ms == 7_000


async def test_a_queue_that_denies_all_does_not_allow_itself(file: CatalogFile) -> None:
    given = {"RedrivePolicy": policy_for("q"), "RedriveAllowPolicy": allowing("denyAll")}

    with pytest.raises(InvalidParameterValue, match="does not allow the queue"):
        await file.catalog.create_queue(owner("q"), given, {})
    given["RedriveAllowPolicy"] = allowing("byQueue", "q")
    queue = await file.catalog.create_queue(owner("q"), given, {})

    assert file.catalog.dead_letter_queue(queue) is queue


async def test_an_existing_queue_is_named_before_a_policy_that_could_not_be_set(
    file: CatalogFile,
) -> None:
    await file.catalog.create_queue(owner("q"), {}, {})

    with pytest.raises(QueueNameExists, match="RedrivePolicy"):
        await file.catalog.create_queue(owner("q"), {"RedrivePolicy": policy_for("missing")}, {})


async def test_a_target_is_found_anew_after_every_change(file: CatalogFile) -> None:
    first = await file.catalog.create_queue(owner("dead"), {}, {})
    other = await file.catalog.create_queue(owner("other"), {}, {})
    source = await file.catalog.create_queue(owner("q"), {"RedrivePolicy": policy_for("dead")}, {})
    assert file.catalog.dead_letter_queue(source) is first

    await file.catalog.set_attributes(first, {"DelaySeconds": "1"})
    changed = file.catalog.dead_letter_queue(source)
    await file.catalog.set_attributes(source, {"RedrivePolicy": policy_for("other")})
    turned = file.catalog.dead_letter_queue(file.catalog.queue(*owner("q")))
    stale = file.catalog.dead_letter_queue(source)
    await file.catalog.delete_queue(other)
    gone = file.catalog.dead_letter_queue(file.catalog.queue(*owner("q")))

    assert changed is file.catalog.queue(*owner("dead"))
    assert (turned, stale, gone) == (other, changed, None)


async def test_a_queue_does_not_make_room_in_itself(file: CatalogFile) -> None:
    catalog = file.catalog
    tags = {"holdfast:overflow": "dead-letter", "holdfast:max-messages": "5"}
    queue = await catalog.create_queue(owner("q"), {}, tags)
    to_itself = {"RedrivePolicy": policy_for("q")}

    with pytest.raises(InvalidParameterValue, match="its own dead-letter queue"):
        await catalog.set_attributes(queue, to_itself)
    with pytest.raises(InvalidParameterValue, match="its own dead-letter queue"):
        await catalog.create_queue(owner("r"), {"RedrivePolicy": policy_for("r")}, tags)
    await catalog.untag_queue(queue, ["holdfast:overflow"])
    await catalog.set_attributes(queue, to_itself)
    with pytest.raises(InvalidParameterValue, match="its own dead-letter queue"):
        await catalog.tag_queue(queue, {"holdfast:overflow": "dead-letter"})
    await catalog.tag_queue(
        queue, {"holdfast:overflow": "drop-oldest", "holdfast:max-messages": "10"}
    )
