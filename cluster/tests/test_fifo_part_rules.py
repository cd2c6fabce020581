"""FIFO queues of several parts, as the shards of their parts decide."""

from __future__ import annotations

import msgspec
import pytest

from cluster.tests.driver import Driver, Reply
from storage.checks.consistency import check_queue
from storage.tests.memory_store import MemoryStore
from visibility.content.id_digests import attempt_digest, deduplication_digest
from visibility.contract.errors import Moved, ServiceUnavailable
from visibility.contract.model import QueueDefinition, Receipt
from visibility.contract.operations import Operation
from visibility.contract.outcomes import (
    AttemptKnown,
    GroupsHeld,
    IdsKnown,
    LockedGroups,
    MessagesFound,
    PartReading,
)
from visibility.contract.queue_parts import Part, PartState
from visibility.contract.stored_message import Arrival, StoredMessage
from visibility.rules import earlier_parts
from visibility.rules.archive_batches import the_shard
from visibility.rules.arrivals import AcceptMessages
from visibility.rules.closing_parts import CheckPart, FindMessages
from visibility.rules.earlier_parts import (
    FindAttempt,
    FindGroups,
    FindIds,
    ReadLockedGroups,
    UnlockGroups,
)
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

HALF = 1 << 63
LAST = (1 << 64) - 1
OPEN, DRAINING = PartState.OPEN, PartState.DRAINING


def queue_of(*parts: Part, version: int = 2) -> QueueDefinition:
    home = prepared.queue_named(
        "q.fifo",
        1,
        DeduplicationScope="messageGroup",
        FifoThroughputLimit="perMessageGroupId",
    )
    return msgspec.structs.replace(home, parts=parts, version=version)


WHOLE = queue_of(version=1)
SPLIT = queue_of(
    Part(0, 1, 0, DRAINING), Part(16, 2, 0, OPEN, 0, HALF - 1), Part(32, 3, 0, OPEN, HALF, LAST)
)
CLOSED, LOW, HIGH = SPLIT.all_parts()


class Shard:
    """One shard that keeps all parts; the test asks its questions."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.queues = KnownQueues(WHOLE)
        self.driver = Driver(self.queues, store=self.store)

    def split(self) -> None:
        for part in SPLIT.all_parts():
            self.queues.define(part)

    def restart(self) -> None:
        self.driver = Driver(self.queues, store=self.store, now_ms=self.driver.now_ms)

    def reply(self, part: QueueDefinition, operation: Operation) -> Reply:
        return self.driver.submit(prepared.prepared(part, operation))

    def send(self, part: QueueDefinition, body: str, group: str) -> None:
        sent = self.driver.submit(prepared.send(part, body, group=group))
        assert sent.refusal is None

    def received(self, part: QueueDefinition) -> list[Receipt]:
        leases = self.driver.submit(prepared.receive(part, 10)).deliveries.leases
        return [Receipt(lease.sequence, lease.receive_count) for lease in leases]

    def bodies(self, part: QueueDefinition) -> list[bytes]:
        received = self.driver.submit(prepared.receive(part, 10)).deliveries.messages
        return [message.data for message in received]

    def delete(self, part: QueueDefinition, receipt: Receipt) -> None:
        assert self.driver.submit(prepared.delete(part, receipt)).refusal is None

    def locked(self, part: QueueDefinition) -> list[bytes]:
        answer = self.reply(part, ReadLockedGroups()).answer
        assert isinstance(answer, LockedGroups)
        return answer.groups

    def has(self, part: QueueDefinition, *groups: str) -> list[bytes]:
        answer = self.reply(part, FindGroups([digest(group) for group in groups])).answer
        assert isinstance(answer, GroupsHeld)
        return answer.groups

    def waits_for(self, part: QueueDefinition) -> str:
        answer = self.reply(part, CheckPart()).answer
        assert isinstance(answer, PartReading)
        return answer.waits_for

    def knows(self, *bodies: str) -> list[tuple[bytes, str, int]]:
        digests = [deduplication_digest("g", body) for body in bodies]
        answer = self.reply(CLOSED, FindIds(digests)).answer
        assert isinstance(answer, IdsKnown)
        return answer.ids


def digest(group: str) -> bytes:
    return prepared.content("x", group=group).group


OPENED = SPLIT.part_for(digest("g"))
"""The part that has group g."""


# -- ranges ----------------------------------------------------------------------------------------


def test_groups_are_spread_over_the_ranges_and_each_has_one_open_part() -> None:
    parts = [SPLIT.part_for(digest(str(number))) for number in range(1_000)]

    assert CLOSED not in parts
    assert 400 < parts.count(LOW) < 600
    assert WHOLE.part_for(digest("g")) == WHOLE
    other_key = msgspec.structs.replace(SPLIT, receipt_key=bytes(32))
    moved = [
        other_key.part_for(digest(str(number))).part != parts[number].part
        for number in range(1_000)
    ]
    assert 400 < sum(moved) < 600, "nobody without the key knows the part of a group"


# -- store, then ask -------------------------------------------------------------------------------


def test_a_group_waits_until_the_closed_part_has_none_of_its_messages() -> None:
    shard = Shard()
    shard.send(WHOLE, "1", "g")
    shard.split()
    shard.send(OPENED, "2", "g")
    shard.send(OPENED, "3", "g")

    assert shard.bodies(OPENED) == []
    assert shard.locked(OPENED) == [digest("g")]
    assert shard.has(CLOSED, "g", "other") == [digest("g")]
    (receipt,) = shard.received(CLOSED)
    assert shard.has(CLOSED, "g") == [digest("g")], "in flight counts"
    shard.delete(CLOSED, receipt)
    assert shard.has(CLOSED, "g") == []
    shard.reply(OPENED, UnlockGroups([digest("g")]))
    assert shard.bodies(OPENED) == [b"2", b"3"]
    assert shard.locked(OPENED) == []


def test_what_comes_from_another_queue_waits_too() -> None:
    """A dead-letter queue gets nothing else: no send would ask the closed part."""
    shard = Shard()
    shard.send(WHOLE, "1", "g")
    shard.split()
    (receipt,) = shard.received(CLOSED)
    content = prepared.content("dead", group="g")
    letter = StoredMessage("the id", 1, content.size, content.data, group=content.group)
    arrival = Arrival(b"the origin".ljust(16), 1, OPENED.queue_id, OPENED.arn, letter)
    shard.reply(the_shard(0), AcceptMessages([arrival], [(arrival.origin, 1)]))

    assert shard.locked(OPENED) == [digest("g")]
    assert shard.bodies(OPENED) == []
    shard.restart()
    assert shard.bodies(OPENED) == []
    shard.delete(CLOSED, receipt)
    shard.reply(OPENED, UnlockGroups([digest("g")]))
    assert shard.bodies(OPENED) == [b"dead"]


def test_a_lock_is_known_after_a_restart_and_ends_once() -> None:
    shard = Shard()
    shard.split()
    shard.send(OPENED, "1", "g")
    shard.restart()

    assert shard.bodies(OPENED) == []
    assert shard.locked(OPENED) == [digest("g")]
    assert not list(check_queue(shard.store, OPENED.queue_id))
    for _ in range(2):  # the second comes late
        shard.reply(OPENED, UnlockGroups([digest("g"), digest("unknown")]))
    assert shard.received(OPENED)
    shard.restart()
    assert shard.locked(OPENED) == []
    assert not list(check_queue(shard.store, OPENED.queue_id))


def test_a_group_with_messages_in_flight_is_not_locked_again() -> None:
    shard = Shard()
    shard.split()
    shard.send(OPENED, "1", "g")
    shard.reply(OPENED, UnlockGroups([digest("g")]))
    (receipt,) = shard.received(OPENED)

    shard.send(OPENED, "2", "g")
    assert shard.locked(OPENED) == []
    shard.delete(OPENED, receipt)
    assert shard.bodies(OPENED) == [b"2"]


def test_a_group_of_an_unsplit_queue_is_never_locked() -> None:
    shard = Shard()
    shard.send(WHOLE, "1", "g")

    assert shard.driver.state.queue(1).locked == {}
    assert shard.bodies(WHOLE) == [b"1"]


def test_a_part_that_is_gone_is_not_asked() -> None:
    shard = Shard()
    left = msgspec.structs.replace(SPLIT, parts=SPLIT.parts[1:], queue_id=2)
    for part in left.all_parts():
        shard.queues.define(part)
    shard.send(left.part_for(digest("g")), "1", "g")

    assert shard.bodies(left.part_for(digest("g"))) == [b"1"]


def test_a_long_poll_gets_what_is_unlocked() -> None:
    shard = Shard()
    shard.split()
    asked = shard.reply(OPENED, FindMessages(5))
    shard.send(OPENED, "1", "g")
    assert asked.waits
    shard.reply(OPENED, UnlockGroups([digest("g")]))

    assert asked.answer == MessagesFound(1)


# -- questions -------------------------------------------------------------------------------------


def a_question_closes() -> None:
    shard = Shard()
    shard.split()
    assert shard.has(CLOSED, "g") == []

    for definition in (CLOSED, WHOLE):  # a late host does not know of the parts
        refused = shard.driver.submit(prepared.send(definition, "1", group="g")).refusal
        assert isinstance(refused, Moved)
    shard.restart()
    assert isinstance(shard.driver.submit(prepared.send(WHOLE, "1", group="g")).refusal, Moved)


def test_a_question_closes_the_part_before_it_is_answered() -> None:
    a_question_closes()


def test_a_part_that_answers_without_closing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier_parts, "closing", lambda *given: ())

    with pytest.raises(AssertionError):
        a_question_closes()


def test_a_host_that_has_not_heard_of_the_parts_answers_nothing() -> None:
    shard = Shard()

    for operation in (FindGroups([digest("g")]), FindIds([b"x"])):
        assert isinstance(shard.reply(WHOLE, operation).refusal, ServiceUnavailable)
        assert isinstance(shard.reply(LOW, operation).refusal, ServiceUnavailable)


def test_a_closed_part_knows_the_ids_of_its_sends_for_five_minutes() -> None:
    shard = Shard()
    shard.send(WHOLE, "1", "g")
    shard.split()
    ((found, _, sequence),) = shard.knows("1", "2")

    assert (found, sequence) == (deduplication_digest("g", "1"), 1)
    shard.driver.pass_time(300_000)
    assert shard.reply(CLOSED, FindIds([found])).answer == IdsKnown([], are_over=True)


def test_a_closed_part_knows_the_ids_of_a_purge_that_was_undone_before() -> None:
    shard = Shard()
    shard.send(WHOLE, "1", "g")
    whole = shard.driver.purge(WHOLE)
    assert shard.driver.restore(WHOLE, whole).is_done
    parts = (Part(0, whole.queue_id, 0, DRAINING), Part(16, 50, 0, OPEN))
    closed, opened = msgspec.structs.replace(whole, parts=parts, version=2).all_parts()
    shard.queues.define(closed)
    shard.queues.define(opened)
    found = deduplication_digest("g", "1")

    answer = shard.reply(closed, FindIds([found])).answer
    assert isinstance(answer, IdsKnown)
    assert [each for each, _, _ in answer.ids] == [found]


def test_a_part_is_not_empty_while_it_knows_ids() -> None:
    shard = Shard()
    shard.send(WHOLE, "1", "g")
    shard.split()
    (receipt,) = shard.received(CLOSED)
    shard.delete(CLOSED, receipt)

    assert shard.waits_for(CLOSED) == "ids of sends and of receive attempts"
    shard.driver.pass_time(300_000)
    assert shard.waits_for(CLOSED) == ""


def test_each_part_knows_its_own_receive_attempts() -> None:
    shard = Shard()
    shard.send(WHOLE, "1", "g")
    shard.split()
    shard.driver.submit(prepared.receive(CLOSED, 10, attempt="a"))

    known = {
        part.part.number: shard.reply(part, FindAttempt(attempt_digest("a"))).answer
        for part in SPLIT.all_parts()
    }
    assert known == {0: AttemptKnown(True), 16: AttemptKnown(False), 32: AttemptKnown(False)}
