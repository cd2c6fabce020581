"""A shard's time: it never turns back, slews towards the wall clock, and distrusts a leap for ten
minutes."""

from __future__ import annotations

import runpy
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cluster.clock
from cluster.clock import LEAP_S, TRUST_AFTER_S, SystemClock, SystemEntropy

START_S = 1_700_000_000.0
START_MS = 1_700_000_000_000
HOUR_S = 3_600.0
YEAR_S = 365 * 24 * HOUR_S


class Machine:
    """A machine whose two clocks are set by hand, and the shard's clock on it."""

    def __init__(self, wall_s: float = START_S, monotonic_s: float = 5_000.0) -> None:
        self.wall_s = wall_s
        self.monotonic_s = monotonic_s
        self.leaps: list[float] = []
        self.clock = self._clock()

    def _clock(self) -> SystemClock:
        return SystemClock(
            wall=lambda: self.wall_s, monotonic=lambda: self.monotonic_s, on_leap=self.leaps.append
        )

    def restart(self, last_stamp_ms: int, off_s: float = 0.0) -> None:
        """Restart the process; `off_s` passes on the wall clock, and the monotonic one begins
        again."""
        self.wall_s += off_s
        self.monotonic_s = 10.0
        self.clock = self._clock()
        self.clock.continue_from(last_stamp_ms)

    def passes(self, seconds: float, *, wall: float | None = None) -> int:
        """Real time passes; the wall clock may go otherwise. The shard's time then."""
        self.monotonic_s += seconds
        self.wall_s += seconds if wall is None else wall
        return self.clock.now_ms()

    def goes_on(self, seconds: float, step_s: float = 1.0) -> int:
        """Real time passes, and the shard asks every step."""
        for _ in range(round(seconds / step_s)):
            self.passes(step_s)
        return self.clock.now_ms()

    def retained_ms(self) -> int:
        """The instant from which retention counts, as `Stamp.retained_until_ms` has it."""
        now_ms = self.clock.now_ms()
        return self.clock.trusted_ms(now_ms) or now_ms


# -- never back, never a jump ----------------------------------------------------------------------


def test_time_begins_at_the_wall_clock_of_the_machine() -> None:
    clock = SystemClock()

    assert abs(clock.now_ms() - clock.wall_s() * 1000) < 1_000


def test_time_goes_on_as_the_clocks_do() -> None:
    machine = Machine()

    assert machine.clock.now_ms() == START_MS
    assert machine.passes(0) == START_MS
    assert machine.passes(1.5) == START_MS + 1_500
    assert machine.passes(HOUR_S) == START_MS + 1_500 + 3_600_000


@pytest.mark.parametrize("off_s", [-YEAR_S, -HOUR_S, -61.0, -30.0, 30.0, 61.0, HOUR_S, YEAR_S])
def test_time_slews_by_five_percent_however_far_the_wall_clock_is_away(off_s: float) -> None:
    machine = Machine()
    machine.clock.now_ms()

    before_ms = machine.passes(0, wall=off_s)
    after_ms = machine.passes(100)

    assert before_ms == START_MS, "no time passed"
    assert after_ms - before_ms == (105_000 if off_s > 0 else 95_000)


@pytest.mark.parametrize("off_s", [-30.0, 30.0])
def test_slewing_ends_where_the_wall_clock_is(off_s: float) -> None:
    machine = Machine()
    machine.passes(1, wall=1 + off_s)

    machine.goes_on(599 + 5)

    assert abs(machine.clock.now_ms() - machine.wall_s * 1000) <= 1
    caught_up = machine.clock.now_ms()
    assert abs(machine.goes_on(10) - caught_up - 10_000) <= 1


steps = st.lists(
    st.tuples(
        st.floats(0, 100_000),
        st.floats(-YEAR_S, YEAR_S) | st.floats(-200, 200) | st.just(0.0),
        st.booleans(),
    ),
    max_size=40,
)


@given(steps)
def test_time_never_turns_back_and_its_speed_stays_within_five_percent(
    steps: list[tuple[float, float, bool]],
) -> None:
    machine = Machine()
    now_ms, retained_ms = machine.clock.now_ms(), machine.retained_ms()

    for elapsed_s, leap_s, restarts in steps:
        if restarts:
            machine.restart(now_ms, off_s=max(0.0, leap_s))
            assert machine.clock.now_ms() >= now_ms
            now_ms = machine.clock.now_ms()
        later_ms = machine.passes(elapsed_s, wall=elapsed_s + leap_s)
        assert 950 * elapsed_s - 1 <= later_ms - now_ms <= 1_050 * elapsed_s + 1
        assert later_ms >= now_ms
        trusted_ms = machine.retained_ms()
        assert retained_ms <= trusted_ms <= later_ms, "what was believed stays believed"
        now_ms, retained_ms = later_ms, trusted_ms


# -- leaps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("leap_s", [-YEAR_S, -61.0, -LEAP_S - 0.1, LEAP_S + 0.1, 61.0, YEAR_S])
def test_a_leap_is_reported_once(leap_s: float) -> None:
    machine = Machine()
    machine.goes_on(10)

    machine.passes(1, wall=1 + leap_s)
    machine.goes_on(2 * TRUST_AFTER_S)

    assert machine.leaps == [pytest.approx(leap_s)]


@pytest.mark.parametrize("leap_s", [-HOUR_S, HOUR_S])
def test_catching_up_with_a_leap_while_idle_is_no_other_leap(leap_s: float) -> None:
    machine = Machine()
    machine.passes(0, wall=leap_s)
    before_ms = machine.clock.now_ms()

    after_ms = machine.passes(4 * HOUR_S)
    machine.passes(1)

    assert after_ms - before_ms == 4 * 3_600_000 * (1.05 if leap_s > 0 else 0.95)
    assert machine.leaps == [pytest.approx(leap_s)]


@pytest.mark.parametrize("step_s", [-59.0, -1.0, 0.0, 1.0, 59.0])
def test_less_than_a_minute_is_no_leap_and_is_believed(step_s: float) -> None:
    machine = Machine()
    machine.goes_on(10)

    now_ms = machine.passes(1, wall=1 + step_s)

    assert machine.leaps == []
    assert machine.clock.trusted_ms(now_ms) == 0


@pytest.mark.parametrize("leap_s", [-HOUR_S, HOUR_S])
def test_retention_believes_a_leap_after_ten_minutes(leap_s: float) -> None:
    machine = Machine()
    before_ms = machine.goes_on(10)

    machine.passes(1, wall=1 + leap_s)
    assert machine.retained_ms() == before_ms

    machine.goes_on(TRUST_AFTER_S - 1)
    assert machine.retained_ms() == before_ms, "time stands still for retention"

    now_ms = machine.goes_on(1)
    assert machine.retained_ms() == now_ms
    assert now_ms - before_ms == pytest.approx(
        (TRUST_AFTER_S + 1) * (1_050 if leap_s > 0 else 950), abs=60
    )


def test_the_ten_minutes_are_real_ones_and_not_those_of_the_wall_clock() -> None:
    machine = Machine()
    before_ms = machine.clock.now_ms()
    machine.passes(0, wall=2 * TRUST_AFTER_S)

    assert machine.retained_ms() == before_ms
    machine.passes(1, wall=30)
    assert machine.retained_ms() == before_ms


def test_a_second_leap_begins_the_ten_minutes_anew() -> None:
    machine = Machine()
    before_ms = machine.clock.now_ms()
    machine.passes(0, wall=HOUR_S)
    machine.goes_on(TRUST_AFTER_S - 1)

    machine.passes(1, wall=1 - HOUR_S)
    machine.goes_on(TRUST_AFTER_S - 1)
    assert machine.retained_ms() == before_ms
    assert machine.leaps == [pytest.approx(HOUR_S), pytest.approx(-HOUR_S)]

    now_ms = machine.goes_on(1)
    assert machine.retained_ms() == now_ms


@pytest.mark.parametrize("drift", [-0.04, -0.0005, 0.0005, 0.04])
def test_a_drift_is_never_a_leap_however_long_it_lasts(drift: float) -> None:
    machine = Machine()

    for _ in range(24 * 60):
        machine.passes(60, wall=60 * (1 + drift))

    assert machine.leaps == []
    assert abs(machine.clock.now_ms() - machine.wall_s * 1000) < 60_000 * abs(drift) + 1


@pytest.mark.parametrize("drift", [-0.0005, 0.0005])
def test_a_drift_that_an_idle_shard_did_not_see_for_a_month_is_no_leap(drift: float) -> None:
    machine = Machine()
    month_s = 30 * 24 * HOUR_S
    assert month_s * abs(drift) > LEAP_S

    now_ms = machine.passes(month_s, wall=month_s * (1 + drift))

    assert machine.leaps == []
    assert machine.clock.trusted_ms(now_ms) == 0


def test_a_machine_that_was_suspended_did_not_age_and_believes_it_later() -> None:
    """The monotonic clock stands still meanwhile: this cannot be distinguished from a leap."""
    machine = Machine()
    before_ms = machine.goes_on(10)

    assert machine.passes(0, wall=8 * HOUR_S) == before_ms, "timeouts go on where they were"
    assert machine.leaps == [pytest.approx(8 * HOUR_S)]
    assert machine.retained_ms() == before_ms

    machine.goes_on(TRUST_AFTER_S)
    assert machine.retained_ms() == machine.clock.now_ms()
    assert machine.leaps == [pytest.approx(8 * HOUR_S)]


# -- restarts --------------------------------------------------------------------------------------


def test_a_first_start_believes_its_clock() -> None:
    machine = Machine()
    machine.restart(last_stamp_ms=0)

    assert machine.clock.now_ms() == machine.retained_ms() == START_MS
    assert machine.leaps == []


def test_a_restart_at_once_goes_on_and_believes() -> None:
    machine = Machine()
    last_ms = machine.goes_on(10)
    machine.restart(last_ms, off_s=59)

    assert machine.clock.now_ms() == machine.retained_ms() == last_ms + 59_000
    assert machine.leaps == []


@pytest.mark.parametrize("last_ms", [START_MS + 1, START_MS + 12_345, START_MS + 59_999])
def test_a_restart_with_the_wall_clock_a_little_behind_goes_on_from_the_last_stamp(
    last_ms: int,
) -> None:
    machine = Machine()
    machine.restart(last_ms)

    assert machine.clock.now_ms() == machine.retained_ms() == last_ms
    assert machine.passes(100) == last_ms + max(95_000, 100_000 - (last_ms - START_MS))
    assert machine.leaps == []


def test_a_restart_after_a_leap_back_goes_on_from_the_last_stamp_and_reports_it_once() -> None:
    machine = Machine()
    last_ms = machine.goes_on(10)
    machine.wall_s -= YEAR_S

    machine.restart(last_ms)

    assert machine.clock.now_ms() == machine.retained_ms() == last_ms
    assert machine.goes_on(100) == last_ms + 95_000
    assert machine.retained_ms() == last_ms
    assert machine.leaps == [pytest.approx(-YEAR_S)]
    machine.goes_on(TRUST_AFTER_S - 100)
    assert machine.retained_ms() == machine.clock.now_ms()
    assert machine.leaps == [pytest.approx(-YEAR_S)]


def test_a_wall_clock_that_is_set_right_after_such_a_restart_is_reported_too() -> None:
    machine = Machine()
    last_ms = machine.goes_on(10)
    machine.wall_s -= YEAR_S
    machine.restart(last_ms)

    machine.passes(1, wall=1 + YEAR_S)

    assert machine.leaps == [pytest.approx(-YEAR_S), pytest.approx(YEAR_S)]


@pytest.mark.parametrize("off_s", [61.0, 8 * HOUR_S, YEAR_S])
def test_after_being_off_time_is_the_wall_clocks_and_retention_waits_ten_minutes(
    off_s: float,
) -> None:
    machine = Machine()
    last_ms = machine.goes_on(10)
    machine.restart(last_ms, off_s=off_s)

    assert machine.clock.now_ms() == last_ms + round(off_s * 1000)
    assert machine.retained_ms() == last_ms
    machine.goes_on(TRUST_AFTER_S - 1)
    assert machine.retained_ms() == last_ms
    machine.goes_on(1)

    assert machine.retained_ms() == machine.clock.now_ms()
    assert machine.leaps == [], "most often a machine was just off"


def test_a_shard_that_is_loaded_anew_in_a_running_process_takes_nothing_back() -> None:
    """Its last stamp is old when it was idle; the clock was there all the time."""
    machine = Machine()
    machine.restart(0)
    last_ms = machine.goes_on(10)
    now_ms = machine.passes(8 * HOUR_S)
    assert machine.retained_ms() == now_ms

    machine.clock.continue_from(last_ms)

    assert machine.clock.now_ms() == machine.retained_ms() == now_ms
    assert machine.leaps == []


def test_a_reload_while_a_leap_is_not_believed_does_not_believe_it() -> None:
    machine = Machine()
    machine.restart(0)
    before_ms = machine.goes_on(10)
    last_ms = machine.passes(1, wall=1 + HOUR_S)

    machine.clock.continue_from(last_ms)

    assert machine.retained_ms() == before_ms


# -- chance ----------------------------------------------------------------------------------------


# -- a new leader ----------------------------------------------------------------------------------


@pytest.mark.parametrize("unread_s", [1.0, 10 * HOUR_S])
def test_a_new_leader_takes_no_part_in_a_leap_forward(unread_s: float) -> None:
    """The wall clocks of all hosts leap, and the lead moves: leases last as long as they did."""
    machine = Machine()
    stamp_ms = int((machine.wall_s + unread_s) * 1000)
    machine.monotonic_s += unread_s
    machine.wall_s += unread_s + HOUR_S

    machine.clock.take_over(stamp_ms)

    assert abs(machine.clock.now_ms() - stamp_ms) <= 1
    assert machine.goes_on(10) - stamp_ms == pytest.approx(10_500, abs=2), "it catches up"
    assert machine.leaps == [pytest.approx(HOUR_S)]
    assert machine.retained_ms() <= stamp_ms


@pytest.mark.parametrize("ahead_s", [30.0, HOUR_S])
def test_a_new_leader_whose_clock_was_ahead_begins_at_the_one_that_was_set_right(
    ahead_s: float,
) -> None:
    machine = Machine(wall_s=START_S + ahead_s)
    machine.monotonic_s += 5
    machine.wall_s = START_S + 5

    machine.clock.take_over(START_MS)

    assert machine.clock.now_ms() == START_MS + 5_000


def test_ids_differ_and_secrets_have_their_size() -> None:
    entropy = SystemEntropy()

    drawn = {entropy.bits128() for _ in range(1_000)}

    assert len(drawn) == 1_000
    assert all(0 <= bits < 1 << 128 for bits in drawn)
    assert max(drawn) >> 120, "all bits are used"
    assert len(entropy.secret(32)) == 32
    assert entropy.secret(32) != entropy.secret(32)


def test_durations_go_on_while_the_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "CLOCK_BOOTTIME", 7, raising=False)
    monkeypatch.setattr(time, "clock_gettime", lambda which: 90.0 if which == 7 else 10.0)
    module = runpy.run_path(cluster.clock.__file__)

    assert module["SystemClock"]().monotonic_s() == 90.0
