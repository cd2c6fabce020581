"""Held messages: until an operator releases them, or until a delete that can be undone."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from cluster.tests.archive_rules import LIMITS, TAGS, waiting
from cluster.tests.consistency import check_rows
from cluster.tests.driver import Driver
from cluster.tests.histories import seeds
from cluster.tests.test_operators import Desk
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
from visibility.rules.delete_selected import DeleteSelected
from visibility.rules.hold_messages import LOOK_MS, HoldMessages, ReleaseMessages
from visibility.rules.move_plans import PlanMove
from visibility.rules.move_tasks import MoveSelected
from visibility.rules.read_queues import ReadQueues
from visibility.rules.resend import ResendMessage
from visibility.tests import prepared

MINUTE_MS = 60_000
RETENTION_MS = 4 * 86_400_000


@pytest.fixture(params=["", ".fifo"], ids=["standard", "fifo"])
def desk(request: pytest.FixtureRequest) -> Desk:
    return Desk(request.param)


def hold(desk: Desk, *sequences: int, **more: Any) -> object:
    return desk.ask(HoldMessages(list(sequences), **more))


def release(desk: Desk, *sequences: int) -> object:
    return desk.ask(ReleaseMessages(list(sequences)))


def undelete(desk: Desk, *sequences: int) -> object:
    return desk.ask(ReleaseMessages(list(sequences), deleting=True))


def listed(desk: Desk, **more: Any) -> list[tuple[int, str]]:
    """Sequence and state of the messages that the browser shows."""
    page = desk.ask(BrowseMessages(**more))
    assert isinstance(page, BrowsedPage)
    return [(found.sequence, found.state) for found in page.messages]


def marks(desk: Desk) -> list[Hold | None]:
    page = desk.ask(BrowseMessages(held=True))
    assert isinstance(page, BrowsedPage)
    return [found.hold for found in page.messages]


def counters(desk: Desk) -> QueueCounters:
    return desk.driver.state.queue(1).counters()


def restart(desk: Desk) -> None:
    """Begin anew with the rows, as a start or another leader does."""
    old = desk.driver
    desk.driver = Driver(old.queues, store=old.store, now_ms=old.now_ms)
    check_rows(desk.driver.store, desk.driver.state)


def has_rows(desk: Desk) -> bool:
    begin, end = table_range(1, HOLD)
    return any(begin <= key < end for key in desk.driver.store.rows)


def refused(desk: Desk, operation: Operation, **more: Any) -> str:
    request = Request(operation, desk.dead, prepared.CALLER, "request", **more)
    refusal = desk.driver.submit(request).refusal
    assert isinstance(refusal, InvalidParameterValue)
    return refusal.message


# -- hold ------------------------------------------------------------------------------------------


def test_no_receive_redrive_or_delete_takes_a_held_message() -> None:
    desk = Desk()
    desk.send(desk.dead, "a", "b", "c", "d")

    answer = hold(desk, 2, 3, 3, 9)

    assert answer == SelectedChanged(2, 1)
    assert desk.ask(DeleteSelected([1, 2])) == SelectedDeleted(1, 1)
    desk.ask(MoveSelected([2]), to=desk.other)
    desk.driver.pass_time(1)
    desk.ask(MoveSelected(), to=desk.other)
    desk.driver.pass_time(12 * 3_600_000)
    assert (desk.bodies(desk.other), desk.bodies(desk.dead)) == (["d"], [])
    assert listed(desk) == [(2, "held"), (3, "held")]
    assert counters(desk) == QueueCounters(0, 2, 0)


def test_a_held_message_blocks_its_fifo_group_like_one_in_flight() -> None:
    desk = Desk(".fifo")
    desk.send(desk.dead, "a", "b", "c")

    hold(desk, 2)
    first = desk.driver.submit(prepared.receive(desk.dead, 10)).deliveries

    assert [message.data for message in first.messages] == [b"a"]
    (lease,) = first.leases
    desk.driver.submit(prepared.delete(desk.dead, Receipt(lease.sequence, lease.receive_count)))
    assert desk.bodies(desk.dead) == []
    release(desk, 2)
    assert desk.bodies(desk.dead) == ["b", "c"]


def test_a_released_message_is_as_it_was(desk: Desk) -> None:
    desk.let_die("a", "b")
    (before,) = desk.driver.state.rows.messages(1, [1])
    hold(desk, 1, owner="ann", reference="T-1")

    assert undelete(desk, 1) == SelectedChanged(0, 1)
    assert release(desk, 1, 2, 7) == SelectedChanged(1, 2)

    assert listed(desk) == [(1, "visible"), (2, "visible")]
    assert not has_rows(desk)
    first = desk.driver.submit(prepared.receive(desk.dead, 1)).deliveries
    assert first.messages == [before]
    assert first.leases[0].receive_count == 2


def test_a_long_poll_gets_a_message_when_it_is_released(desk: Desk) -> None:
    desk.send(desk.dead, "a")
    hold(desk, 1)
    waiting = desk.driver.submit(prepared.receive(desk.dead, 1, wait_s=20))
    assert waiting.waits

    release(desk, 1)

    assert [message.data for message in waiting.deliveries.messages] == [b"a"]


def test_owner_and_reference_are_listed_and_survive_a_restart(desk: Desk) -> None:
    desk.send(desk.dead, "a", "b", "c")
    hold(desk, 1, 3, owner="ann", reference="T-1 <b>")
    since_ms = desk.driver.now_ms
    expected = [Hold(number, since_ms, "ann", "T-1 <b>") for number in (1, 3)]

    assert marks(desk) == expected
    restart(desk)

    assert marks(desk) == expected
    assert listed(desk, held=True, limit=1) == [(1, "held")]
    assert listed(desk, held=True, after=(0, 1)) == [(3, "held")]
    assert release(desk, 1, 3) == SelectedChanged(2, 0)
    assert desk.bodies(desk.dead) == ["a", "b", "c"]


def test_a_message_in_flight_or_held_is_kept(desk: Desk) -> None:
    desk.send(desk.dead, "a", "b")
    hold(desk, 2, owner="ann")
    desk.bodies(desk.dead, 1)

    assert hold(desk, 1, 2, owner="bob") == SelectedChanged(0, 2)
    assert [mark and mark.owner for mark in marks(desk)] == ["ann"]
    copy = (prepared.content("copy", desk.dead, group=desk.group),)
    assert "in flight" in refused(desk, ResendMessage(2), parts=copy, destination=desk.dead)


def test_a_message_that_was_received_before_is_held_and_keeps_its_count(desk: Desk) -> None:
    desk.send(desk.dead, "a")
    desk.driver.submit(prepared.receive(desk.dead, 1, timeout_s=0))
    desk.driver.pass_time(1)

    hold(desk, 1)
    restart(desk)
    assert desk.bodies(desk.dead) == []
    release(desk, 1)

    (lease,) = desk.driver.submit(prepared.receive(desk.dead, 1)).deliveries.leases
    assert lease.receive_count == 2


def test_a_plan_and_the_readings_tell_of_held_messages() -> None:
    desk = Desk()
    desk.let_die("a", "bb")
    hold(desk, 1)

    plan, read = desk.ask(PlanMove()), desk.ask(ReadQueues([1]))

    assert plan == MovePlan({desk.source.arn: Planned(1, 2)}, {"Held": 1})
    assert isinstance(read, QueuesRead)
    assert (read.queues[0].held, read.queues[0].in_flight) == (1, 1)


# -- delete later ----------------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [False, True])
def test_a_delete_takes_effect_after_its_window(desk: Desk, restarts: bool) -> None:
    desk.send(desk.dead, "a", "b", "c")
    hold(desk, 2, delete_after_ms=MINUTE_MS)
    if restarts:
        restart(desk)

    desk.driver.pass_time(MINUTE_MS - 1)
    assert listed(desk)[1] == (2, "deleting")
    desk.driver.pass_time(1)

    assert listed(desk) == [(1, "visible"), (3, "visible")]
    assert not has_rows(desk)
    assert desk.driver.state.queue(1).counts.deleted == 1
    assert desk.bodies(desk.dead) == ["a", "c"]


def test_a_delete_is_undone_within_its_window(desk: Desk) -> None:
    desk.send(desk.dead, "a", "b")
    hold(desk, 1, 2, delete_after_ms=MINUTE_MS)
    desk.driver.pass_time(MINUTE_MS - 1)

    assert release(desk, 1, 2) == SelectedChanged(0, 2)
    assert undelete(desk, 1, 2) == SelectedChanged(2, 0)
    desk.driver.pass_time(10 * MINUTE_MS)

    assert desk.bodies(desk.dead) == ["a", "b"]


def test_a_delete_that_was_due_while_nothing_ran_happens_at_the_start(desk: Desk) -> None:
    desk.send(desk.dead, "a")
    hold(desk, 1, delete_after_ms=MINUTE_MS)
    desk.driver.now_ms += 10 * MINUTE_MS

    restart(desk)

    assert listed(desk) == []


def test_a_long_poll_of_a_fifo_queue_gets_what_the_deleted_message_blocked() -> None:
    desk = Desk(".fifo")
    desk.send(desk.dead, "a", "b")
    hold(desk, 1, delete_after_ms=10_000)
    waiting = desk.driver.submit(prepared.receive(desk.dead, 1, wait_s=20))
    assert waiting.waits

    desk.driver.pass_time(10_000)

    assert [message.data for message in waiting.deliveries.messages] == [b"b"]


def test_many_deletes_are_done_by_steps() -> None:
    desk = Desk()
    for number in range(250):
        desk.send(desk.dead, f"{number}")
    hold(desk, *range(1, 251), delete_after_ms=MINUTE_MS)

    desk.driver.pass_time(MINUTE_MS)

    assert (counters(desk), has_rows(desk)) == (QueueCounters(0, 0, 0), False)


def test_a_deleted_message_goes_to_the_archive_when_it_is_gone() -> None:
    desk = Desk()
    desk.dead = prepared.queue_named("dead", 1, tags=TAGS)
    desk.driver = Driver(prepared.KnownQueues(desk.dead, desk.source), archive=LIMITS)
    desk.send(desk.dead, "a", "b")
    hold(desk, 1, delete_after_ms=MINUTE_MS)

    before = waiting(desk.driver.store)
    desk.driver.pass_time(MINUTE_MS)

    (archived,) = waiting(desk.driver.store)
    assert (before, archived.message.data, archived.reason) == ([], b"a", "deleted")


# -- other ends ------------------------------------------------------------------------------------


def test_a_handle_finds_a_held_message_as_if_its_timeout_were_over() -> None:
    desk = Desk()
    desk.send(desk.dead, "a")
    (lease,) = desk.driver.submit(prepared.receive(desk.dead, 1, timeout_s=1)).deliveries.leases
    desk.driver.pass_time(1_000)
    hold(desk, 1)
    receipt = Receipt(lease.sequence, lease.receive_count)

    assert desk.driver.submit(prepared.change(desk.dead, receipt, 30)).refusal is None
    assert desk.driver.submit(prepared.change(desk.dead, receipt, 0)).refusal is None
    assert desk.driver.submit(prepared.give_back(desk.dead, [receipt])).refusal is None
    assert listed(desk) == [(1, "held")]
    assert desk.driver.submit(prepared.delete(desk.dead, receipt)).refusal is None

    assert listed(desk) == []
    desk.driver.pass_time(LOOK_MS)
    assert not has_rows(desk)


def test_an_ended_handle_of_a_fifo_queue_changes_nothing() -> None:
    desk = Desk(".fifo")
    desk.send(desk.dead, "a")
    (lease,) = desk.driver.submit(prepared.receive(desk.dead, 1, timeout_s=1)).deliveries.leases
    desk.driver.pass_time(1_000)
    hold(desk, 1)
    receipt = Receipt(lease.sequence, lease.receive_count)

    for request in (
        prepared.change(desk.dead, receipt, 30),
        prepared.change(desk.dead, receipt, 0),
        prepared.delete(desk.dead, receipt),
    ):
        assert isinstance(desk.driver.submit(request).refusal, InvalidParameterValue)
    assert listed(desk) == [(1, "held")]


def test_retention_ends_a_held_message_and_its_mark(desk: Desk) -> None:
    desk.send(desk.dead, "a")
    hold(desk, 1)

    desk.driver.pass_time(RETENTION_MS + LOOK_MS)

    assert (listed(desk), has_rows(desk)) == ([], False)


def test_a_purge_takes_held_messages_and_its_undo_brings_them_back_released(
    desk: Desk,
) -> None:
    desk.send(desk.dead, "a", "b")
    hold(desk, 1, owner="ann")
    purged, successor = desk.dead, desk.driver.purge(desk.dead)
    desk.dead = successor

    assert desk.bodies(successor) == []
    step = desk.driver.restore(purged, successor)

    assert (step.is_done, step.left) == (True, 0)
    assert desk.bodies(successor) == ["a", "b"]


def test_a_lost_mark_leaves_the_message_held_without_an_owner(desk: Desk) -> None:
    desk.send(desk.dead, "a")
    hold(desk, 1, owner="ann")
    lost = Changes()
    lost.delete(row_key(1, HOLD, 1))
    desk.driver.store.apply(lost)

    old = desk.driver
    desk.driver = Driver(old.queues, store=old.store, now_ms=old.now_ms)

    known = desk.driver.state.queue(1).holds
    assert known == {1: Hold(1)}
    release_all = Request(ReleaseMessages([1]), desk.dead, prepared.CALLER, "request")
    assert desk.driver.submit(release_all).answer == SelectedChanged(1, 0)
    assert desk.bodies(desk.dead) == ["a"]


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
    desk = Desk()
    desk.send(desk.dead, "a")

    assert reason in refused(desk, operation)
    assert listed(desk) == [(1, "visible")]


def test_a_queue_holds_a_thousand_messages() -> None:
    desk = Desk()
    for number in range(HELD_MAX + 1):
        desk.driver.submit(prepared.send(desk.dead, f"{number}"))
    first = HoldMessages(list(range(1, HELD_MAX + 1)))
    desk.driver.submit(Request(first, desk.dead, prepared.CALLER, "request"))

    assert "Up to 1000" in refused(desk, HoldMessages([HELD_MAX + 1]))
    assert counters(desk) == QueueCounters(1, HELD_MAX, 0)


# -- all together ----------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", ".fifo"])
@seeds
def test_whatever_happens_each_message_is_deleted_or_there(suffix: str, seed: int) -> None:
    """Rows and memory are compared after each step."""
    chance, desk = Random(seed), Desk(suffix)
    sent = deleted = 0
    receipts: list[Receipt] = []
    for _ in range(60):
        some = [chance.randint(1, max(1, sent)) for _ in range(3)]
        step = chance.randrange(7)
        if step == 0:
            desk.group = chance.choice("xyz") if suffix or chance.random() < 0.5 else None
            desk.send(desk.dead, f"{sent}", f"{sent + 1}")
            sent += 2
        elif step == 1:
            request = prepared.receive(desk.dead, 3, timeout_s=chance.choice([0, 5]))
            leases = desk.driver.submit(request).deliveries.leases
            receipts += [Receipt(lease.sequence, lease.receive_count) for lease in leases]
        elif step == 2:
            after_ms = chance.choice([0, 2_000])
            hold(desk, *some, owner="ann", delete_after_ms=after_ms)
        elif step == 3:
            chance.choice([release, undelete])(desk, *some)
        elif step == 4 and receipts:
            desk.driver.submit(prepared.delete(desk.dead, receipts.pop()))
        elif step == 5 and chance.random() < 0.3:
            deleted += desk.driver.state.queue(1).counts.deleted
            restart(desk)
        else:
            desk.driver.pass_time(chance.randint(1, 3_000))
        check_rows(desk.driver.store, desk.driver.state)
    desk.driver.pass_time(10_000)
    held = [number for number, _ in listed(desk, held=True)]
    release(desk, *held)
    desk.driver.pass_time(2 * LOOK_MS)

    queue = desk.driver.state.queue(1)
    assert (queue.holds, queue.in_flight) == ({}, 0)
    assert len(listed(desk)) == queue.stored
    assert queue.stored + deleted + queue.counts.deleted == sent
