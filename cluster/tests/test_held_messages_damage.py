"""Held messages whose rows are damaged or gone: they are lost, and hold nothing back."""

from __future__ import annotations

import pytest

from cluster.tests.driver import Driver
from cluster.tests.test_operators import OperatorBench
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
def bench(request: pytest.FixtureRequest) -> OperatorBench:
    """A queue that keeps messages for ten minutes, with two of one group."""
    made = OperatorBench(request.param)
    name = "dead" + request.param
    made.dead = prepared.queue_named(name, 1, MessageRetentionPeriod=str(RETENTION_MS // 1000))
    made.driver = Driver(KnownQueues(made.dead))
    made.send(made.dead, "a", "b")
    return made


def ask(bench: OperatorBench, operation: Operation) -> Answer:
    """Like `OperatorBench.ask`, which reads all rows."""
    return bench.driver.submit(Request(operation, bench.dead, prepared.CALLER, "request")).answer


def spoil(bench: OperatorBench, sequence: int, *, is_gone: bool) -> None:
    """Damage a message's row, or remove it."""
    changes = Changes()
    if is_gone:
        changes.delete(message_key(1, sequence))
    else:
        changes.put(message_key(1, sequence), RUBBISH)
    bench.driver.store.apply(changes)


def listed(bench: OperatorBench) -> list[int]:
    page = ask(bench, BrowseMessages(held=True))
    assert isinstance(page, BrowsedPage)
    return [found.sequence for found in page.messages]


def queue_of(bench: OperatorBench) -> QueueState:
    return bench.driver.state.queue(1)


@pytest.mark.parametrize("is_gone", [False, True], ids=["damaged", "gone"])
def test_a_damaged_one_is_lost_and_its_group_goes_on(bench: OperatorBench, is_gone: bool) -> None:
    ask(bench, HoldMessages([1], owner="ann"))
    spoil(bench, 1, is_gone=is_gone)

    assert listed(bench) == []

    assert queue_of(bench).quarantined.lost == 1
    assert queue_of(bench).in_flight == 0
    bench.send(bench.dead, "c")
    assert bench.bodies(bench.dead) == ["b", "c"]
    bench.driver.pass_time(LOOK_MS)
    assert queue_of(bench).holds == {}


def test_its_group_goes_on_after_a_restart(bench: OperatorBench) -> None:
    ask(bench, HoldMessages([1]))
    spoil(bench, 1, is_gone=True)
    assert listed(bench) == []

    before = bench.driver
    bench.driver = Driver(before.queues, store=before.store, now_ms=before.now_ms, seed=1 << 70)

    assert bench.bodies(bench.dead) == ["b"]
    assert (queue_of(bench).quarantined.lost, queue_of(bench).in_flight) == (1, 1)


def test_a_group_waits_while_another_of_it_is_held(bench: OperatorBench) -> None:
    bench.send(bench.dead, "c")
    ask(bench, HoldMessages([1, 2]))
    spoil(bench, 1, is_gone=False)
    assert listed(bench) == [2]

    assert bench.bodies(bench.dead) == ([] if bench.group else ["c"])
    bench.driver.pass_time(LOOK_MS)
    ask(bench, ReleaseMessages([2]))
    assert bench.bodies(bench.dead) == ["b", "c"]


def test_a_group_waits_for_one_that_was_lost_beside_a_held_one(bench: OperatorBench) -> None:
    bench.send(bench.dead, "c")
    ask(bench, HoldMessages([1]))
    for sequence in (1, 2):
        spoil(bench, sequence, is_gone=False)
    assert listed(bench) == []

    assert queue_of(bench).quarantined.lost == 2
    assert bench.bodies(bench.dead) == ([] if bench.group else ["c"])


def test_one_beside_another_damaged_one_is_lost_at_once(bench: OperatorBench) -> None:
    bench.send(bench.dead, "c")
    ask(bench, HoldMessages([1, 3]))
    spoil(bench, 3, is_gone=False)
    spoil(bench, 2, is_gone=False)

    ask(bench, BrowseMessages())  # meets the second

    assert queue_of(bench).quarantined.lost == 2
    assert queue_of(bench).in_flight == 1
    assert listed(bench) == [1]


def test_one_that_a_rebuild_found_to_be_damaged_is_lost(bench: OperatorBench) -> None:
    ask(bench, HoldMessages([1]))
    spoil(bench, 1, is_gone=False)
    queue_of(bench).quarantined.spans[0] = Quarantined(0, 0, bench.driver.now_ms, [1])

    bench.driver.pass_time(LOOK_MS)

    assert (queue_of(bench).quarantined.lost, queue_of(bench).in_flight) == (1, 0)


@pytest.mark.parametrize("is_gone", [False, True], ids=["damaged", "gone"])
def test_one_of_a_delete_that_can_be_undone_is_deleted_in_its_time(
    bench: OperatorBench, is_gone: bool
) -> None:
    ask(bench, HoldMessages([1], delete_after_ms=LOOK_MS))
    spoil(bench, 1, is_gone=is_gone)
    assert listed(bench) == []
    assert queue_of(bench).in_flight == 1

    bench.driver.pass_time(LOOK_MS)

    assert bench.bodies(bench.dead) == ["b"]
    assert queue_of(bench).quarantined.lost == 0


def test_a_missing_one_is_found_at_the_end_of_the_retention(bench: OperatorBench) -> None:
    ask(bench, HoldMessages([1]))
    spoil(bench, 1, is_gone=True)

    bench.driver.pass_time(RETENTION_MS + LOOK_MS)

    counters = bench.driver.submit(prepared.counters(bench.dead)).answer
    assert counters == QueueCounters(0, 0, 0)
    assert queue_of(bench).quarantined.lost == 1
