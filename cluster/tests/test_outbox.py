"""Messages between two shards: in one place at any moment, whichever step is repeated or lost."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cluster.tests.driver import Driver
from cluster.tests.shard_pair import ShardPair, in_shard
from storage.log.entry import ENTRY_BYTES_MAX
from storage.rows.stored_rows import CHANGED_BYTES_MAX
from visibility.content.sealing import AsStored
from visibility.contract.model import QueueCounters, QueueDefinition, Request
from visibility.contract.move_task import MoveTask
from visibility.contract.stored_message import StoredMessage
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import ARRIVAL, ARRIVALS_FLOOR, DEPARTURE, arrival_key, floor_key
from visibility.rows.row_values import THE_SHARD
from visibility.rules.archive_batches import the_shard
from visibility.rules.arrivals import TARGET_GONE, ArrivalsForgotten
from visibility.rules.departures import ClearOutbox, MessagesDeparted, decide_clear_outbox
from visibility.rules.events import Event
from visibility.rules.move_tasks import MoveSelected, MoveTaskChanged
from visibility.rules.resend import ResendMessage
from visibility.state import outbox as outbox_state
from visibility.state.queue_state import QueueState
from visibility.state.stamp import Stamp
from visibility.tests import prepared

NONE = QueueCounters(0, 0, 0)


@pytest.fixture(params=["", ".fifo"], ids=["standard", "fifo"])
def pair(request: pytest.FixtureRequest) -> ShardPair:
    return ShardPair(request.param)


def rows_of(pair: ShardPair, number: int, table: bytes) -> int:
    return sum(key[8:9] == table for key in pair.shards[number].store.rows)


def task_of(pair: ShardPair, queue: QueueDefinition) -> MoveTask:
    return list(pair.shards[queue.shard].state.queue(queue.queue_id).tasks.values())[-1]


def test_a_dead_letter_crosses(pair: ShardPair) -> None:
    pair.spend("a")

    assert pair.receive(pair.source) == []
    assert pair.counters(pair.source) == pair.counters(pair.letters) == NONE
    pair.deliver()

    assert pair.counters(pair.letters) == QueueCounters(1, 0, 0)
    found = pair.shards[1].submit(prepared.receive(pair.letters)).deliveries
    assert found.messages[0].data == b"a"
    assert found.messages[0].dead_letter_source_arn == pair.source.arn
    assert found.leases[0].receive_count == 2
    assert rows_of(pair, 0, DEPARTURE) == rows_of(pair, 1, ARRIVAL) == 0


def test_a_message_that_comes_again_after_its_delete_is_ignored(pair: ShardPair) -> None:
    pair.spend("a")
    pair.receive(pair.source)
    page = pair.read()
    outcomes = pair.accept(page.arrivals)
    ((_, receipt),) = pair.received(pair.letters)
    pair.delete(pair.letters, receipt)

    pair.restart(1)
    assert pair.accept(page.arrivals) == outcomes

    assert pair.counters(pair.letters) == NONE


def test_a_late_request_after_the_end_brings_nothing_back(pair: ShardPair) -> None:
    pair.spend("a")
    pair.receive(pair.source)
    page = pair.read()
    pair.deliver()
    ((_, receipt),) = pair.received(pair.letters)
    pair.delete(pair.letters, receipt)
    assert rows_of(pair, 1, ARRIVAL) == 0

    pair.restart(1)
    pair.accept(page.arrivals)

    assert pair.counters(pair.letters) == NONE


def test_a_group_is_locked_until_the_clear() -> None:
    pair = ShardPair(".fifo")
    pair.spend("a")
    pair.send("b")

    assert pair.receive(pair.source) == []
    outcomes = pair.accept(pair.read().arrivals)
    pair.restart(0)
    assert pair.receive(pair.source) == []
    pair.clear(outcomes)

    assert pair.receive(pair.source) == ["b"]


def test_earlier_messages_of_the_group_may_be_received_meanwhile() -> None:
    pair = ShardPair(".fifo", max_receive_count=2)
    pair.send("a")
    ((_, receipt),) = pair.received(pair.source)
    pair.shards[0].submit(prepared.change(pair.source, receipt, 0))
    pair.send("b")
    pair.receive(pair.source)
    pair.pass_time(6_000)  # a was received twice, b once

    assert pair.receive(pair.source) == []
    pair.deliver()
    assert pair.receive(pair.source) == ["b"]
    assert pair.receive(pair.letters) == ["a"]


def test_a_message_without_a_target_returns_to_its_place(pair: ShardPair) -> None:
    pair.spend("a")
    pair.send("b")
    pair.receive(pair.source, 1)
    page = pair.read()
    del pair.queues.queues[pair.letters.queue_id]
    outcomes = pair.accept(page.arrivals)
    assert [reason for _, _, reason in outcomes] == [TARGET_GONE]

    pair.queues.define(pair.letters)  # an answer that was lost stays the same
    assert pair.accept(page.arrivals) == outcomes
    del pair.queues.queues[pair.letters.queue_id]
    pair.clear(outcomes)
    pair.restart(0)
    pair.check()

    pair.pass_time(6_000)
    assert pair.receive(pair.source) == ["a", "b"]
    assert rows_of(pair, 0, DEPARTURE) == 0


def test_a_clear_without_an_answer_from_there_is_not_made_twice(pair: ShardPair) -> None:
    pair.spend("a")
    pair.receive(pair.source)
    outcomes = pair.accept(pair.read().arrivals)
    pair.clear(outcomes)
    pair.clear(outcomes)
    pair.clear([(origin, number, "reason") for origin, number, _ in outcomes])

    assert pair.counters(pair.source) == NONE


@pytest.mark.parametrize("selects", [False, True])
def test_a_move_task_ends_when_all_have_arrived(pair: ShardPair, *, selects: bool) -> None:
    pair.send("a", "b", "c", to=pair.letters)
    request = prepared.start_move_task(pair.letters, pair.source)
    if selects:
        operation = MoveSelected(sequences=[1, 2, 3])
        request = msgspec.structs.replace(request, operation=operation)
    pair.shards[1].submit(request)
    pair.check()
    task = task_of(pair, pair.letters)
    assert (task.status, task.moved, task.to_move) == ("RUNNING", 3, 3)
    assert pair.counters(pair.letters) == NONE

    pair.restart(1)
    pair.deliver(1)

    task = task_of(pair, pair.letters)
    assert (task.status, task.moved, task.stayed) == ("COMPLETED", 3, 0)
    assert pair.receive(pair.source) == ["a", "b", "c"]


def test_a_move_to_each_message_s_own_source(pair: ShardPair) -> None:
    pair.spend("a")
    pair.receive(pair.source)
    pair.deliver()

    pair.shards[1].submit(prepared.start_move_task(pair.letters, None))
    pair.deliver(1)

    found = pair.shards[0].submit(prepared.receive(pair.source)).deliveries
    assert found.messages[0].data == b"a"
    assert found.messages[0].dead_letter_source_arn is None
    assert found.leases[0].receive_count == 1
    assert task_of(pair, pair.letters).status == "COMPLETED"


def test_a_task_whose_messages_are_refused_fails(pair: ShardPair) -> None:
    pair.send("a", "b", to=pair.letters)
    pair.shards[1].submit(prepared.start_move_task(pair.letters, pair.source))
    del pair.queues.queues[pair.source.queue_id]

    pair.deliver(1)

    task = task_of(pair, pair.letters)
    assert (task.status, task.moved, task.stayed) == ("FAILED", 0, 2)
    assert task.failure_reason == TARGET_GONE
    assert pair.receive(pair.letters) == ["a", "b"]


class NotWalked(dict[int, QueueState]):
    """Queues of a shard that may be found, and not walked through."""

    def values(self) -> Any:
        raise AssertionError("all queues are read")


def test_a_refusal_reads_the_queue_of_its_task_only(pair: ShardPair) -> None:
    pair.send("a", "b", to=pair.letters)
    pair.shards[1].submit(prepared.start_move_task(pair.letters, pair.source))
    del pair.queues.queues[pair.source.queue_id]
    page = pair.read(1)
    clear = ClearOutbox(pair.accept(page.arrivals, page.floors, at=0))
    shard = pair.shards[1]
    shard.state.queues = NotWalked(shard.state.queues)

    request, stamp = prepared.prepared(the_shard(1), clear), Stamp(shard.now_ms, lambda: 0)
    _, events = decide_clear_outbox(shard.state, request, stamp)

    (changed,) = [event for event in events if isinstance(event, MoveTaskChanged)]
    assert changed.task.stayed == 2


@pytest.mark.parametrize("drops", [False, True])
def test_a_purge_of_its_source_leaves_a_task_its_numbers(pair: ShardPair, *, drops: bool) -> None:
    pair.send("a", "b", to=pair.letters)
    pair.shards[1].submit(prepared.start_move_task(pair.letters, pair.source))
    successor = pair.shards[1].purge(pair.letters)
    if drops:
        pair.shards[1].drop(pair.letters)
    pair.restart(1)
    assert task_of(pair, successor).status == "RUNNING"

    del pair.queues.queues[pair.source.queue_id]
    pair.deliver(1)

    task = task_of(pair, successor)
    assert (task.status, task.moved, task.stayed) == ("FAILED", 0, 2)
    assert pair.counters(successor) == NONE


def test_a_task_ends_when_all_have_arrived_although_its_source_was_purged(pair: ShardPair) -> None:
    pair.send("a", "b", to=pair.letters)
    pair.shards[1].submit(prepared.start_move_task(pair.letters, pair.source))
    successor = pair.shards[1].purge(pair.letters)
    pair.pass_time(10)
    assert task_of(pair, successor).status == "RUNNING"

    pair.deliver(1)

    task = task_of(pair, successor)
    assert (task.status, task.moved, task.stayed) == ("COMPLETED", 2, 0)


def test_a_full_outbox_holds_tasks_and_lets_dead_letters_be_received(
    pair: ShardPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("visibility.rules.departures.OUTBOX_MESSAGES_MAX", 2)
    monkeypatch.setattr("visibility.rules.departures.TARGET_SHARE", 1)
    pair.send("a", "b", "c", "d", "e", to=pair.letters)
    pair.shards[1].submit(prepared.start_move_task(pair.letters, pair.source))
    pair.check()
    assert pair.counters(pair.letters) == QueueCounters(3, 0, 0)

    pair.deliver(1)

    assert pair.receive(pair.source) == ["a", "b", "c", "d", "e"]
    assert task_of(pair, pair.letters).status == "COMPLETED"


def test_a_queue_takes_a_quarter_of_the_outbox_and_leaves_the_rest_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = ShardPair()
    monkeypatch.setattr("visibility.rules.departures.OUTBOX_MESSAGES_MAX", 8)
    letters = in_shard(1, prepared.queue_named("other-letters", 3))
    other = prepared.queue_named(
        "other-source",
        4,
        dead_letters_to=letters,
        max_receive_count=1,
        VisibilityTimeout="5",
    )
    for queue in (letters, other):
        pair.queues.define(queue)
    for queue in (pair.source, other):
        pair.send("a", "b", "c", to=queue)
        pair.receive(queue)
    pair.pass_time(6_000)

    received = [pair.receive(queue) for queue in (pair.source, other)]
    departed = list(pair.shards[0].state.outbox.departures.values())
    assert [each.target_arn for each in departed] == [pair.letters.arn] * 2 + [letters.arn] * 2
    assert received == [["c"], ["c"]]
    pair.restart(0)
    pair.pass_time(6_000)
    assert [pair.receive(queue) for queue in (pair.source, other)] == [["c"], ["c"]]

    pair.deliver()
    pair.pass_time(6_000)
    assert [pair.receive(queue) for queue in (pair.source, other)] == [[], []]


def test_dead_letters_stay_in_use_while_the_outbox_is_full(
    pair: ShardPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("visibility.rules.departures.OUTBOX_MESSAGES_MAX", 0)
    pair.spend("a")

    assert pair.receive(pair.source) == ["a"]


def test_a_resent_copy_takes_the_place_of_its_original(pair: ShardPair) -> None:
    pair.send("a", "b", to=pair.letters)
    copy = prepared.content("edited", pair.source, group=pair.group)
    operation = ResendMessage(replaces=1)
    request = Request(
        operation, pair.letters, prepared.CALLER, "r", (copy,), destination=pair.source
    )

    pair.shards[1].submit(request)
    pair.check()
    assert pair.counters(pair.letters).stored == 1
    pair.deliver(1)

    assert pair.receive(pair.source) == ["edited"]
    assert pair.receive(pair.letters) == ["b"]


def test_a_floor_does_not_pass_what_was_not_cleared(pair: ShardPair) -> None:
    pair.spend("a")
    pair.receive(pair.source)
    page = pair.read()
    outcomes = pair.accept(page.arrivals)

    assert [floor for _, floor in pair.read().floors] == [page.arrivals[0].number]
    pair.clear(outcomes)
    assert [floor for _, floor in pair.read().floors] == [page.arrivals[0].number + 1]


def test_a_purge_and_a_drop_do_not_touch_what_left(pair: ShardPair) -> None:
    pair.spend("a")
    pair.receive(pair.source)
    successor = pair.shards[0].purge(pair.source)
    pair.shards[0].drop(pair.source)
    pair.check()

    pair.restart(0)
    pair.deliver()

    assert pair.receive(pair.letters) == ["a"]
    assert pair.counters(successor) == NONE


def test_a_refused_message_of_a_dropped_queue_is_gone(pair: ShardPair) -> None:
    pair.spend("a")
    pair.receive(pair.source)
    pair.shards[0].purge(pair.source)
    pair.shards[0].drop(pair.source)
    del pair.queues.queues[pair.letters.queue_id]

    pair.deliver()

    pair.check()
    assert rows_of(pair, 0, DEPARTURE) == 0


def test_a_message_for_a_queue_that_is_not_known_yet_waits(pair: ShardPair) -> None:
    pair.spend("a")
    pair.receive(pair.source)
    page = pair.read()
    del pair.queues.queues[pair.letters.queue_id]
    (arrival,) = page.arrivals
    later = [msgspec.structs.replace(arrival, queue_id=10)]

    assert pair.accept(later) == []
    pair.queues.define(pair.letters)
    assert [reason for _, _, reason in pair.accept(later)] == [""]


def test_a_message_follows_its_purged_target(pair: ShardPair) -> None:
    pair.send("x", to=pair.letters)
    pair.spend("a")
    pair.receive(pair.source)
    successor = pair.queues.purge(pair.letters)
    assert pair.accept(pair.read().arrivals) == [], "the shard does not know of the purge yet"

    pair.shards[1].submit(prepared.purge(pair.letters, successor))
    pair.deliver()

    assert pair.receive(successor) == ["a"]


def test_retention_goes_on_in_the_outbox() -> None:
    pair = ShardPair()
    pair.spend("a")
    pair.receive(pair.source)
    page = pair.read()
    pair.pass_time(5 * 24 * 3_600_000)

    pair.accept(page.arrivals)
    pair.pass_time(1)

    assert pair.counters(pair.letters) == NONE


def test_an_origin_is_new_when_the_rows_came_back_shorter() -> None:
    pair = ShardPair()
    pair.spend("a")
    pair.receive(pair.source)
    before = pair.read()
    pair.deliver()
    pair.shards[0].state.outbox.renew_origin()  # as `Shard` does
    pair.shards[0].state.outbox.next_number = 1

    pair.spend("b")
    pair.receive(pair.source)
    after = pair.read()
    number = before.arrivals[0].number
    assert after.arrivals[0].number == number
    pair.clear([(before.arrivals[0].origin, number, "")])  # late
    pair.deliver()

    assert pair.receive(pair.letters) == ["a", "b"]


def test_a_page_is_bounded(pair: ShardPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("visibility.rules.departures.PAGE_MESSAGES", 2)
    pair.send("a", "b", "c", to=pair.letters)
    pair.shards[1].submit(prepared.start_move_task(pair.letters, pair.source))

    page = pair.read(1)

    assert [arrival.number for arrival in page.arrivals] == [1, 2]
    assert [floor for _, floor in page.floors] == [1]
    assert pair.shards[1].state.outbox.next_number == 4
    assert outbox_state.OUTBOX_MESSAGES_MAX == 2_000
    pair.deliver(1)
    assert pair.receive(pair.source) == ["a", "b", "c"]


class _SealsAnew(AsStored):
    """Each destination has a key of its own."""

    def sealed_for(self, message: StoredMessage, queue: QueueDefinition) -> StoredMessage:
        return msgspec.structs.replace(message, data=b"!" + message.data)


def test_what_departs_by_one_receive_fits_into_an_entry_beside_a_full_turn() -> None:
    """A message that is sealed anew is in it twice."""
    pair = ShardPair()
    events: list[Event] = []
    pair.shards[0] = Driver(pair.queues, sealing=_SealsAnew(), on_event=events.append)
    half, whole = (1 << 20) // 2 - 1_000, (1 << 20) - 10
    pair.send("x" * half, "y" * (half - 99), *["z"] * 50, "w" * whole)
    while pair.receive(pair.source):
        pass
    pair.pass_time(6_000)
    pair.receive(pair.source)

    departed = [event for event in events if isinstance(event, MessagesDeparted)]

    assert departed
    for event in departed:
        assert len(encode_row(event.departures)) + CHANGED_BYTES_MAX < ENTRY_BYTES_MAX


def test_the_same_shard_has_no_outbox() -> None:
    pair = ShardPair()
    pair.letters = pair.queues.define(in_shard(0, pair.letters))
    pair.spend("a")

    assert pair.receive(pair.source) == []

    assert pair.receive(pair.letters) == ["a"]
    assert pair.shards[0].state.outbox.next_number == 1


def test_few_names_are_forgotten_one_by_one_and_many_at_once() -> None:
    """A store's reads get slower with each range that was deleted."""
    origin = b"o" * 16
    few, many = Changes(), Changes()
    ArrivalsForgotten(THE_SHARD, [(origin, 7, 9)]).record(few)
    ArrivalsForgotten(THE_SHARD, [(origin, 0, 5_000)]).record(many)
    seventh, eighth, first, last = (
        arrival_key(THE_SHARD, ARRIVAL, origin, number) for number in (7, 8, 0, 5_000)
    )
    floor = floor_key(THE_SHARD, ARRIVALS_FLOOR, origin)
    assert list(few.ops) == [seventh, None, eighth, None, floor, encode_row(9)]
    assert list(many.ops) == [first, [last], floor, encode_row(5_000)]
