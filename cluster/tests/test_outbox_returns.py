"""Messages that the other shard refused are in their places again."""

from __future__ import annotations

import msgspec

from cluster.tests.shard_pair import ShardPair
from visibility.rules.arrivals import TARGET_GONE
from visibility.rules.move_tasks import MoveSelected
from visibility.tests import prepared


def test_refused_messages_that_were_visible_again_are_received_once() -> None:
    pair = ShardPair(max_receive_count=9)
    pair.send("a", "b", "c")
    pair.receive(pair.source)
    pair.pass_time(6_000)
    request = prepared.start_move_task(pair.source, pair.letters)
    chosen = msgspec.structs.replace(request, operation=MoveSelected(sequences=[2, 3]))
    pair.shards[0].submit(chosen)

    pair.clear([(each.origin, each.number, TARGET_GONE) for each in pair.read().arrivals])

    assert sorted(pair.receive(pair.source)) == ["a", "b", "c"]
