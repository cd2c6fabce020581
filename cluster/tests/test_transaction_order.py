"""Sends of transactions to one FIFO group arrive in the order in which they were accepted, also
where the group changes its part meanwhile."""

from __future__ import annotations

import msgspec
import pytest

from cluster.tests.driver import Driver
from cluster.tests.shard_pair import ShardPair, in_shard
from visibility.contract.model import QueueDefinition
from visibility.contract.operations import Operation
from visibility.contract.outcomes import (
    Accepted,
    Answer,
    BrowsedPage,
    OutboxPage,
    PartReading,
    Transacted,
)
from visibility.contract.queue_parts import Part, PartState
from visibility.rules.archive_batches import the_shard
from visibility.rules.arrivals import AcceptMessages
from visibility.rules.browse import BrowseMessages
from visibility.rules.departures import ClearOutbox, ReadOutbox
from visibility.rules.queue_parts import CheckPart
from visibility.tests import prepared

_LARGE = 300_000
"""Bytes of a body: a page has two."""
_OLD, _NEW = 13, 14
"""Ids of the part in shard 1, and of the one that has its groups later."""


class _Story:
    """Shard 0 decides. `bills` is in shard 1, until its groups go to another shard."""

    def __init__(self, suffix: str = ".fifo") -> None:
        self.pair = pair = ShardPair(suffix)
        pair.shards.append(Driver(pair.queues, seed=2))
        other = prepared.queue_named("other" + suffix, 12)
        bills = prepared.queue_named("bills" + suffix, _OLD)
        self.other = pair.queues.define(other)
        self.bills = pair.queues.define(in_shard(1, bills))

    def accept(self, name: str, *, size: int = _LARGE, group: str = "g") -> None:
        """A transaction that sends to `bills`."""
        sends = [
            msgspec.structs.replace(
                prepared.content(body, queue, group=group),
                deduplication=b"",  # else it is refused while parts are replaced
            )
            for queue, body in ((self.other, "here"), (self.bills, name * size))
        ]
        entries = list(zip((self.other, self.bills), sends, strict=True))
        answer = self.pair.transact(entries, token=name.encode().ljust(16))
        assert isinstance(answer, Transacted)
        assert not answer.reasons

    def change(self, to: int) -> None:
        """The groups go to a new part; the old one has not heard of it."""
        parts = Part(0, _OLD, 1, PartState.DRAINING), Part(16, _NEW, to)
        self.bills = msgspec.structs.replace(self.bills, parts=parts, version=2)
        for part in self.bills.all_parts():
            self.pair.queues.define(part)

    def move(self, to: int) -> None:
        """The same, and the old one closes, with nothing in it."""
        self.change(to)
        assert isinstance(self._ask(1, CheckPart(), self.bills), PartReading)

    def carry(self, to: int) -> int:
        """Bring a page of shard 0 to another shard; returns the number of its messages."""
        page = self._ask(0, ReadOutbox(to))
        assert isinstance(page, OutboxPage)
        assert page.arrivals or page.waits or not self._departs_to(to)
        accepted = self._ask(to, AcceptMessages(page.arrivals, page.floors))
        assert isinstance(accepted, Accepted)
        self._ask(0, ClearOutbox(accepted.outcomes))
        return len(page.arrivals)

    def _departs_to(self, to: int) -> bool:
        outbox = self.pair.shards[0].state.outbox
        return any(each.to_shard == to for each in outbox.departures.values())

    def carry_all(self, to: int) -> None:
        """The pairs of shards in turn, the new one first."""
        for _ in range(20):
            for target in (to, 1):
                self.carry(target)
        assert not self.pair.shards[0].state.outbox.departures

    def arrived(self) -> str:
        """The first letters of the messages in the new part, in order."""
        new = self.bills.of_part(self.bills.parts[-1])
        page = self._ask(new.shard, BrowseMessages(), new)
        assert isinstance(page, BrowsedPage)
        return "".join(chr(each.message.data[0]) for each in page.messages)

    def _ask(
        self, shard: int, operation: Operation, queue: QueueDefinition | None = None
    ) -> Answer:
        request = prepared.prepared(queue or the_shard(shard), operation)
        answer = self.pair.shards[shard].submit(request).answer
        self.pair.check()
        return answer


@pytest.mark.parametrize("to", [0, 2], ids=["here", "elsewhere"])
def test_later_sends_do_not_pass_those_that_the_old_part_refuses(to: int) -> None:
    story = _Story()
    for name in "123":
        story.accept(name)
    story.move(to)
    for name in "45":
        story.accept(name, size=1)

    story.carry_all(to)

    assert story.arrived() == "12345"


def test_later_sends_do_not_pass_those_that_the_old_part_takes() -> None:
    """Its shard has not heard of the new one."""
    story = _Story()
    story.accept("1")
    before = story.bills
    story.change(2)
    story.accept("2")
    assert story.carry(2) == 0

    story.pair.queues.define(before)
    assert story.carry(1) == 1
    story.pair.queues.define(story.bills)
    assert story.carry(2) == 1

    assert story.pair.shards[1].state.queue(_OLD).waiting == 1
    assert story.arrived() == "2"


def test_sends_of_other_groups_go_on() -> None:
    story = _Story()
    story.accept("1")
    story.change(2)
    story.accept("2", group="other")

    assert story.carry(2) == 1


def test_no_order_holds_for_a_standard_queue_that_moves() -> None:
    story = _Story("")
    story.accept("1")
    story.change(2)
    story.accept("2")

    assert story.carry(2) == 1
