"""The tag of a priority, and the levels that follow from the attribute."""

from __future__ import annotations

import pytest

from visibility.contract.attributes import checked_tags
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.priority import joining_level, level_at_the_back, priority_of

WEIGHTED, STRICT = {"holdfast:priority": "weighted"}, {"holdfast:priority": "strict"}


def test_a_fifo_queue_refuses_the_tag() -> None:
    with pytest.raises(InvalidParameterValue, match="not valid for a FIFO queue"):
        checked_tags("q.fifo", {}, WEIGHTED)


def test_a_message_without_a_priority_has_that_of_the_middle() -> None:
    assert priority_of(joining_level(WEIGHTED, 0)) == 4
    assert joining_level({}, 0) == 0


def test_a_priority_stays_with_its_message() -> None:
    behind = level_at_the_back(STRICT, 10)

    assert behind > 10
    assert {priority_of(level) for level in (behind, joining_level({}, behind))} == {9}
    assert joining_level(STRICT, behind) == level_at_the_back(WEIGHTED, behind) == 10
