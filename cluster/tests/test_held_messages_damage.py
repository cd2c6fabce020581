"""Held messages whose rows are damaged or gone: they are lost, and hold nothing back."""

from __future__ import annotations

import pytest

from cluster.tests.driver import Driver
from cluster.tests.test_operators import Desk
from visibility.contract.model import QueueCounters, Request
from visibility.contract.operations import Operation
from visibility.contract.outcomes import Answer, BrowsedPage
from visibility.rows.row_changes import Changes
from visibility.rows.row_keys import message_key
from visibility.rows.row_values import Quarantined
from visibility.rules.browse import BrowseMessages
from visibility.rules.hold_messages import LOOK_MS, HoldMessages, ReleaseMessages
from visibility.state.queue_state import QueueState
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

RETENTION_MS = 600_000
RUBBISH = b"\x01rubbish"


@pytest.fixture(params=["", ".fifo"], ids=["standard", "fifo"])
def desk(request: pytest.FixtureRequest) -> Desk:
    """A queue that keeps messages for ten minutes, with two of one group."""
    made = Desk(request.param)
    name = "dead" + request.param
    made.dead = prepared.queue_named(name, 1, MessageRetentionPeriod=str(RETENTION_MS // 1000))
    made.driver = Driver(KnownQueues(made.dead))
    made.send(made.dead, "a", "b")
    return made


def ask(desk: Desk, operation: Operation) -> Answer:
    """Like `Desk.ask`, which reads all rows."""
    return desk.driver.submit(Request(operation, desk.dead, prepared.CALLER, "request")).answer


def spoil(desk: Desk, sequence: int, *, is_gone: bool) -> None:
    """Damage a message's row, or remove it."""
    changes = Changes()
    if is_gone:
        changes.delete(message_key(1, sequence))
    else:
        changes.put(message_key(1, sequence), RUBBISH)
    desk.driver.store.apply(changes)


def listed(desk: Desk) -> list[int]:
    page = ask(desk, BrowseMessages(held=True))
    assert isinstance(page, BrowsedPage)
    return [found.sequence for found in page.messages]


def queue_of(desk: Desk) -> QueueState:
    return desk.driver.state.queue(1)


@pytest.mark.parametrize("is_gone", [False, True], ids=["damaged", "gone"])
def test_a_damaged_one_is_lost_and_its_group_goes_on(desk: Desk, is_gone: bool) -> None:
    ask(desk, HoldMessages([1], owner="ann"))
    spoil(desk, 1, is_gone=is_gone)

    assert listed(desk) == []

    assert queue_of(desk).quarantined.lost == 1
    assert queue_of(desk).in_flight == 0
    desk.send(desk.dead, "c")
    assert desk.bodies(desk.dead) == ["b", "c"]
    desk.driver.pass_time(LOOK_MS)
    assert queue_of(desk).holds == {}


def test_its_group_goes_on_after_a_restart(desk: Desk) -> None:
    ask(desk, HoldMessages([1]))
    spoil(desk, 1, is_gone=True)
    assert listed(desk) == []

    before = desk.driver
    desk.driver = Driver(before.queues, store=before.store, now_ms=before.now_ms, seed=1 << 70)

    assert desk.bodies(desk.dead) == ["b"]
    assert (queue_of(desk).quarantined.lost, queue_of(desk).in_flight) == (1, 1)


def test_a_group_waits_while_another_of_it_is_held(desk: Desk) -> None:
    desk.send(desk.dead, "c")
    ask(desk, HoldMessages([1, 2]))
    spoil(desk, 1, is_gone=False)
    assert listed(desk) == [2]

    assert desk.bodies(desk.dead) == ([] if desk.group else ["c"])
    desk.driver.pass_time(LOOK_MS)
    ask(desk, ReleaseMessages([2]))
    assert desk.bodies(desk.dead) == ["b", "c"]


def test_a_group_waits_for_one_that_was_lost_beside_a_held_one(desk: Desk) -> None:
    desk.send(desk.dead, "c")
    ask(desk, HoldMessages([1]))
    for sequence in (1, 2):
        spoil(desk, sequence, is_gone=False)
    assert listed(desk) == []

    assert queue_of(desk).quarantined.lost == 2
    assert desk.bodies(desk.dead) == ([] if desk.group else ["c"])


def test_one_beside_another_damaged_one_is_lost_at_once(desk: Desk) -> None:
    desk.send(desk.dead, "c")
    ask(desk, HoldMessages([1, 3]))
    spoil(desk, 3, is_gone=False)
    spoil(desk, 2, is_gone=False)

    ask(desk, BrowseMessages())  # meets the second

    assert queue_of(desk).quarantined.lost == 2
    assert queue_of(desk).in_flight == 1
    assert listed(desk) == [1]


def test_one_that_a_rebuild_found_to_be_damaged_is_lost(desk: Desk) -> None:
    ask(desk, HoldMessages([1]))
    spoil(desk, 1, is_gone=False)
    queue_of(desk).quarantined.spans[0] = Quarantined(0, 0, desk.driver.now_ms, [1])

    desk.driver.pass_time(LOOK_MS)

    assert (queue_of(desk).quarantined.lost, queue_of(desk).in_flight) == (1, 0)


@pytest.mark.parametrize("is_gone", [False, True], ids=["damaged", "gone"])
def test_one_of_a_delete_that_can_be_undone_is_deleted_in_its_time(
    desk: Desk, is_gone: bool
) -> None:
    ask(desk, HoldMessages([1], delete_after_ms=LOOK_MS))
    spoil(desk, 1, is_gone=is_gone)
    assert listed(desk) == []
    assert queue_of(desk).in_flight == 1

    desk.driver.pass_time(LOOK_MS)

    assert desk.bodies(desk.dead) == ["b"]
    assert queue_of(desk).quarantined.lost == 0


def test_a_missing_one_is_found_at_the_end_of_the_retention(desk: Desk) -> None:
    ask(desk, HoldMessages([1]))
    spoil(desk, 1, is_gone=True)

    desk.driver.pass_time(RETENTION_MS + LOOK_MS)

    counters = desk.driver.submit(prepared.counters(desk.dead)).answer
    assert counters == QueueCounters(0, 0, 0)
    assert queue_of(desk).quarantined.lost == 1
