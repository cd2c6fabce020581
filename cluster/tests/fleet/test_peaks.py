"""The peaks of queues: what a planner writes down for the next one, and for how long it counts."""

from __future__ import annotations

import msgspec
import pytest

from cluster.fleet import peaks
from cluster.fleet.peaks import GAP_MS, KnownPeaks, Peaks
from cluster.fleet.thresholds import KEPT_MS
from cluster.tests.fleet.fleets import START_MS, SmallFleet

DAY_MS = 86_400_000


def passed_on(before: Peaks, queues: list[str], now_ms: int) -> Peaks:
    """The peaks of the next planner."""
    record = msgspec.json.encode(before.known(queues, now_ms))
    after = Peaks()
    after.learn(msgspec.json.decode(record, type=KnownPeaks))
    return after


def test_the_greatest_of_a_week_counts_and_goes_after_it() -> None:
    known = Peaks()
    for day, asked in enumerate((0.9, 2.0, 0.7)):
        known.observe({"q": asked}, START_MS + day * DAY_MS)
    last_ms = START_MS + 2 * DAY_MS
    assert known.of("q", last_ms) == 2.0
    assert known.of("other", last_ms) == 0.0
    assert known.of("q", START_MS + 9 * DAY_MS) == 0.7
    known.forget(START_MS + 20 * DAY_MS)
    assert known.known(["q"], START_MS + 20 * DAY_MS).by_queue == {}


def test_a_record_has_what_no_later_day_exceeds() -> None:
    known = Peaks()
    for day, asked in enumerate((3.0, 1.0, 2.0, 0.6)):
        known.observe({"q": asked, "whole": 1.0}, START_MS + day * DAY_MS)
    first, last_ms = START_MS // DAY_MS, START_MS + 3 * DAY_MS
    record = known.known(["q", "unknown"], last_ms)
    assert record.by_queue == {"q": {first: 3.0, first + 2: 2.0, first + 3: 0.6}}
    after = passed_on(known, ["q"], last_ms)
    for later in range(12):
        now_ms = last_ms + later * DAY_MS
        assert after.of("q", now_ms) == known.of("q", now_ms)


def test_the_queues_that_a_record_has_no_room_for_have_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They keep more parts than they need, rather than fewer."""
    monkeypatch.setattr(peaks, "RECORDED_MAX", 2)
    known = Peaks()
    known.observe({"a": 4.0, "b": 3.0, "c": 0.7, "d": 0.6}, START_MS)
    after = passed_on(known, ["a", "b", "c", "d"], START_MS)
    assert [after.of(each, START_MS) for each in "abcde"] == [4.0, 3.0, 0.7, 0.7, 0.7]
    again = passed_on(after, ["a", "b", "c", "d"], START_MS)
    assert [again.of(each, START_MS) for each in "abcde"] == [4.0, 3.0, 0.7, 0.7, 0.7]
    assert again.of("e", START_MS + 9 * DAY_MS) == 0.0


def test_a_record_of_as_many_queues_as_it_may_have_is_bounded() -> None:
    known = Peaks()
    names = [f"arn:aws:sqs:eu-central-1:123456789012:{number:080}" for number in range(2000)]
    for day in range(9):
        known.observe(dict.fromkeys(names, 15.0 - day), START_MS + day * DAY_MS)
    record = msgspec.json.encode(known.known(names, START_MS + 8 * DAY_MS))
    assert len(record) < 300_000


def test_peaks_are_known_since_the_last_gap_of_an_hour() -> None:
    known = Peaks()
    known.observe({}, START_MS)
    assert known.unknown_ms(START_MS) == KEPT_MS
    known.observe({}, START_MS + GAP_MS)
    assert known.unknown_ms(START_MS + GAP_MS) == KEPT_MS - GAP_MS
    late = passed_on(known, [], START_MS + GAP_MS)
    in_time = passed_on(known, [], START_MS + GAP_MS)
    in_time.observe({}, START_MS + 2 * GAP_MS)
    late.observe({}, START_MS + 2 * GAP_MS + 1)
    assert in_time.unknown_ms(START_MS + 2 * GAP_MS) == KEPT_MS - 2 * GAP_MS
    assert late.unknown_ms(START_MS + 2 * GAP_MS + 1) == KEPT_MS


def ahead() -> Peaks:
    """Peaks of a planner whose clock is a year ahead."""
    known = Peaks()
    known.observe({"q": 2.0}, START_MS + 365 * DAY_MS)
    return known


@pytest.mark.parametrize("is_inherited", [False, True])
def test_a_clock_that_was_ahead_is_forgotten(*, is_inherited: bool) -> None:
    """Its peaks were seen, at the latest, as the clock was set right."""
    known = ahead()
    if is_inherited:
        known = passed_on(known, ["q"], START_MS + 365 * DAY_MS)
    known.observe({}, START_MS)
    known.forget(START_MS)
    assert known.unknown_ms(START_MS) == KEPT_MS
    assert known.of("q", START_MS + 7 * DAY_MS) == 2.0
    assert known.of("q", START_MS + 8 * DAY_MS) == 0.0


def test_days_ahead_hide_nothing_of_today() -> None:
    """A record has only days that no later one exceeds."""
    known = ahead()
    known.observe({"q": 3.0, "other": 1.0}, START_MS)
    today = START_MS // DAY_MS
    record = known.known(["q", "other"], START_MS)
    assert record.by_queue == {"q": {today: 3.0}, "other": {today: 1.0}}


def test_a_planner_that_is_a_second_behind_at_midnight_keeps_the_peaks() -> None:
    known = Peaks()
    midnight_ms = (START_MS // DAY_MS + 1) * DAY_MS
    known.observe({"q": 2.0}, midnight_ms)
    after = passed_on(known, ["q"], midnight_ms)
    after.observe({}, midnight_ms - 1000)
    after.forget(midnight_ms - 1000)
    assert after.of("q", midnight_ms) == 2.0


def test_a_planner_that_takes_the_key_again_trusts_the_newer_of_two_records() -> None:
    """Its own memory has nothing of the time in which another one planned."""
    first, other = Peaks(), Peaks()
    first.observe({"q": 1.0}, START_MS)
    other.observe({"q": 2.0}, START_MS + 5 * DAY_MS)
    record = other.known(["q"], START_MS + 5 * DAY_MS)
    first.learn(record)
    first.observe({}, START_MS + 5 * DAY_MS + 10_000)
    assert first.of("q", START_MS + 5 * DAY_MS) == 2.0
    assert first.unknown_ms(START_MS + 5 * DAY_MS) == KEPT_MS
    first.learn(KnownPeaks(0, 1))
    assert first.unknown_ms(START_MS + 5 * DAY_MS) == KEPT_MS


def test_only_news_is_written() -> None:
    before = KnownPeaks(0, 0, {"q": {1: 1.0}})
    assert before.is_news(None)
    assert not KnownPeaks(0, 590_000, {"q": {1: 1.0}}).is_news(before)
    assert KnownPeaks(0, 600_000, {"q": {1: 1.0}}).is_news(before)
    assert KnownPeaks(0, 10_000, {"q": {1: 1.1}}).is_news(before)
    assert KnownPeaks(5, 10_000, {"q": {1: 1.0}}).is_news(before)


def test_a_history_whose_clock_was_ahead_forgets_each_minute() -> None:
    fleet = SmallFleet()
    fleet.now_ms += 365 * DAY_MS
    fleet.report()
    fleet.now_ms -= 365 * DAY_MS
    gone = fleet.records.clusters.pop("d").name
    fleet.report()
    assert gone not in fleet.history.utilisation
