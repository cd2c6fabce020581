"""The machine's clock as a shard sees it. How it slews needs clocks that a test can set: see the report on issue 2."""

from __future__ import annotations

from cluster.clock import SystemClock, SystemEntropy

YEAR_MS = 365 * 24 * 3_600_000


def test_time_begins_at_the_wall_clock() -> None:
    clock = SystemClock()

    assert abs(clock.now_ms() - clock.wall_s() * 1000) < 1_000


def test_time_goes_on_from_the_last_stamp_if_that_is_later() -> None:
    last_ms = SystemClock().now_ms() + YEAR_MS

    clock = SystemClock(last_stamp_ms=last_ms)

    assert last_ms <= clock.now_ms() < last_ms + 1_000


def test_an_old_stamp_does_not_hold_time_back() -> None:
    clock = SystemClock(last_stamp_ms=1)

    assert abs(clock.now_ms() - clock.wall_s() * 1000) < 1_000


def test_time_never_turns_back_even_when_the_wall_clock_is_a_year_behind() -> None:
    for clock in (SystemClock(), SystemClock(SystemClock().now_ms() + YEAR_MS)):
        seen = [clock.now_ms() for _ in range(20_000)]

        assert seen == sorted(seen)
        assert seen[-1] - seen[0] < 10_000


def test_ids_differ_and_secrets_have_their_size() -> None:
    entropy = SystemEntropy()

    drawn = {entropy.bits128() for _ in range(1_000)}

    assert len(drawn) == 1_000
    assert all(0 <= bits < 1 << 128 for bits in drawn)
    assert max(drawn) >> 120, "all bits are used"
    assert len(entropy.secret(32)) == 32
    assert entropy.secret(32) != entropy.secret(32)
