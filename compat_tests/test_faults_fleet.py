"""The changes of a fleet that go on beside its faults."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from compat_tests.faults.fault_history import History
from compat_tests.faults.fleet_faults import Emptying, Hosts, Resizing, Shown


class _Hosts(Hosts):
    """A queue, which a stopped host splits later than it was asked to."""

    def __init__(self, late: tuple[int, ...]) -> None:
        self.opened = 1
        self.late = late
        """The asks after which it has three parts again."""
        self.asked: list[tuple[str, int]] = []
        self.work: Resizing

    def parts_of(self, queue: str) -> list[Shown]:
        return [Shown(number, 0, is_open=True) for number in range(self.opened)]

    def ask(self, page: str, content: Any = None) -> tuple[int, Any]:
        change, parts = page.split("/")[-1], content["parts"]
        if (parts <= self.opened) is (change == "split"):
            return 409, {"error": "has as many"}
        self.asked.append((change, parts))
        self.opened = 3 if len(self.asked) in self.late else parts
        self.work.is_ending = len(self.asked) >= 6
        return 200, {"done": True}


@pytest.mark.parametrize(
    ("late", "asked"),
    [
        ((), [("split", 2), ("shrink", 1)] * 3),
        ((2,), [("split", 2), ("shrink", 1), ("split", 4), ("shrink", 1)]),
    ],
    ids=["none late", "one late"],
)
def test_a_change_is_made_from_the_parts_that_there_are(
    late: tuple[int, ...], asked: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that was stopped made a split again, of which another one had been asked."""
    monkeypatch.setattr("time.sleep", lambda _: None)
    hosts = _Hosts(late)
    hosts.work = Resizing(hosts, Random(0), "fifo", Emptying(hosts, History()), 4)
    hosts.work.run()

    assert not hosts.work.refused
    assert hosts.asked[: len(asked)] == asked
    assert hosts.work.changes == 6
    assert not hosts.work.wants_more
