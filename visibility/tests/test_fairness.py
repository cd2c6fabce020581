"""Noisy groups, by share of messages in flight and by processing time."""

from __future__ import annotations

import pytest

from visibility.content.id_digests import UNGROUPED
from visibility.state.fairness import (
    FINISHED_MIN,
    IN_FLIGHT_MIN,
    QUIET_AFTER_MS,
    TENANTS_MAX,
    Fairness,
)

A, B = b"a" * 16, b"b" * 16


def test_group_with_few_messages_in_flight_is_not_noisy() -> None:
    fair = Fairness()

    fair.received(A, held=IN_FLIGHT_MIN - 1, in_flight=IN_FLIGHT_MIN - 1, now_ms=0)

    assert fair.noisy_now(0) == {}


def test_group_with_more_than_a_tenth_in_flight_is_noisy() -> None:
    fair = Fairness()

    fair.received(A, held=31, in_flight=310, now_ms=5)
    assert fair.noisy_now(5) == {}
    fair.received(A, held=31, in_flight=309, now_ms=5)

    assert fair.noisy_now(5) == {A: 5}


def test_messages_without_a_group_are_never_noisy() -> None:
    fair = Fairness()

    fair.received(UNGROUPED, held=1000, in_flight=1000, now_ms=0)
    for _ in range(100):
        fair.finished(UNGROUPED, busy_ms=60_000, now_ms=0)

    assert fair.noisy_now(0) == {}


def test_noisy_group_is_quiet_again_when_its_backlog_is_gone() -> None:
    fair = Fairness()
    fair.received(A, held=100, in_flight=100, now_ms=0)

    fair.drained(A)

    assert fair.noisy_now(0) == {}


def test_noisy_group_is_quiet_again_five_minutes_after_the_latest_send() -> None:
    fair = Fairness()
    fair.received(A, held=100, in_flight=100, now_ms=0)
    fair.sent(A, 1000)
    fair.sent(B, 1000)

    assert fair.noisy_now(1000 + QUIET_AFTER_MS - 1) == {A: 1000}
    assert fair.noisy_now(1000 + QUIET_AFTER_MS) == {}


def test_being_received_again_does_not_prolong_the_noise() -> None:
    fair = Fairness()
    fair.received(A, held=100, in_flight=100, now_ms=0)

    fair.received(A, held=100, in_flight=100, now_ms=QUIET_AFTER_MS - 1)

    assert fair.noisy_now(QUIET_AFTER_MS) == {}


def test_group_that_takes_more_than_a_tenth_of_the_time_is_noisy() -> None:
    fair = Fairness()
    for _ in range(300):
        fair.finished(B, busy_ms=100, now_ms=0)
    fair.noisy.clear()

    for _ in range(int(FINISHED_MIN)):
        fair.finished(A, busy_ms=200, now_ms=0)

    assert A in fair.noisy_now(0)


def test_group_that_takes_little_time_is_quiet() -> None:
    fair = Fairness()
    for _ in range(1000):
        fair.finished(B, busy_ms=1000, now_ms=0)

    for _ in range(100):
        fair.finished(A, busy_ms=100, now_ms=0)

    assert A not in fair.noisy_now(0)


def test_processing_time_fades_by_half_a_minute() -> None:
    fair = Fairness()
    for _ in range(int(FINISHED_MIN)):
        fair.finished(A, busy_ms=1000, now_ms=0)
    fair.noisy.clear()

    fair.finished(A, busy_ms=1000, now_ms=60_000)  # 30 / 2 + 1 are not enough

    assert fair.noisy_now(60_000) == {}


@pytest.mark.parametrize(("others", "known"), [(TENANTS_MAX - 1, True), (TENANTS_MAX, False)])
def test_what_is_known_of_groups_is_bounded(others: int, known: bool) -> None:
    fair = Fairness()
    for _ in range(int(FINISHED_MIN) - 1):
        fair.finished(A, busy_ms=1_000_000, now_ms=0)

    for number in range(others):
        fair.finished(b"%016d" % number, busy_ms=1, now_ms=0)
    fair.finished(A, busy_ms=1_000_000, now_ms=0)

    assert (A in fair.noisy_now(0)) == known
