"""Holds on a log: for how long, and up to which size."""

from __future__ import annotations

from cluster.peers.log_retention import LogRetention, RetentionLimits

LIMITS = RetentionLimits(silence_s=10, life_s=100, bytes_max=1000)


class Stage:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.has_much_space = True
        self.holds = LogRetention(lambda: self.now_s, lambda: self.has_much_space, LIMITS)

    def limit(self, index: int, entry_bytes: int = 1) -> int:
        return self.holds.limit(index, lambda held: (index - held) * entry_bytes)


def test_the_lowest_hold_counts_and_none_adds_to_what_is_released() -> None:
    stage = Stage()
    stage.holds.hold("a", 7)
    stage.holds.hold("b", 5)

    assert stage.limit(20) == 5
    assert stage.limit(3) == 3
    stage.holds.end("b")
    assert stage.limit(20) == 7
    stage.holds.end("a")
    assert stage.limit(20) == 20


def test_a_hold_ends_when_its_host_is_silent() -> None:
    stage = Stage()
    stage.holds.hold("a", 7)
    stage.now_s = 9
    stage.holds.hold("a", 7)
    stage.now_s = 18
    assert stage.limit(20) == 7

    stage.now_s = 20

    assert stage.limit(20) == 20


def test_a_hold_ends_after_its_life_whatever_is_said() -> None:
    stage = Stage()
    for now_s in range(0, 101, 5):
        stage.now_s = now_s
        stage.holds.hold("a", 7)
        assert stage.limit(20) == 7

    for now_s in range(105, 200, 5):
        stage.now_s = now_s
        stage.holds.hold("a", 7)
        assert stage.limit(20) == 20

    stage.holds.hold("a", 15)
    assert stage.limit(20) == 15, "another checkpoint is another hold"


def test_a_hold_ends_when_the_log_gets_too_long_for_it() -> None:
    stage = Stage()
    stage.holds.hold("a", 7)
    assert stage.limit(17, entry_bytes=100) == 7
    assert stage.limit(18, entry_bytes=100) == 18

    stage.holds.hold("a", 7)
    assert stage.limit(19, entry_bytes=1) == 19, "the log is gone"


def test_the_next_hold_is_larger_while_there_is_space() -> None:
    stage = Stage()
    stage.holds.hold("a", 7)
    assert stage.limit(18, entry_bytes=100) == 18, "it ended too soon"

    stage.holds.hold("a", 18)

    assert stage.limit(38, entry_bytes=100) == 18
    stage.now_s = 20
    assert stage.limit(38, entry_bytes=100) == 18, "it also lasts longer"
    stage.has_much_space = False
    assert stage.limit(38, entry_bytes=100) == 38
    stage.holds.hold("a", 38)
    assert stage.limit(59, entry_bytes=100) == 59
    stage.has_much_space = True
    stage.holds.hold("a", 60)
    assert stage.limit(100, entry_bytes=100) == 60
    assert stage.limit(101, entry_bytes=100) == 101, "it was not doubled without space"


def test_a_hold_that_did_not_end_too_soon_is_followed_by_one_like_it() -> None:
    stage = Stage()
    stage.holds.hold("a", 7)
    stage.holds.hold("a", 8)

    assert stage.limit(18, entry_bytes=100) == 8
    assert stage.limit(19, entry_bytes=100) == 19


def test_a_hold_of_long_ago_is_forgotten() -> None:
    stage = Stage()
    stage.holds.hold("a", 7)
    assert stage.limit(18, entry_bytes=100) == 18
    stage.now_s = 101
    assert stage.limit(18, entry_bytes=100) == 18

    stage.holds.hold("a", 18)

    assert stage.limit(28, entry_bytes=100) == 18
    assert stage.limit(29, entry_bytes=100) == 29
