"""Messages that leave a queue for the archive: which ones, in which batches, and what becomes of
them."""

from __future__ import annotations

import msgspec
import pytest

from cluster.shards.shard_report import ArchiveLimits
from cluster.tests.archive_rules import LIMITS, SHARD, TAGS, acknowledge, seal, waiting
from cluster.tests.driver import Driver
from cluster.tests.row_consistency import check_rows
from cluster.tests.virtual_time import CountingEntropy, virtual
from cluster.tests.world import World
from storage.tests.memory_store import MemoryStore
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.model import QueueCounters, QueueDefinition, Receipt
from visibility.contract.tags import ARCHIVE_NONE, ARCHIVE_TAG
from visibility.rows.row_changes import Changes
from visibility.rows.row_keys import ARCHIVED, message_key, row_key
from visibility.rows.row_values import THE_SHARD
from visibility.rules.archive_batches import AcknowledgeArchive, MessagesHandedOver
from visibility.rules.archive_tables import check_archive
from visibility.rules.events import Event
from visibility.tests import prepared

MINUTE_MS = 60_000
EXPIRING = prepared.queue_named("expiring", 1, MessageRetentionPeriod="60")
ALL = prepared.queue_named("all", 2, tags=TAGS, MessageRetentionPeriod="60")
NONE = prepared.queue_named(
    "none", 3, tags={ARCHIVE_TAG: ARCHIVE_NONE}, MessageRetentionPeriod="60"
)
FIFO = prepared.queue_named("all.fifo", 4, tags=TAGS, MessageRetentionPeriod="60")


def queues() -> prepared.KnownQueues:
    return prepared.KnownQueues(EXPIRING, ALL, NONE, FIFO)


def driver(limits: ArchiveLimits | None = LIMITS, store: MemoryStore | None = None) -> Driver:
    return Driver(queues(), archive=limits, store=store)


def sent(shard: Driver, queue: QueueDefinition, *bodies: str) -> None:
    group = "g" if queue.settings.fifo else None
    for body in bodies:
        shard.submit(prepared.send(queue, body, group=group))


def received(shard: Driver, queue: QueueDefinition, count: int = 1) -> list[Receipt]:
    leases = shard.submit(prepared.receive(queue, count)).deliveries.leases
    return [Receipt(lease.sequence, lease.receive_count) for lease in leases]


def bodies(shard: Driver) -> list[str]:
    return [row.message.data.decode() for row in waiting(shard.store)]


def test_expired_messages_wait_for_the_archive_with_their_history() -> None:
    shard = driver()
    sent(shard, EXPIRING, "one", "two")
    received_at_ms = shard.now_ms
    received(shard, EXPIRING)
    shard.pass_time(MINUTE_MS)

    one, two = waiting(shard.store)

    assert (one.message.data, one.receive_count, one.first_received_at_ms) == (
        b"one",
        1,
        received_at_ms,
    )
    assert (two.message.data, two.receive_count, two.first_received_at_ms) == (b"two", 0, 0)
    assert {one.reason, two.reason} == {"expired"}
    assert one.queue_arn == EXPIRING.arn
    assert shard.submit(prepared.counters(EXPIRING)).answer == QueueCounters(0, 0, 0)
    check_rows(shard.store, shard.state)


@pytest.mark.parametrize(
    ("queue", "archived"), [(EXPIRING, []), (NONE, []), (ALL, ["m"]), (FIFO, ["m"])]
)
def test_deleted_messages_are_archived_where_the_tag_says_all(
    queue: QueueDefinition, archived: list[str]
) -> None:
    shard = driver()
    sent(shard, queue, "m")
    shard.submit(prepared.delete(queue, *received(shard, queue)))

    assert bodies(shard) == archived
    assert shard.submit(prepared.counters(queue)).answer == QueueCounters(0, 0, 0)


def test_nothing_is_archived_without_an_archive_or_where_the_tag_says_none() -> None:
    for limits, queue in ((None, ALL), (LIMITS, NONE)):
        shard = driver(limits)
        sent(shard, queue, "m")
        shard.pass_time(MINUTE_MS)

        assert bodies(shard) == []
        assert shard.submit(prepared.counters(queue)).answer == QueueCounters(0, 0, 0)


def test_a_batch_stays_what_it_is_while_more_comes_and_over_a_restart() -> None:
    shard = driver()
    sent(shard, EXPIRING, "one", "two")
    shard.pass_time(MINUTE_MS)
    seal(shard)
    (first,) = shard.state.archive.batches.values()
    sent(shard, EXPIRING, "three")
    shard.pass_time(MINUTE_MS)
    seal(shard)
    seal(shard)

    again = Driver(queues(), store=shard.store, now_ms=shard.now_ms, archive=LIMITS)

    batches = again.state.archive.batches
    assert batches == shard.state.archive.batches
    assert batches[1] == first
    assert [(b.number, b.first, b.until) for b in batches.values()] == [(1, 1, 3), (2, 3, 4)]
    assert again.state.archive.source == shard.state.archive.source


def test_an_acknowledgement_forgets_its_batches_only_and_may_come_twice() -> None:
    shard = driver()
    for body in ("one", "two", "three"):
        sent(shard, EXPIRING, body)
        shard.pass_time(MINUTE_MS)
        seal(shard)

    acknowledge(shard, 2)
    acknowledge(shard, 2)
    acknowledge(shard, 1)

    assert bodies(shard) == ["three"]
    archive = shard.state.archive
    assert (archive.archived, archive.messages, [*archive.batches]) == (2, 1, [3])
    check_rows(shard.store, shard.state)


@pytest.mark.parametrize(("source", "batch"), [("another", 1), ("source", 2), ("source", 99)])
def test_an_acknowledgement_of_what_was_not_sealed_here_is_refused(source: str, batch: int) -> None:
    shard = driver()
    sent(shard, EXPIRING, "one")
    shard.pass_time(MINUTE_MS)
    seal(shard)

    reply = shard.submit(prepared.prepared(SHARD, AcknowledgeArchive(source=source, batch=batch)))

    assert isinstance(reply.refusal, InvalidParameterValue)
    assert bodies(shard) == ["one"]


def test_above_its_limit_messages_are_discarded_and_counted() -> None:
    shard = driver(ArchiveLimits(450, retains=False))
    sent(shard, EXPIRING, "one", "two", "three")
    shard.pass_time(MINUTE_MS)
    sent(shard, ALL, "four")
    shard.submit(prepared.delete(ALL, *received(shard, ALL)))

    archive = shard.state.archive
    assert (archive.messages + archive.discarded, archive.size <= 450) == (4, True)
    assert shard.submit(prepared.counters(EXPIRING)).answer == QueueCounters(0, 0, 0)
    assert shard.submit(prepared.counters(ALL)).answer == QueueCounters(0, 0, 0)
    again = Driver(queues(), store=shard.store, now_ms=shard.now_ms, archive=LIMITS)
    assert again.state.archive.discarded == archive.discarded


def test_of_the_second_half_of_the_room_each_account_has_its_share() -> None:
    quiet = msgspec.structs.replace(ALL, queue_id=5, account="210987654321")
    known = prepared.KnownQueues(ALL, quiet)
    limits = ArchiveLimits(4_000, retains=False)
    shard = Driver(known, archive=limits)

    def archived(queue: QueueDefinition, messages: int) -> int:
        before = shard.state.archive.messages
        for _ in range(messages):
            sent(shard, queue, "x" * 50)
            shard.submit(prepared.delete(queue, *received(shard, queue)))
        return shard.state.archive.messages - before

    assert archived(ALL, 20) == 8  # of 250 bytes each, the first half
    seal(shard)
    again = Driver(known, store=shard.store, now_ms=shard.now_ms, archive=limits)
    assert again.state.archive.batches == shard.state.archive.batches
    shard = again
    assert (archived(ALL, 1), archived(quiet, 20), archived(ALL, 1)) == (0, 4, 0)
    acknowledge(shard, 1)
    assert (archived(quiet, 20), archived(ALL, 20)) == (4, 4)


def test_messages_that_find_no_room_can_be_retained_until_there_is_some() -> None:
    shard = driver(ArchiveLimits(250, retains=True))
    sent(shard, EXPIRING, "one")
    shard.pass_time(30_000)
    sent(shard, EXPIRING, "two")
    shard.pass_time(MINUTE_MS)
    assert bodies(shard) == ["one"]
    assert shard.submit(prepared.counters(EXPIRING)).answer == QueueCounters(1, 0, 0)

    seal(shard)
    acknowledge(shard, 1)
    shard.pass_time(MINUTE_MS)

    assert bodies(shard) == ["two"]
    assert shard.state.archive.discarded == 0


def test_large_messages_are_handed_over_a_few_at_a_time() -> None:
    events: list[Event] = []
    shard = Driver(queues(), archive=LIMITS, on_event=events.append)
    sent(shard, EXPIRING, *(str(number) * 100_000 for number in range(7)))
    shard.pass_time(MINUTE_MS)

    handed = [len(event.leases) for event in events if isinstance(event, MessagesHandedOver)]
    assert handed == [2, 2, 2, 1]
    assert len(bodies(shard)) == 7


@virtual
async def test_to_the_archive_a_store_that_came_back_shorter_is_another_one() -> None:
    world = await World(archive=LIMITS).start()
    source = world.shard.report().archive.source
    await world.shard.stop()
    again = await World(archive=LIMITS, store=world.store).start()
    assert again.shard.report().archive.source == source
    await again.shard.stop()

    world.store.came_back_shorter = True
    entropy = CountingEntropy()
    entropy.bits128()
    shorter = await World(archive=LIMITS, store=world.store, entropy=entropy).start()

    assert shorter.shard.report().archive.source not in ("", source)


def test_what_waits_survives_a_purge_and_the_end_of_its_queue() -> None:
    shard = driver()
    sent(shard, EXPIRING, "one")
    shard.pass_time(MINUTE_MS)

    successor = shard.purge(EXPIRING)
    shard.drop(EXPIRING)
    shard.drop(successor)

    assert bodies(shard) == ["one"]


def test_a_damaged_message_can_be_deleted_and_is_not_archived() -> None:
    shard = driver()
    sent(shard, ALL, "one", "two")
    receipts = received(shard, ALL, 2)
    shard.store.rows[message_key(ALL.queue_id, 1)] = b"\x01rubbish"

    reply = shard.submit(prepared.delete_batch(ALL, receipts))

    assert reply.refusal is None
    assert bodies(shard) == ["two"]
    assert shard.submit(prepared.counters(ALL)).answer == QueueCounters(0, 0, 0)


def test_rows_that_do_not_agree_are_found() -> None:
    shard = driver()
    sent(shard, EXPIRING, "one", "two", "three")
    shard.pass_time(MINUTE_MS)
    seal(shard)
    assert list(check_archive(shard.store)) == []

    gone = Changes()
    gone.delete(row_key(THE_SHARD, ARCHIVED, 2))
    shard.store.apply(gone)

    (found,) = check_archive(shard.store)
    assert found.what == "it is missing"


def test_one_turn_hands_over_about_a_mebibyte_whatever_many_queues_hold() -> None:
    many = [
        prepared.queue_named(f"q{number}", number, MessageRetentionPeriod="60")
        for number in range(1, 51)
    ]
    taken: dict[int, int] = {}

    def note(event: Event) -> None:
        if isinstance(event, MessagesHandedOver):
            taken[shard.turns] = taken.get(shard.turns, 0) + event.size

    shard = Driver(prepared.KnownQueues(*many), archive=LIMITS, on_event=note)
    body = "x" * (100 << 10)
    for queue in many:
        sent(shard, queue, body)
    shard.pass_time(MINUTE_MS)

    assert sum(taken.values()) > 50 * len(body)
    assert max(taken.values()) < (1 << 20) + 2 * len(body)
