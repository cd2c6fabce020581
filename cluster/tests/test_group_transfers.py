"""Transfers of FIFO groups: order, counts and handles hold, and no part gives out a group that the
other has messages of."""

from __future__ import annotations

import msgspec
import pytest

from cluster.tests.shard_pair import ShardPair, in_shard
from visibility.contract.errors import Departing, InvalidParameterValue, Moved
from visibility.contract.model import QueueCounters, QueueDefinition, Receipt
from visibility.contract.outcomes import GroupsHeld, LockedGroups, PartReading
from visibility.contract.queue_parts import Part, PartState, first_sequence
from visibility.rules import group_transfers
from visibility.rules.arrivals import TARGET_GONE
from visibility.rules.closing_parts import CheckPart
from visibility.rules.earlier_parts import FindGroups, ReadLockedGroups, UnlockGroups
from visibility.rules.hold_messages import HoldMessages, ReleaseMessages
from visibility.tests import prepared

NONE = QueueCounters(0, 0, 0)
OPEN, DRAINING = PartState.OPEN, PartState.DRAINING


class GroupPair(ShardPair):
    """`source` is the former part, in shard 0; `heir` is in shard 1, or beside it."""

    def __init__(self, heir_in: int = 1) -> None:
        super().__init__()
        self.group = "g"
        self.heir_in = heir_in
        home = prepared.queue_named("q.fifo", 11, VisibilityTimeout="5")
        self.whole = msgspec.structs.replace(home, version=6)
        self.source = self.queues.define(self.whole)
        self.heir = self.source

    def close(self) -> PartReading:
        """The source is moved, and its shard hears of it."""
        home = in_shard(self.heir_in, msgspec.structs.replace(self.whole, queue_id=12))
        parts = (Part(16, 12, self.heir_in), Part(0, 11, 0, DRAINING, heir=16))
        moved = msgspec.structs.replace(home, parts=parts, version=7, last_part=16)
        self.heir, self.source = (self.queues.define(part) for part in moved.all_parts())
        return self.look()

    def look(self) -> PartReading:
        """Ask the shard about the part that drains."""
        answer = self.shards[0].submit(prepared.prepared(self.source, CheckPart())).answer
        assert isinstance(answer, PartReading)
        return answer

    def step(self) -> None:
        """One step of the transfer."""
        self.look()
        self.pass_time(1)
        self.check()

    def transfer(self) -> None:
        """All that can go."""
        self.look()
        for _ in range(10):
            self.pass_time(100)
            self.deliver()
        self.check()

    def unlock(self) -> None:
        """Ask as `Unlocking` does."""
        shard = self.shards[self.heir.shard]
        page = shard.submit(prepared.prepared(self.heir, ReadLockedGroups())).answer
        assert isinstance(page, LockedGroups)
        held = self.shards[0].submit(prepared.prepared(self.source, FindGroups(page.groups))).answer
        assert isinstance(held, GroupsHeld)
        free = [group for group in page.groups if group not in held.groups]
        shard.submit(prepared.prepared(self.heir, UnlockGroups(free)))
        self.check()

    def send_there(self, *bodies: str, group: str = "g") -> None:
        """Send to the heir."""
        self.send(*bodies, to=self.heir, group=group)


@pytest.fixture(params=[1, 0], ids=["other shard", "same shard"])
def pair(request: pytest.FixtureRequest) -> GroupPair:
    return GroupPair(request.param)


def test_a_part_with_a_backlog_ends_without_consumers(pair: GroupPair) -> None:
    pair.send("a", "b")
    pair.close()
    pair.send_there("c")
    pair.transfer()

    assert pair.look().waits_for == "ids of sends and of receive attempts"
    pair.pass_time(301_000)
    assert pair.look().drained_version == 7
    pair.unlock()
    assert pair.receive(pair.heir) == ["a", "b", "c"]


def test_a_group_goes_on_only_when_all_of_it_has_come(
    pair: GroupPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_transfers, "STEP_MESSAGES", 1)
    pair.send(*"abcdefgh")
    pair.close()
    pair.send_there("i")
    if pair.heir.shard:
        pair.clear(pair.accept(pair.read().arrivals))

    pair.unlock()
    assert pair.receive(pair.heir) == [], "most are in the other part"
    assert pair.receive(pair.source) == [], "the first have left"
    for number in (0, 1):
        pair.restart(number)
    assert pair.receive(pair.source) == []
    pair.transfer()
    pair.unlock()
    assert pair.receive(pair.heir) == [*"abcdefghi"]


def test_a_message_stays_what_it_is(pair: GroupPair) -> None:
    pair.send("a")
    before = pair.shards[0].submit(prepared.receive(pair.source, 1)).deliveries
    pair.pass_time(6_000)
    pair.close()
    pair.transfer()
    pair.unlock()

    after = pair.shards[pair.heir.shard].submit(prepared.receive(pair.heir, 1)).deliveries
    assert after.messages[0].message_id == before.messages[0].message_id
    assert after.messages[0].sent_at_ms == before.messages[0].sent_at_ms
    (lease,) = after.leases
    assert lease.sequence == before.leases[0].sequence == first_sequence(0)
    assert (lease.receive_count, lease.base_count) == (2, 0), "receives count for dead letters"


def test_a_handle_of_before_is_over_and_one_of_after_deletes(pair: GroupPair) -> None:
    pair.send("a")
    ((_, old),) = pair.received(pair.source)
    pair.pass_time(6_000)
    pair.close()
    pair.transfer()
    pair.unlock()
    ((_, new),) = pair.received(pair.heir)

    def at(part: QueueDefinition, receipt: Receipt) -> type[object]:
        return type(pair.shards[part.shard].submit(prepared.delete(part, receipt)).refusal)

    assert at(pair.source, old) is Moved
    assert at(pair.heir, old) is InvalidParameterValue
    assert at(pair.source, new) is Moved
    pair.delete(pair.heir, new)
    assert pair.counters(pair.heir) == NONE
    assert at(pair.heir, new) is type(None), "no later part may have it"


def test_a_request_waits_while_the_message_is_on_its_way() -> None:
    pair = GroupPair()
    pair.send("a")
    ((_, receipt),) = pair.received(pair.source)
    pair.pass_time(6_000)
    pair.close()
    pair.step()
    for number in (0, 1):
        pair.restart(number)

    request = prepared.delete(pair.source, receipt)
    assert type(pair.shards[0].submit(request).refusal) is Departing
    assert pair.counters(pair.source).visible == 1
    pair.deliver()
    assert type(pair.shards[0].submit(request).refusal) is Moved


def test_a_group_of_which_a_consumer_has_messages_stays(pair: GroupPair) -> None:
    pair.send("a", "b")
    pair.send("c", group="h")
    ((_, first),) = pair.received(pair.source, 1)
    pair.close()
    pair.transfer()
    pair.unlock()
    assert pair.receive(pair.heir) == ["c"]
    assert pair.look().waits_for == "1 messages in flight"

    pair.delete(pair.source, first)
    pair.transfer()
    pair.unlock()
    assert pair.receive(pair.heir) == ["b"]


def test_a_held_message_goes_in_its_place_and_stays_held(pair: GroupPair) -> None:
    pair.send("a", "b", "c")
    hold = HoldMessages([first_sequence(0) + 1], "anna", "T-1")
    pair.shards[0].submit(prepared.prepared(pair.source, hold))
    pair.close()
    pair.transfer()
    pair.unlock()

    assert pair.receive(pair.heir) == ["a"]
    pair.pass_time(6_000)
    release = ReleaseMessages([first_sequence(0) + 1])
    pair.shards[pair.heir.shard].submit(prepared.prepared(pair.heir, release))
    assert pair.receive(pair.heir) == ["a", "b", "c"]


def test_a_part_has_messages_until_the_next_one_has_them() -> None:
    pair = GroupPair()
    pair.send("a", "b")
    assert pair.close().messages == 2
    pair.step()
    assert (pair.look().messages, pair.look().visible) == (2, 2), "they are on their way"
    pair.deliver()
    assert pair.look().messages == 0


def test_a_closed_part_takes_nothing_and_the_group_stays_locked() -> None:
    pair = GroupPair()
    pair.send("a", "b")
    pair.close()
    pair.step()
    parts = (
        Part(32, 13, 0),
        Part(16, 12, 1, DRAINING, heir=32),
        Part(0, 11, 0, DRAINING, heir=16),
    )
    home = in_shard(0, msgspec.structs.replace(pair.heir, queue_id=13))
    later = msgspec.structs.replace(home, parts=parts, version=8, last_part=32)
    pair.heir, middle, pair.source = (pair.queues.define(part) for part in later.all_parts())
    pair.shards[1].submit(prepared.prepared(middle, FindGroups([])))
    outcomes = pair.accept(pair.read().arrivals)
    assert [reason for *_, reason in outcomes] == [TARGET_GONE] * 2
    pair.clear(outcomes)

    assert pair.receive(pair.source) == [], "it may have left in part"
    pair.transfer()
    pair.unlock()
    assert pair.receive(pair.heir) == ["a", "b"]


def test_ten_minutes_after_its_closing_a_part_gives_out_nothing(pair: GroupPair) -> None:
    pair.send("a")
    pair.received(pair.source)
    pair.close()
    pair.shards[0].submit(prepared.change(pair.source, Receipt(1, 1), 700))
    pair.pass_time(650_000)
    pair.shards[0].submit(prepared.change(pair.source, Receipt(1, 1), 0))

    assert pair.receive(pair.source) == []
    pair.transfer()
    pair.unlock()
    assert pair.receive(pair.heir) == ["a"]
