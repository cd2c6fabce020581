"""Parts of a queue: the catalog's records of them, and what the shard of a part decides."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from cluster.catalog.catalog_records import name_of
from cluster.catalog.part_rules import NewParts, shards_for
from cluster.catalog.queue_rules import ALL_SHARDS
from cluster.catalog.record_codec import RecordCodec
from cluster.tests.catalog_file import CatalogFile, owner
from cluster.tests.driver import Driver
from cluster.tests.virtual_time import some_secrets
from cluster.tests.world import World, settled
from storage.tests.memory_store import MemoryStore
from visibility.contract.errors import (
    InvalidParameterValue,
    Moved,
    QueueDoesNotExist,
    ServiceUnavailable,
    UnsupportedOperation,
)
from visibility.contract.model import QueueDefinition, Receipt
from visibility.contract.outcomes import Deliveries, MessagesFound, PartReading
from visibility.contract.priority import place_of
from visibility.contract.queue_parts import PARTS_MAX, Part, PartState, first_sequence
from visibility.rules import send
from visibility.rules.closing_parts import CheckPart, FindMessages, PartsAdded
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

HOUR_MS = 3_600_000


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[CatalogFile]:
    opened = CatalogFile(tmp_path / "catalog.sqlite", restore_window_ms=HOUR_MS)
    await opened.open((0, 1, 2))
    yield opened
    await opened.catalog.close()


def added(file: CatalogFile, queue: QueueDefinition, count: int, sequence: int = 1) -> NewParts:
    shards = shards_for(queue, file.catalog.shards, count)
    return NewParts(shards, {part.queue_id: sequence for part in queue.all_parts()})


async def split(file: CatalogFile, count: int = 2) -> QueueDefinition:
    queue = await file.catalog.create_queue(owner("q"), {}, {})
    return await file.catalog.add_parts(queue, added(file, queue, count))


# -- the records -----------------------------------------------------------------------------------


async def test_parts_are_on_other_shards_and_have_ids_and_numbers_of_their_own(
    file: CatalogFile,
) -> None:
    queue = await split(file)

    for catalog in (file.catalog, await file.reopen()):
        found = catalog.queue(*owner("q"))
        assert found == queue
        assert (found.version, [part.number for part in found.parts]) == (2, [0, 16, 32])
        assert {part.shard for part in found.parts} == {0, 1, 2}
        for part in found.all_parts():
            assert catalog.queue_of_id(part.queue_id) == part
        assert catalog.highest_queue_id == max(part.queue_id for part in found.parts)


async def test_a_version_without_parts_refuses_the_record(file: CatalogFile) -> None:
    class OldQueue(msgspec.Struct):
        queue_id: int
        shard: int

    queue = await file.catalog.create_queue(owner("q"), {}, {})
    codec = RecordCodec(some_secrets())

    msgspec.json.decode(codec.encode(queue), type=OldQueue)
    assert "parts" not in json.loads(codec.encode(queue))
    queue = await file.catalog.add_parts(queue, added(file, queue, 1))
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(codec.encode(queue), type=OldQueue)


async def test_a_number_is_issued_once(file: CatalogFile) -> None:
    queue = await split(file, 1)
    (_, part) = queue.all_parts()
    draining = await file.catalog.drain_parts(queue, [16])
    await file.catalog.remove_part(part.queue_id, draining.version)
    whole = file.catalog.queue(*owner("q"))
    assert (whole.parts, whole.last_part) == ((), 16)
    assert [(each.number, each.heir) for each in whole.gone] == [(16, 0)]

    again = await file.catalog.add_parts(whole, added(file, whole, 1, sequence=100 << 44))

    assert [part.number for part in again.parts] == [0, 112]


async def test_a_part_goes_only_as_its_shard_said_about_this_version(file: CatalogFile) -> None:
    queue = await split(file, 1)
    part = queue.all_parts()[1]

    await file.catalog.remove_part(part.queue_id, queue.version)  # it is open
    assert len(file.catalog.queue(*owner("q")).parts) == 2
    draining = await file.catalog.drain_parts(queue, [16])
    await file.catalog.remove_part(part.queue_id, queue.version)  # that was said before
    assert len(file.catalog.queue(*owner("q")).parts) == 2
    await file.catalog.remove_part(part.queue_id, draining.version)
    assert file.catalog.queue(*owner("q")).parts == ()


def move(file: CatalogFile, queue: QueueDefinition, shard: int) -> NewParts:
    return NewParts([shard], {part.queue_id: 1 for part in queue.all_parts()})


async def test_a_queue_moves_to_another_shard_and_is_whole_there(file: CatalogFile) -> None:
    queue = await file.catalog.create_queue(owner("q"), {}, {})
    to = (queue.shard + 1) % 3

    moved = await file.catalog.move_part(queue, 0, move(file, queue, to))

    assert (moved.shard, moved.version) == (to, 2)
    old = file.catalog.queue_of_id(queue.queue_id)
    assert old is not None
    assert (old.shard, old.part.state, old.is_home) == (queue.shard, PartState.DRAINING, False)
    assert [each.queue_id for each in moved.way_of(1)] == [queue.queue_id, moved.queue_id]
    await file.catalog.set_attributes(queue, {"VisibilityTimeout": "7"})  # an old view
    changed = file.catalog.queue(*owner("q"))
    assert (changed.queue_id, len(changed.parts)) == (moved.queue_id, 2)
    await file.catalog.remove_part(queue.queue_id, changed.version)
    for catalog in (file.catalog, await file.reopen()):
        whole = catalog.queue(*owner("q"))
        assert (whole.queue_id, whole.shard, whole.parts) == (moved.queue_id, to, ())
        assert (whole.number, whole.first_sequence) == (16, first_sequence(16))
        assert [each[:2] for each in map(msgspec.structs.astuple, whole.gone)] == [(0, 16)]


async def test_parts_are_known_as_gone_while_a_message_of_their_time_may_be_left(
    file: CatalogFile,
) -> None:
    queue = await file.catalog.create_queue(owner("q"), {}, {})
    for shard in (1, 2):
        before = file.catalog.queue(*owner("q"))
        moved = await file.catalog.move_part(before, before.number, move(file, before, shard))
        await file.catalog.remove_part(before.queue_id, moved.version)
        file.clock.at_ms += 15 * 24 * HOUR_MS

    assert [each.number for each in file.catalog.queue(*owner("q")).gone] == [16]
    assert queue.number == 0


async def test_a_home_with_purged_messages_does_not_move(file: CatalogFile) -> None:
    queue = await split(file, 1)
    purged = await file.catalog.purge_queue(queue)

    with pytest.raises(UnsupportedOperation):
        await file.catalog.move_part(purged, 0, move(file, purged, 2))
    with pytest.raises(InvalidParameterValue):
        await file.catalog.move_part(purged, 5, move(file, purged, 2))


async def test_a_closed_part_stays_closed_and_the_home_open(file: CatalogFile) -> None:
    queue = await split(file)
    draining = await file.catalog.drain_parts(queue, [32])

    assert [part.state for part in draining.parts] == [
        PartState.OPEN,
        PartState.OPEN,
        PartState.DRAINING,
    ]
    assert (await file.catalog.drain_parts(draining, [32])).version == draining.version
    with pytest.raises(InvalidParameterValue):
        await file.catalog.drain_parts(queue, [0])


async def test_what_cannot_be_split_is_refused(file: CatalogFile) -> None:
    fifo = await file.catalog.create_queue(owner("q.fifo"), {"FifoQueue": "true"}, {})
    with pytest.raises(UnsupportedOperation):
        await file.catalog.add_parts(fifo, added(file, fifo, 1))
    queue = await split(file)
    with pytest.raises(InvalidParameterValue):
        await file.catalog.add_parts(queue, added(file, queue, PARTS_MAX))
    with pytest.raises(ServiceUnavailable):  # the readings are of other parts
        await file.catalog.add_parts(queue, NewParts([1], {queue.queue_id: 1}))


@pytest.mark.parametrize("suffix", ["", ".fifo"], ids=["standard", "fifo"])
@pytest.mark.parametrize(("tag", "enough"), [("max-messages", 4), ("max-bytes", 4 << 20)])
async def test_each_part_has_room_for_a_message(
    file: CatalogFile, tag: str, enough: int, suffix: str
) -> None:
    few, tags = ({f"holdfast:{tag}": str(value)} for value in (enough - 1, enough))
    by_group = {"FifoQueue": "true", "DeduplicationScope": "messageGroup"}
    made = await file.catalog.create_queue(owner("q" + suffix), by_group if suffix else {}, few)
    divide = file.catalog.replace_parts if suffix else file.catalog.add_parts
    with pytest.raises(UnsupportedOperation, match=f"too many parts: tag holdfast:{tag} "):
        await divide(made, added(file, made, 4 if suffix else 3))

    await file.catalog.tag_queue(made, tags)
    whole = file.catalog.queue(*owner("q" + suffix))
    assert whole is not None
    queue = await divide(whole, added(file, whole, 4 if suffix else 3))
    with pytest.raises(InvalidParameterValue, match=f"several parts, and tag holdfast:{tag} "):
        await file.catalog.tag_queue(queue, few)


async def test_a_purge_renames_all_parts_at_once(file: CatalogFile) -> None:
    queue = await split(file)
    purged = await file.catalog.purge_queue(queue)

    assert [part.number for part in purged.parts] == [part.number for part in queue.parts]
    assert [part.shard for part in purged.parts] == [part.shard for part in queue.parts]
    both = zip(queue.all_parts(), purged.all_parts(), strict=True)
    for old, new in both:
        assert file.catalog.successor(old.queue_id) == new
        assert (old.queue_id, new.queue_id) in file.catalog.continued()
    assert [kept.queue.queue_id for kept in file.catalog.restorable_queues()] == [queue.queue_id]
    part = (await file.catalog.drain_parts(purged, [16])).all_parts()[1]
    await file.catalog.remove_part(part.queue_id, part.version)
    assert len(file.catalog.queue(*owner("q")).parts) == 3, "its purged messages can be restored"


async def test_a_deleted_queue_comes_back_with_all_its_parts(file: CatalogFile) -> None:
    queue = await split(file)
    await file.catalog.delete_queue(queue)
    assert [file.catalog.queue_of_id(part.queue_id) for part in queue.parts] == [None] * 3
    with pytest.raises(QueueDoesNotExist):  # a part alone
        await file.catalog.restore_queue(queue.parts[1].queue_id)

    restored = await file.catalog.restore_queue(queue.queue_id)

    assert restored.parts == queue.parts
    assert not list(file.catalog.kept)
    assert all(file.catalog.queue_of_id(part.queue_id) for part in queue.parts)


async def test_all_parts_of_a_deleted_queue_are_dropped_together(file: CatalogFile) -> None:
    await file.catalog.delete_queue(await split(file))
    await file.catalog.give_up_oldest(shards=ALL_SHARDS)

    assert {kept.state.name for kept in file.catalog.kept} == {"DROPPING"}


# -- the shard of a part ---------------------------------------------------------------------------


def parts_of(state: PartState = PartState.OPEN) -> QueueDefinition:
    """The definition of part 16, which has the id 2."""
    home = prepared.queue_named("q", 1)
    parts = (Part(0, 1, 0), Part(16, 2, 0, state))
    return msgspec.structs.replace(home, parts=parts, version=7, last_part=16).all_parts()[1]


def check(driver: Driver, part: QueueDefinition) -> PartReading:
    answer = driver.submit(prepared.prepared(part, CheckPart())).answer
    assert isinstance(answer, PartReading)
    return answer


def received(driver: Driver, part: QueueDefinition) -> Receipt:
    (lease,) = driver.submit(prepared.receive(part, 1)).deliveries.leases
    return Receipt(lease.sequence, lease.receive_count)


def test_a_part_issues_its_own_sequences_also_after_a_restart() -> None:
    part, store = parts_of(), MemoryStore()
    driver = Driver(KnownQueues(part), store=store)
    driver.submit(prepared.send(part, "m"))
    receipt = received(driver, part)

    assert receipt.sequence == first_sequence(16) == 16 << 44
    assert [each.queue_id for each in part.way_of(receipt.sequence)] == [2]
    assert part.way_of(5) == part.way_of(32 << 44) == (part.of_part(part.parts[0]),)
    again = Driver(KnownQueues(part), store=store, now_ms=driver.now_ms)
    assert again.state.queue(2).next_sequence == (16 << 44) + 1


def stays_closed() -> None:
    part, closed = parts_of(), parts_of(PartState.DRAINING)
    store, known = MemoryStore(), KnownQueues(part)
    driver = Driver(known, store=store)
    driver.submit(prepared.send(part, "m"))
    known.define(closed)
    assert check(driver, closed).closed_version == 7
    for each in (driver, Driver(known, store=store, now_ms=driver.now_ms)):
        for request in (prepared.send(part, "n"), prepared.send_batch(part, ["n", "o"])):
            assert isinstance(each.submit(request).refusal, Moved)
        assert check(each, closed).visible == 1


def test_a_closed_part_decides_no_send_also_after_a_restart() -> None:
    stays_closed()


async def test_a_part_whose_rows_are_lost_closes_again_before_its_first_decision() -> None:
    """Another part acts on its being closed, and a gateway may not have heard of that."""
    part, closed = parts_of(), parts_of(PartState.DRAINING)
    world = World(definitions=KnownQueues(closed))
    await world.start()

    refused = world.ask(prepared.send(part, "m"))
    await settled()

    assert [type(answer) for answer in refused.answers] == [Moved]
    await world.shard.stop()


def test_a_part_that_sends_when_it_is_closed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "check_open", lambda *given: None)

    with pytest.raises(AssertionError):
        stays_closed()


def test_a_part_is_drained_once_it_has_nothing() -> None:
    part, closed = parts_of(), parts_of(PartState.DRAINING)
    known = KnownQueues(part)
    driver = Driver(known)
    driver.submit(prepared.send(part, "m"))
    known.define(closed)

    assert check(driver, closed).waits_for == "1 messages to transfer"
    receipt = received(driver, closed)
    assert check(driver, closed).waits_for == "1 messages in flight"
    driver.submit(prepared.delete(closed, receipt))
    assert check(driver, closed).drained_version == 7
    assert isinstance(driver.submit(prepared.send(part, "n")).refusal, Moved)
    driver.drop(closed)
    assert isinstance(driver.submit(prepared.send(part, "n")).refusal, Moved)


def test_a_part_is_not_drained_before_its_dead_letters_have_arrived() -> None:
    letters = msgspec.structs.replace(prepared.queue_named("dead", 9), shard=1)
    settings = prepared.queue_named(
        "q", 1, dead_letters_to=letters, max_receive_count=1, VisibilityTimeout="0"
    ).settings
    part, closed = (
        msgspec.structs.replace(parts_of(state), settings=settings)
        for state in (PartState.OPEN, PartState.DRAINING)
    )
    known = KnownQueues(part, letters)
    driver = Driver(known)
    driver.submit(prepared.send(part, "m"))
    for _ in range(2):
        driver.submit(prepared.receive(part, dead_letter_queue=letters))
    known.define(closed)

    reading = check(driver, closed)
    assert reading.waits_for == "1 messages on their way to other shards"
    assert not reading.drained_version


def test_an_open_part_is_not_closed_by_a_look() -> None:
    part = parts_of()
    driver = Driver(KnownQueues(part))

    assert check(driver, part) == PartReading(0, 0, 16 << 44, 0, 0, 0, 0, "")
    assert driver.submit(prepared.send(part, "m")).refusal is None


def test_a_question_is_told_the_place_of_the_first_message_with_strict_priority() -> None:
    part = msgspec.structs.replace(
        prepared.queue_named("q", 1, tags={"holdfast:priority": "strict"}), parts=parts_of().parts
    )
    driver = Driver(KnownQueues(part))

    def first() -> tuple[int, int]:
        found = driver.submit(prepared.prepared(part, FindMessages())).answer
        return (found.visible, found.first) if isinstance(found, MessagesFound) else (0, 0)

    assert first() == (0, 0)
    for level in (3, 10, 1):
        driver.submit(prepared.send(part, "m", level=level))
    assert first() == (3, place_of(10))
    high = driver.submit(prepared.receive(part)).deliveries.leases[0]
    assert first() == (2, place_of(3))
    driver.submit(prepared.change(part, Receipt(high.sequence, 1), 0))
    assert first() == (3, place_of(10))
    driver = driver.restarted()
    assert first() == (3, place_of(10))


def test_a_question_waits_for_messages_and_takes_none() -> None:
    part = parts_of()
    driver = Driver(KnownQueues(part))
    asked = driver.submit(prepared.prepared(part, FindMessages(1)))
    assert asked.waits
    driver.submit(prepared.send(part, "m"))

    assert asked.answer == MessagesFound(1)
    assert check(driver, part).visible == 1
    received(driver, part)
    late = driver.submit(prepared.prepared(part, FindMessages(1)))
    driver.pass_time(1_000)
    assert late.deliveries.leases == []


@pytest.mark.parametrize("wait_s", [0, 1])
def test_a_question_says_that_a_limit_holds_messages_back(wait_s: int) -> None:
    tagged = prepared.queue_named("q", 1, tags={"holdfast:max-in-flight": "2"})
    part = msgspec.structs.replace(parts_of(), settings=tagged.settings)
    driver = Driver(KnownQueues(part))
    for body in "abc":
        driver.submit(prepared.send(part, body))
    most = 2 // len(part.parts)
    assert len(driver.submit(prepared.receive(part, 10)).deliveries.leases) == most

    asked = driver.submit(prepared.prepared(part, FindMessages(wait_s)))
    driver.pass_time(1_000)

    assert asked.deliveries == Deliveries([], [], is_limited=True)


def test_a_long_poll_does_not_stay_at_one_part() -> None:
    home = prepared.queue_named("q", 1)
    known = KnownQueues(home)
    driver = Driver(known)
    poll = driver.submit(prepared.receive(home, 1, wait_s=20))
    split = known.define(msgspec.structs.replace(home, parts=parts_of().parts))

    driver.submit(prepared.prepared(split, PartsAdded()))

    assert isinstance(poll.refusal, Moved)
    assert isinstance(driver.submit(prepared.receive(split, 1, wait_s=20)).refusal, Moved)


def test_parts_share_the_limit_of_messages_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("visibility.rules.closing_parts.IN_FLIGHT_MAX", 6)
    part = parts_of()
    driver = Driver(KnownQueues(part))
    driver.submit(prepared.send_batch(part, [str(number) for number in range(5)]))

    assert len(driver.submit(prepared.receive(part, 10)).deliveries.leases) == 3
    assert name_of(part) == name_of(prepared.queue_named("q", 1))
