"""Sends of transactions to one FIFO group arrive in the order in which they were accepted, also
where the group changes its part meanwhile."""

from __future__ import annotations

from random import Random
from string import ascii_letters

import msgspec
import pytest

from cluster.tests.driver import Driver
from cluster.tests.shard_pair import ShardPair, in_shard
from visibility.contract.errors import Moved
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
from visibility.rows.row_keys import ARRIVAL, table_range
from visibility.rows.row_values import THE_SHARD
from visibility.rules.archive_batches import the_shard
from visibility.rules.arrivals import AcceptMessages
from visibility.rules.browse import BrowseMessages
from visibility.rules.closing_parts import CheckPart
from visibility.rules.departures import ClearOutbox, ReadOutbox
from visibility.tests import prepared

_LARGE = 300_000
"""Bytes of a body: a page has two."""
_OVER_MS = 630_000
_OLD = 13
"""Id of the first part."""


class _Story:
    """Shard 0 decides. `bills` is in shard 1, until its groups go to another shard."""

    def __init__(self, suffix: str = ".fifo") -> None:
        self.pair = pair = ShardPair(suffix)
        pair.shards.append(Driver(pair.queues, seed=2))
        other = prepared.queue_named("other" + suffix, 12)
        bills = prepared.queue_named("bills" + suffix, _OLD)
        self.other = pair.queues.define(other)
        self.bills = pair.queues.define(in_shard(1, bills))
        self.parts = [Part(0, _OLD, 1)]
        self.on_their_way: list[tuple[int, AcceptMessages]] = []
        """Requests to shards, and these, that may come again."""

    def accept(
        self, name: str, *, size: int = _LARGE, group: str = "g", has_id: bool = False
    ) -> None:
        """A transaction that sends to `bills`. If it `has_id`, its name, it is refused while parts
        are replaced."""
        sends = [
            prepared.content(body, queue, group=group, deduplication_id=name)
            for queue, body in ((self.other, "here"), (self.bills, name * size))
        ]
        if not has_id:
            sends = [msgspec.structs.replace(each, deduplication=b"") for each in sends]
        entries = list(zip((self.other, self.bills), sends, strict=True))
        answer = self.pair.transact(entries, token=name.encode().ljust(16))
        assert isinstance(answer, Transacted)
        assert not answer.reasons

    def consume(self, name: str) -> None:
        """A plain send with this id to `bills`, in its first part, is received and deleted."""
        self.pair.shards[1].submit(prepared.send(self.bills, "", group="g", deduplication_id=name))
        ((_, receipt),) = self.pair.received(self.bills)
        self.pair.delete(self.bills, receipt)

    def change(self, to: int) -> None:
        """The groups go to a new part; the one before has not heard of it."""
        draining = [
            each
            if not each.is_open
            else msgspec.structs.replace(
                each, state=PartState.DRAINING, drains_since_ms=self.pair.shards[0].now_ms
            )
            for each in self.parts
        ]
        number = len(self.parts)
        self.parts = [*draining, Part(16 * number, _OLD + number, to)]
        version = self.bills.version + 1
        self.bills = msgspec.structs.replace(self.bills, parts=tuple(self.parts), version=version)
        for part in self.bills.all_parts():
            self.pair.queues.define(part)

    def pass_ms(self, ms: int) -> None:
        """Time goes on in all shards."""
        for each in self.pair.shards:
            each.now_ms += ms

    def remove_first(self) -> None:
        """The first part is gone."""
        del self.parts[0]
        version = self.bills.version + 1
        self.bills = msgspec.structs.replace(self.bills, parts=tuple(self.parts), version=version)
        del self.pair.queues.queues[_OLD]
        for part in self.bills.all_parts():
            self.pair.queues.define(part)

    def move(self, to: int) -> None:
        """The same, and the one before closes, with nothing in it."""
        self.change(to)
        assert isinstance(self._ask(1, CheckPart(), self.bills), PartReading)

    def carry(self, to: int, *, loses: str = "") -> int:
        """Bring a page of shard 0 to another shard, unless its `request` or `answer` is lost;
        returns the number of its messages."""
        page = self._ask(0, ReadOutbox(to))
        assert isinstance(page, OutboxPage)
        assert page.arrivals or page.waits or not self._departs_to(to)
        request = AcceptMessages(page.arrivals, page.floors)
        self.on_their_way.append((to, request))
        if loses != "request":
            accepted = self._ask(to, request)
            assert isinstance(accepted, Accepted)
            if not loses:
                self._ask(0, ClearOutbox(accepted.outcomes))
        return len(page.arrivals)

    def repeat(self, to: int, request: AcceptMessages) -> None:
        """A request comes late, or again; nobody waits for its answer."""
        self._ask(to, request)

    def _departs_to(self, to: int) -> bool:
        outbox = self.pair.shards[0].state.outbox
        return any(each.to_shard == to for each in outbox.departures.values())

    def carry_all(self, to: int, *others: int) -> None:
        """The pairs of shards in turn, the new one first."""
        for _ in range(20):
            for target in (to, *others, 1):
                self.carry(target)
        assert not self.pair.shards[0].state.outbox.departures

    def arrived(self, group: str = "g") -> str:
        """The first letters of a group's messages in all parts, in order."""
        digest = prepared.content("", self.bills, group=group).group
        found = []
        for part in self.bills.all_parts():
            page = self._ask(part.shard, BrowseMessages(), part)
            assert isinstance(page, BrowsedPage)
            found += [each.message for each in page.messages]
        return "".join(chr(each.data[0]) for each in found if each.group == digest)

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


@pytest.mark.parametrize("to", [0, 1, 2], ids=["decider", "same", "elsewhere"])
def test_an_id_that_the_old_part_knows_is_a_duplicate_in_the_new_one(to: int) -> None:
    """Also where its send waits behind others that the old part refuses."""
    story = _Story()
    for name in "xz":
        story.consume(name)
    for name in "x123z4":
        story.accept(name, has_id=True)
    story.move(to)

    story.carry_all(to)

    assert story.arrived() == "1234"


@pytest.mark.parametrize("to", [0, 1, 2], ids=["decider", "first", "same"])
@pytest.mark.parametrize("is_gone", [False, True], ids=["drains", "gone"])
def test_an_id_that_a_part_in_between_knows_is_a_duplicate_too(to: int, is_gone: bool) -> None:
    """The groups went on twice while the send was on its way."""
    story = _Story()
    for name in "1x2":
        story.accept(name, has_id=True)
    story.change(2)
    part = story.bills.all_parts()[-1]
    there = prepared.send(part, "there", group="g", deduplication_id="x")
    assert story.pair.shards[2].submit(there).refusal is None
    story.change(to)
    if is_gone:
        story.remove_first()

    story.carry_all(to, 2)

    assert story.arrived().replace("t", "") == "12", "the other one is there, or on its way"


@pytest.mark.parametrize("to", [0, 1], ids=["decider", "first"])
@pytest.mark.parametrize("is_gone", [False, True], ids=["drains", "gone"])
def test_a_part_in_between_that_is_away_is_not_waited_for_for_ever(to: int, is_gone: bool) -> None:
    """Ten and a half minutes after it began to drain it knows no id that would count."""
    story = _Story()
    for name in "123":
        story.accept(name, has_id=True)
    story.change(2)
    story.change(to)
    if is_gone:
        story.remove_first()
    story.pass_ms(_OVER_MS)

    for _ in range(5):
        story.carry(1)
        story.carry(to)

    assert not story.pair.shards[0].state.outbox.departures
    assert story.arrived() == "123"


def test_a_part_in_between_is_waited_for_as_long_as_it_may_know_the_id() -> None:
    story = _Story()
    story.accept("x", size=1, has_id=True)
    story.change(2)
    story.change(0)
    story.pass_ms(_OVER_MS - 1)

    for _ in range(5):
        story.carry(1)
        story.carry(0)

    assert not story.arrived()
    story.carry_all(0, 2)
    assert story.arrived() == "x"


def test_a_part_of_which_the_record_does_not_say_since_when_it_drains_is_waited_for() -> None:
    story = _Story()
    story.accept("x", size=1, has_id=True)
    story.change(2)
    story.change(0)
    story.parts = [msgspec.structs.replace(each, drains_since_ms=0) for each in story.parts]
    story.change(1)
    story.pass_ms(86_400_000)

    for to in (1, 0, 1):
        story.carry(to)

    assert not story.arrived()


def test_a_part_that_says_that_it_knows_no_such_id_takes_none_any_more() -> None:
    story = _Story()
    story.accept("x", size=1, has_id=True)
    before = story.bills
    story.change(2)
    assert story.carry(1) == 1
    story.pair.queues.define(before)

    late = prepared.send(before, "late", group="g", deduplication_id="x")
    assert isinstance(story.pair.shards[1].submit(late).refusal, Moved)

    story.pair.queues.define(story.bills)
    story.carry_all(2)
    assert story.arrived() == "x"


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
    assert story.arrived() == "12"


def test_a_send_does_not_pass_one_between_two_for_its_shard() -> None:
    story = _Story()
    story.accept("1")
    story.change(2)
    story.accept("2")
    story.change(1)
    story.accept("3", size=1)

    assert story.carry(1) == 1
    story.carry_all(2)

    assert story.arrived() == "123"


@pytest.mark.parametrize("seed", range(6))
def test_groups_keep_their_order_whatever_happens_meanwhile(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    monkeypatch.setattr("visibility.rules.departures.PAGE_MESSAGES", 3)
    behind_max = random.choice((3, 4_000))
    monkeypatch.setattr("visibility.rules.departures.WAITING_BEHIND_MAX", behind_max)
    story = _Story()
    pair, arn = story.pair, story.bills.arn
    sent = {"g": "", "h": ""}
    for name in ascii_letters[:40]:
        step = random.random()
        if step < 0.5 and arn not in pair.queues.hidden:
            group = random.choice("gh")
            story.accept(name, size=1, group=group)
            sent[group] += name
        elif step < 0.7:
            story.carry(random.randrange(3), loses=random.choice(("", "", "request", "answer")))
        elif step < 0.75 and story.on_their_way:
            story.repeat(*random.choice(story.on_their_way[-6:]))
        elif step < 0.85:
            story.change(random.randrange(3))
        elif step < 0.95:
            pair.queues.hidden ^= {arn}
        else:
            pair.restart(0)

    pair.queues.hidden.clear()
    for _ in range(100):
        story.carry(random.randrange(3))
    assert not pair.shards[0].state.outbox.departures
    assert {group: story.arrived(group) for group in sent} == sent


def test_no_send_passes_one_of_which_the_refusal_is_remembered() -> None:
    """Its answer was lost, and the part is back in that shard."""
    story = _Story()
    story.accept("1", size=1)
    story.move(2)
    assert story.carry(1, loses="answer") == 1
    story.change(1)
    story.accept("2", size=1)

    assert story.carry(1) == 2
    story.carry_all(2)

    assert story.arrived() == "12"


def test_a_shard_forgets_what_came_long_after_one_that_waits_for_another_shard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Shard 1 cannot be reached for long."""
    monkeypatch.setattr("visibility.rules.departures.WAITING_BEHIND_MAX", 6)
    story = _Story()
    story.accept("1", size=1)
    assert story.carry(1, loses="answer") == 1
    story.change(2)
    for name in "23":
        story.accept(name, size=1)
    for name in ascii_letters[:30]:
        story.accept(name, size=1, group="other")
        story.carry(2)

    begin, end = table_range(THE_SHARD, ARRIVAL)
    assert len(list(story.pair.shards[2].store.scan(begin, end))) < 12
    story.carry_all(2)
    assert story.arrived() == "123"
    assert story.arrived("other") == ascii_letters[:30]


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
