"""A FIFO receive sends its dead letters to another shard before it takes anything."""

from __future__ import annotations

from cluster.tests.driver import Reply
from cluster.tests.shard_pair import ShardPair
from visibility.contract.model import QueueCounters
from visibility.tests import prepared


def receive_source(pair: ShardPair, most: int = 10) -> Reply:
    request = prepared.receive(pair.source, most, dead_letter_queue=pair.letters)
    return pair.shards[0].submit(request)


def bodies(reply: Reply) -> list[bytes]:
    return [message.data for message in reply.deliveries.messages]


def test_a_receive_waits_for_its_dead_letters_and_takes_what_is_behind_them() -> None:
    pair = ShardPair(".fifo")
    pair.spend("a")
    pair.send("b")

    reply = receive_source(pair)
    assert reply.waits
    pair.deliver()

    assert bodies(reply) == [b"b"]


def test_dead_letters_go_before_anything_is_received() -> None:
    pair = ShardPair(".fifo")
    pair.spend("a")
    pair.send("b")
    pair.send("c", group="h")

    reply = receive_source(pair)
    assert reply.waits
    assert pair.counters(pair.source) == QueueCounters(2, 0, 0)
    pair.deliver()

    assert sorted(bodies(reply)) == [b"b", b"c"]
    assert pair.receive(pair.letters) == ["a"]


def test_a_full_receive_does_not_wait_for_dead_letters() -> None:
    pair = ShardPair(".fifo")
    pair.send("a", "b")
    pair.send("c", group="h")
    pair.receive(pair.source, most=1)
    pair.pass_time(6_000)  # a is spent, its group behind the other

    assert bodies(receive_source(pair, most=1)) == [b"c"]


def test_a_receive_ends_empty_if_its_dead_letters_do_not_arrive() -> None:
    pair = ShardPair(".fifo")
    pair.spend("a")
    pair.send("b")

    reply = receive_source(pair)
    pair.pass_time(999)
    assert reply.waits
    pair.pass_time(1)

    assert bodies(reply) == []


def test_a_receive_that_waits_is_empty_if_nothing_was_behind_its_dead_letters() -> None:
    pair = ShardPair(".fifo")
    pair.spend("a")

    reply = receive_source(pair)
    pair.deliver()

    assert bodies(reply) == []


def test_other_long_polls_do_not_end_the_wait_for_dead_letters() -> None:
    pair = ShardPair(".fifo")
    other = prepared.queue_named("other.fifo", 9)
    pair.queues.define(other)
    pair.shards[0].submit(prepared.receive(other, wait_s=20))
    pair.spend("a")
    pair.send("b")

    reply = receive_source(pair)
    assert reply.waits
    pair.deliver()

    assert bodies(reply) == [b"b"]
