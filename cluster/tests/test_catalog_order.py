"""Tags of the order by the sender's clock that the catalog accepts: late queue, delay, parts."""

from __future__ import annotations

import pytest

from cluster.tests.catalog_file import CatalogFile, owner
from visibility.contract.errors import InvalidParameterValue
from visibility.tests.prepared import ACCOUNT

ORDER = {"holdfast:order": "sender-clock", "holdfast:order-window": "500"}


def late(arn: str) -> dict[str, str]:
    return ORDER | {"holdfast:late-queue": arn}


async def test_a_late_queue_is_there_when_it_is_named(file: CatalogFile) -> None:
    catalog = file.catalog
    other = await catalog.create_queue(owner("other"), {}, {})
    queue = await catalog.create_queue(owner("q"), {}, late(other.arn))
    ordered = await catalog.create_queue(owner("ordered"), {}, ORDER)
    missing = other.arn.replace("other", "missing")
    foreign = other.arn.replace(ACCOUNT, "1" * 12)
    await catalog.create_queue(("1" * 12, other.region, "other"), {}, {})

    for arn in (missing, foreign, ordered.arn, queue.arn):
        with pytest.raises(InvalidParameterValue, match="holdfast:late-queue is invalid"):
            await catalog.tag_queue(queue, late(arn))
        with pytest.raises(InvalidParameterValue, match="holdfast:late-queue is invalid"):
            await catalog.create_queue(owner("r"), {}, late(arn))
    await catalog.tag_queue(ordered, late(other.arn))


async def test_a_delay_and_the_order_contradict_whichever_comes_last(file: CatalogFile) -> None:
    catalog = file.catalog
    queue = await catalog.create_queue(owner("q"), {"DelaySeconds": "5"}, {})

    with pytest.raises(InvalidParameterValue, match="DelaySeconds"):
        await catalog.tag_queue(queue, ORDER)
    with pytest.raises(InvalidParameterValue, match="DelaySeconds"):
        await catalog.create_queue(owner("r"), {"DelaySeconds": "5"}, ORDER)
    await catalog.set_attributes(queue, {"DelaySeconds": "0"})
    await catalog.tag_queue(queue, ORDER)
    with pytest.raises(InvalidParameterValue, match="DelaySeconds"):
        await catalog.set_attributes(queue, {"DelaySeconds": "5"})
    await catalog.untag_queue(queue, ["holdfast:order"])
    await catalog.set_attributes(queue, {"DelaySeconds": "5"})
