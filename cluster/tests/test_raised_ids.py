"""Before parts are changed all shards are heard; one that is away costs one wait a minute."""

from __future__ import annotations

import pytest

from cluster.shards.issued_ids import CatalogOlder, RaisedIds, check_ids
from cluster.tests.virtual_time import virtual
from cluster.tests.world import pass_time
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.model import Request


class _Shards:
    def __init__(self) -> None:
        self.away = {2}
        self.asked: list[int] = []

    async def ask(self, request: Request) -> None:
        """See `Router.ask`."""
        self.asked.append(request.queue.shard)
        if request.queue.shard in self.away:
            raise ServiceUnavailable()


@virtual
async def test_a_shard_that_is_away_is_asked_once_a_minute() -> None:
    shards = _Shards()
    ids = RaisedIds(shards.ask, lambda: 0)
    for _ in range(3):
        with pytest.raises(ServiceUnavailable, match="Shard 2 has not answered yet"):
            await ids.wait_for_all(range(3))
        await pass_time(19)
    assert shards.asked == [0, 1, 2]

    shards.away.clear()
    await pass_time(5)
    await ids.wait_for_all(range(3))
    assert shards.asked == [0, 1, 2, 2]


@virtual
async def test_new_queues_are_not_refused_for_a_minute() -> None:
    shards = _Shards()
    ids = RaisedIds(shards.ask, lambda: 0)
    with pytest.raises(ServiceUnavailable):
        await ids.wait_for_all(range(3))
    shards.away.clear()

    await ids.wait([2])


@virtual
async def test_all_shards_are_asked_before_anybody_changes_parts() -> None:
    shards, restored = _Shards(), 0
    ids = RaisedIds(shards.ask, lambda: restored)
    assert ids.unheard(range(4)) == {0, 1, 2, 3}
    await ids.ask_all(range(4))
    assert ids.unheard(range(4)) == {2}
    shards.away.clear()
    await ids.ask_all(range(4))
    assert ids.unheard(range(4)) == set()
    assert shards.asked == [0, 1, 2, 3, 2]

    restored = 1
    assert ids.unheard(range(4)) == {0, 1, 2, 3}
    await ids.ask_all(range(4))
    await ids.wait_for_all(range(4))
    assert shards.asked[5:] == [0, 1, 2, 3]


def test_one_queue_above_the_last_issued_id_is_enough_to_refuse() -> None:
    """Rule 38: the next queue would have its messages."""
    check_ids(0, {2, 5}, 5)
    with pytest.raises(CatalogOlder, match="holds queue 5"):
        check_ids(0, {2, 5}, 4)
