"""Bugs about messages whose retention is over, which wait, or which are more than a limit, that the
simulator must find, planted into the production code for the time of a test."""

from __future__ import annotations

import pytest

from cluster.tests.simulation.planting import Plant
from visibility.contract.limits import IN_FLIGHT_MAX
from visibility.contract.model import Content
from visibility.contract.stored_message import Lease
from visibility.rules import levelling, receive
from visibility.rules.collected_sends import Sending
from visibility.rules.retention import TooOld
from visibility.state import window
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState


def leave_retention_to_pulses(patch: pytest.MonkeyPatch) -> None:
    """A receive takes what no pulse has removed."""
    patch.setattr(TooOld, "passes", lambda self, message: False)
    patch.setattr(window, "fill_fresh", _fill)


def _fill(
    shard: ShardState,
    queue: QueueState,
    messages: int,
    too_old_ms: int,
    now_ms: int,
    passed_max: int,
) -> bool:
    window.fill(shard, queue, messages)
    return True


def pass_by_the_window_only(patch: pytest.MonkeyPatch) -> None:
    """A message that was received before, or waits in a group, is never too old."""
    patch.setattr(TooOld, "passes", lambda self, message: False)


def forget_what_was_passed_by(patch: pytest.MonkeyPatch) -> None:
    """The place from which a start reads is behind messages that are still there."""
    fill_fresh = window.fill_fresh

    def fill(
        shard: ShardState,
        queue: QueueState,
        messages: int,
        too_old_ms: int,
        now_ms: int,
        passed_max: int,
    ) -> bool:
        is_done = fill_fresh(shard, queue, messages, too_old_ms, now_ms, passed_max)
        queue.waiting -= queue.passed
        queue.passed = 0
        return is_done

    patch.setattr(window, "fill_fresh", fill)


def do_not_wait(patch: pytest.MonkeyPatch) -> None:
    """A message is received again when its visibility timeout is over, whatever its tags say."""
    patch.setattr(Lease, "receivable_at_ms", property(lambda lease: lease.visible_at_ms))


def forget_who_has_a_message(patch: pytest.MonkeyPatch) -> None:
    """The limit of messages in flight does not know of those that are in flight already."""
    patch.setattr(levelling, "with_consumers", lambda queue: 0)


def forget_the_rate(patch: pytest.MonkeyPatch) -> None:
    """The queue's rate lets as many messages go as there are slots for."""
    patch.setattr(levelling, "rate_room", lambda *_: IN_FLIGHT_MAX)


def deliver_at_once(patch: pytest.MonkeyPatch) -> None:
    """A scheduled message is received as soon as it is sent."""
    due_ms = Sending._due_ms

    def none(
        sending: Sending, content: Content, delay_s: int | None, *, is_accepted: bool = False
    ) -> tuple[int | None, int]:
        if content.deliver_at_ms:
            return None, 0
        return due_ms(sending, content, delay_s, is_accepted=is_accepted)

    patch.setattr(Sending, "_due_ms", none)


def forget_schedules_at_a_start(patch: pytest.MonkeyPatch) -> None:
    """A new leader plans no pulse for the delayed messages that it finds."""
    plan_pulse = ShardState.plan_pulse

    def plan(shard: ShardState, queue: QueueState, at_ms: int) -> None:
        if not queue.delayed or queue.counts.sent:
            plan_pulse(shard, queue, at_ms)

    patch.setattr(ShardState, "plan_pulse", plan)


def forget_the_next_end(patch: pytest.MonkeyPatch) -> None:
    """Nothing looks at a queue when a time to live ends."""
    patch.setattr(ShardState, "plan_expiry", lambda shard, queue, expires_ms: None)


def take_for_a_while(patch: pytest.MonkeyPatch) -> None:
    """A message of a queue that delivers at most once comes again after its visibility timeout."""
    patch.setattr(receive, "hidden_until_ms", lambda settings, operation, until_ms: until_ms)


ONCE_PLANTS: tuple[Plant, ...] = (take_for_a_while,)
BRIEF_PLANTS: tuple[Plant, ...] = (forget_the_next_end,)
SCHEDULE_PLANTS: tuple[Plant, ...] = (deliver_at_once, forget_schedules_at_a_start)
PLANTS: tuple[Plant, ...] = (
    leave_retention_to_pulses,
    pass_by_the_window_only,
    forget_what_was_passed_by,
    do_not_wait,
    forget_who_has_a_message,
    forget_the_rate,
)
