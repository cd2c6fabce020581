"""Held messages: until an operator releases them, or until a delete that can be undone."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from cluster.tests.archive_rules import LIMITS, TAGS, waiting
from cluster.tests.driver import Driver
from cluster.tests.histories import seeds
from cluster.tests.row_consistency import check_rows
from cluster.tests.test_operators import OperatorBench
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.limits import HELD_MAX
from visibility.contract.model import QueueCounters, Receipt, Request
from visibility.contract.operations import Operation
from visibility.contract.outcomes import (
    BrowsedPage,
    MovePlan,
    Planned,
    QueuesRead,
    SelectedChanged,
    SelectedDeleted,
)
from visibility.contract.stored_message import Hold
from visibility.rows.row_changes import Changes
from visibility.rows.row_keys import HOLD, row_key, table_range
from visibility.rules.browse import BrowseMessages
from visibility.rules.hold_messages import LOOK_MS, HoldMessages, ReleaseMessages
from visibility.rules.move_plans import PlanMove
from visibility.rules.move_tasks import MoveSelected
from visibility.rules.queues import ReadQueues
from visibility.rules.resend import ResendMessage
from visibility.rules.selected import DeleteSelected
from visibility.tests import prepared

MINUTE_MS = 60_000
RETENTION_MS = 4 * 86_400_000


@pytest.fixture(params=["", ".fifo"], ids=["standard", "fifo"])
def bench(request: pytest.FixtureRequest) -> OperatorBench:
    return OperatorBench(request.param)


def hold(bench: OperatorBench, *sequences: int, **more: Any) -> object:
    return bench.ask(HoldMessages(list(sequences), **more))


def release(bench: OperatorBench, *sequences: int) -> object:
    return bench.ask(ReleaseMessages(list(sequences)))


def undelete(bench: OperatorBench, *sequences: int) -> object:
    return bench.ask(ReleaseMessages(list(sequences), deleting=True))


def listed(bench: OperatorBench, **more: Any) -> list[tuple[int, str]]:
    """Sequence and state of the messages that the browser shows."""
    page = bench.ask(BrowseMessages(**more))
    assert isinstance(page, BrowsedPage)
    return [(found.sequence, found.state) for found in page.messages]


def marks(bench: OperatorBench) -> list[Hold | None]:
    page = bench.ask(BrowseMessages(held=True))
    assert isinstance(page, BrowsedPage)
    return [found.hold for found in page.messages]


def counters(bench: OperatorBench) -> QueueCounters:
    return bench.driver.state.queue(1).counters()


def restart(bench: OperatorBench) -> None:
    """Begin anew with the rows, as a start or another leader does."""
    old = bench.driver
    bench.driver = old.restarted()
    check_rows(bench.driver.store, bench.driver.state)


def has_rows(bench: OperatorBench) -> bool:
    begin, end = table_range(1, HOLD)
    return any(begin <= key < end for key in bench.driver.store.rows)


def refused(bench: OperatorBench, operation: Operation, **more: Any) -> str:
    request = Request(operation, bench.dead, prepared.CALLER, "request", **more)
    refusal = bench.driver.submit(request).refusal
    assert isinstance(refusal, InvalidParameterValue)
    return refusal.message


# -- hold ------------------------------------------------------------------------------------------


def test_no_receive_redrive_or_delete_takes_a_held_message() -> None:
    bench = OperatorBench()
    bench.send(bench.dead, "a", "b", "c", "d")

    answer = hold(bench, 2, 3, 3, 9)

    assert answer == SelectedChanged(2, 1)
    assert bench.ask(DeleteSelected([1, 2])) == SelectedDeleted(1, 1)
    bench.ask(MoveSelected([2]), to=bench.other)
    bench.driver.pass_time(1)
    bench.ask(MoveSelected(), to=bench.other)
    bench.driver.pass_time(12 * 3_600_000)
    assert (bench.bodies(bench.other), bench.bodies(bench.dead)) == (["d"], [])
    assert listed(bench) == [(2, "held"), (3, "held")]
    assert counters(bench) == QueueCounters(0, 2, 0)


def test_a_held_message_blocks_its_fifo_group_like_one_in_flight() -> None:
    bench = OperatorBench(".fifo")
    bench.send(bench.dead, "a", "b", "c")

    hold(bench, 2)
    first = bench.driver.submit(prepared.receive(bench.dead, 10)).deliveries

    assert [message.data for message in first.messages] == [b"a"]
    (lease,) = first.leases
    bench.driver.submit(prepared.delete(bench.dead, Receipt(lease.sequence, lease.receive_count)))
    assert bench.bodies(bench.dead) == []
    release(bench, 2)
    assert bench.bodies(bench.dead) == ["b", "c"]


def test_a_released_message_is_as_it_was(bench: OperatorBench) -> None:
    bench.let_die("a", "b")
    (before,) = bench.driver.state.rows.messages(1, [1])
    hold(bench, 1, owner="ann", reference="T-1")

    assert undelete(bench, 1) == SelectedChanged(0, 1)
    assert release(bench, 1, 2, 7) == SelectedChanged(1, 2)

    assert listed(bench) == [(1, "visible"), (2, "visible")]
    assert not has_rows(bench)
    first = bench.driver.submit(prepared.receive(bench.dead, 1)).deliveries
    assert first.messages == [before]
    assert first.leases[0].receive_count == 2


def test_a_long_poll_gets_a_message_when_it_is_released(bench: OperatorBench) -> None:
    bench.send(bench.dead, "a")
    hold(bench, 1)
    waiting = bench.driver.submit(prepared.receive(bench.dead, 1, wait_s=20))
    assert waiting.waits

    release(bench, 1)

    assert [message.data for message in waiting.deliveries.messages] == [b"a"]


def test_owner_and_reference_are_listed_and_survive_a_restart(bench: OperatorBench) -> None:
    bench.send(bench.dead, "a", "b", "c")
    hold(bench, 1, 3, owner="ann", reference="T-1 <b>")
    since_ms = bench.driver.now_ms
    expected = [Hold(number, since_ms, "ann", "T-1 <b>") for number in (1, 3)]

    assert marks(bench) == expected
    restart(bench)

    assert marks(bench) == expected
    assert listed(bench, held=True, limit=1) == [(1, "held")]
    assert listed(bench, held=True, after=(0, 1)) == [(3, "held")]
    assert release(bench, 1, 3) == SelectedChanged(2, 0)
    assert bench.bodies(bench.dead) == ["a", "b", "c"]


def test_a_message_in_flight_or_held_is_kept(bench: OperatorBench) -> None:
    bench.send(bench.dead, "a", "b")
    hold(bench, 2, owner="ann")
    bench.bodies(bench.dead, 1)

    assert hold(bench, 1, 2, owner="bob") == SelectedChanged(0, 2)
    assert [mark and mark.owner for mark in marks(bench)] == ["ann"]
    copy = (prepared.content("copy", bench.dead, group=bench.group),)
    assert "in flight" in refused(bench, ResendMessage(2), parts=copy, destination=bench.dead)


def test_a_message_that_was_received_before_is_held_and_keeps_its_count(
    bench: OperatorBench,
) -> None:
    bench.send(bench.dead, "a")
    bench.driver.submit(prepared.receive(bench.dead, 1, timeout_s=0))
    bench.driver.pass_time(1)

    hold(bench, 1)
    restart(bench)
    assert bench.bodies(bench.dead) == []
    release(bench, 1)

    (lease,) = bench.driver.submit(prepared.receive(bench.dead, 1)).deliveries.leases
    assert lease.receive_count == 2


def test_a_plan_and_the_readings_tell_of_held_messages() -> None:
    bench = OperatorBench()
    bench.let_die("a", "bb")
    hold(bench, 1)

    plan, read = bench.ask(PlanMove()), bench.ask(ReadQueues([1]))

    assert plan == MovePlan({bench.source.arn: Planned(1, 2)}, {"Held": 1})
    assert isinstance(read, QueuesRead)
    assert (read.queues[0].held, read.queues[0].in_flight) == (1, 1)


# -- delete later ----------------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [False, True])
def test_a_delete_takes_effect_after_its_window(bench: OperatorBench, restarts: bool) -> None:
    bench.send(bench.dead, "a", "b", "c")
    hold(bench, 2, delete_after_ms=MINUTE_MS)
    if restarts:
        restart(bench)

    bench.driver.pass_time(MINUTE_MS - 1)
    assert listed(bench)[1] == (2, "deleting")
    bench.driver.pass_time(1)

    assert listed(bench) == [(1, "visible"), (3, "visible")]
    assert not has_rows(bench)
    assert bench.driver.state.queue(1).counts.deleted == 1
    assert bench.bodies(bench.dead) == ["a", "c"]


def test_a_delete_is_undone_within_its_window(bench: OperatorBench) -> None:
    bench.send(bench.dead, "a", "b")
    hold(bench, 1, 2, delete_after_ms=MINUTE_MS)
    bench.driver.pass_time(MINUTE_MS - 1)

    assert release(bench, 1, 2) == SelectedChanged(0, 2)
    assert undelete(bench, 1, 2) == SelectedChanged(2, 0)
    bench.driver.pass_time(10 * MINUTE_MS)

    assert bench.bodies(bench.dead) == ["a", "b"]


def test_a_delete_that_was_due_while_nothing_ran_happens_at_the_start(bench: OperatorBench) -> None:
    bench.send(bench.dead, "a")
    hold(bench, 1, delete_after_ms=MINUTE_MS)
    bench.driver.now_ms += 10 * MINUTE_MS

    restart(bench)

    assert listed(bench) == []


def test_a_long_poll_of_a_fifo_queue_gets_what_the_deleted_message_blocked() -> None:
    bench = OperatorBench(".fifo")
    bench.send(bench.dead, "a", "b")
    hold(bench, 1, delete_after_ms=10_000)
    waiting = bench.driver.submit(prepared.receive(bench.dead, 1, wait_s=20))
    assert waiting.waits

    bench.driver.pass_time(10_000)

    assert [message.data for message in waiting.deliveries.messages] == [b"b"]


def test_many_deletes_are_done_by_steps() -> None:
    bench = OperatorBench()
    for number in range(250):
        bench.send(bench.dead, f"{number}")
    hold(bench, *range(1, 251), delete_after_ms=MINUTE_MS)

    bench.driver.pass_time(MINUTE_MS)

    assert (counters(bench), has_rows(bench)) == (QueueCounters(0, 0, 0), False)


def test_a_deleted_message_goes_to_the_archive_when_it_is_gone() -> None:
    bench = OperatorBench()
    bench.dead = prepared.queue_named("dead", 1, tags=TAGS)
    bench.driver = Driver(prepared.KnownQueues(bench.dead, bench.source), archive=LIMITS)
    bench.send(bench.dead, "a", "b")
    hold(bench, 1, delete_after_ms=MINUTE_MS)

    before = waiting(bench.driver.store)
    bench.driver.pass_time(MINUTE_MS)

    (archived,) = waiting(bench.driver.store)
    assert (before, archived.message.data, archived.reason) == ([], b"a", "deleted")


# -- other ends ------------------------------------------------------------------------------------


def test_a_handle_finds_a_held_message_as_if_its_timeout_were_over() -> None:
    bench = OperatorBench()
    bench.send(bench.dead, "a")
    (lease,) = bench.driver.submit(prepared.receive(bench.dead, 1, timeout_s=1)).deliveries.leases
    bench.driver.pass_time(1_000)
    hold(bench, 1)
    receipt = Receipt(lease.sequence, lease.receive_count)

    assert bench.driver.submit(prepared.change(bench.dead, receipt, 30)).refusal is None
    assert bench.driver.submit(prepared.change(bench.dead, receipt, 0)).refusal is None
    assert bench.driver.submit(prepared.give_back(bench.dead, [receipt])).refusal is None
    assert listed(bench) == [(1, "held")]
    assert bench.driver.submit(prepared.delete(bench.dead, receipt)).refusal is None

    assert listed(bench) == []
    bench.driver.pass_time(LOOK_MS)
    assert not has_rows(bench)


def test_an_ended_handle_of_a_fifo_queue_changes_nothing() -> None:
    bench = OperatorBench(".fifo")
    bench.send(bench.dead, "a")
    (lease,) = bench.driver.submit(prepared.receive(bench.dead, 1, timeout_s=1)).deliveries.leases
    bench.driver.pass_time(1_000)
    hold(bench, 1)
    receipt = Receipt(lease.sequence, lease.receive_count)

    for request in (
        prepared.change(bench.dead, receipt, 30),
        prepared.change(bench.dead, receipt, 0),
        prepared.delete(bench.dead, receipt),
    ):
        assert isinstance(bench.driver.submit(request).refusal, InvalidParameterValue)
    assert listed(bench) == [(1, "held")]


def test_retention_ends_a_held_message_and_its_mark(bench: OperatorBench) -> None:
    bench.send(bench.dead, "a")
    hold(bench, 1)

    bench.driver.pass_time(RETENTION_MS + LOOK_MS)

    assert (listed(bench), has_rows(bench)) == ([], False)


def test_a_purge_takes_held_messages_and_its_undo_brings_them_back_released(
    bench: OperatorBench,
) -> None:
    bench.send(bench.dead, "a", "b")
    hold(bench, 1, owner="ann")
    purged, successor = bench.dead, bench.driver.purge(bench.dead)
    bench.dead = successor

    assert bench.bodies(successor) == []
    step = bench.driver.restore(purged, successor)

    assert (step.is_done, step.left) == (True, 0)
    assert bench.bodies(successor) == ["a", "b"]


def test_a_lost_mark_leaves_the_message_held_without_an_owner(bench: OperatorBench) -> None:
    bench.send(bench.dead, "a")
    hold(bench, 1, owner="ann")
    lost = Changes()
    lost.delete(row_key(1, HOLD, 1))
    bench.driver.store.apply(lost)

    old = bench.driver
    bench.driver = old.restarted()

    known = bench.driver.state.queue(1).holds
    assert known == {1: Hold(1)}
    release_all = Request(ReleaseMessages([1]), bench.dead, prepared.CALLER, "request")
    assert bench.driver.submit(release_all).answer == SelectedChanged(1, 0)
    assert bench.bodies(bench.dead) == ["a"]


# -- limits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (HoldMessages(list(range(1, 1002))), "up to 1000 selected"),
        (ReleaseMessages(list(range(1, 1002))), "up to 1000 selected"),
        (HoldMessages([1], owner="x" * 101), "An owner has up to 100"),
        (HoldMessages([1], reference="x" * 201), "A reference has up to 200"),
        (HoldMessages([1], delete_after_ms=3_600_001), "up to 3600 seconds"),
        (HoldMessages([1], delete_after_ms=-1), "up to 3600 seconds"),
    ],
)
def test_what_is_too_much_is_refused(operation: Operation, reason: str) -> None:
    bench = OperatorBench()
    bench.send(bench.dead, "a")

    assert reason in refused(bench, operation)
    assert listed(bench) == [(1, "visible")]


def test_a_queue_holds_a_thousand_messages() -> None:
    bench = OperatorBench()
    for number in range(HELD_MAX + 1):
        bench.driver.submit(prepared.send(bench.dead, f"{number}"))
    first = HoldMessages(list(range(1, HELD_MAX + 1)))
    bench.driver.submit(Request(first, bench.dead, prepared.CALLER, "request"))

    assert "Up to 1000" in refused(bench, HoldMessages([HELD_MAX + 1]))
    assert counters(bench) == QueueCounters(1, HELD_MAX, 0)


# -- all together ----------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", ".fifo"])
@seeds
def test_whatever_happens_each_message_is_deleted_or_there(suffix: str, seed: int) -> None:
    """Rows and memory are compared after each step."""
    chance, bench = Random(seed), OperatorBench(suffix)
    sent = deleted = 0
    receipts: list[Receipt] = []
    for _ in range(60):
        some = [chance.randint(1, max(1, sent)) for _ in range(3)]
        step = chance.randrange(7)
        if step == 0:
            bench.group = chance.choice("xyz") if suffix or chance.random() < 0.5 else None
            bench.send(bench.dead, f"{sent}", f"{sent + 1}")
            sent += 2
        elif step == 1:
            request = prepared.receive(bench.dead, 3, timeout_s=chance.choice([0, 5]))
            leases = bench.driver.submit(request).deliveries.leases
            receipts += [Receipt(lease.sequence, lease.receive_count) for lease in leases]
        elif step == 2:
            after_ms = chance.choice([0, 2_000])
            hold(bench, *some, owner="ann", delete_after_ms=after_ms)
        elif step == 3:
            chance.choice([release, undelete])(bench, *some)
        elif step == 4 and receipts:
            bench.driver.submit(prepared.delete(bench.dead, receipts.pop()))
        elif step == 5 and chance.random() < 0.3:
            deleted += bench.driver.state.queue(1).counts.deleted
            restart(bench)
        else:
            bench.driver.pass_time(chance.randint(1, 3_000))
        check_rows(bench.driver.store, bench.driver.state)
    bench.driver.pass_time(10_000)
    held = [number for number, _ in listed(bench, held=True)]
    release(bench, *held)
    bench.driver.pass_time(2 * LOOK_MS)

    queue = bench.driver.state.queue(1)
    assert (queue.holds, queue.in_flight) == ({}, 0)
    assert len(listed(bench)) == queue.stored
    assert queue.stored + deleted + queue.counts.deleted == sent
