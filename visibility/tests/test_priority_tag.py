"""The attribute and the tag of a priority: their form, and the levels that follow."""

from __future__ import annotations

import pytest

from visibility.content.content import contents_of
from visibility.contract.attributes import checked_tags
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.model import Content, QueueDefinition
from visibility.contract.operations import MessageAttributeValue, SendMessage
from visibility.contract.priority import joining_level, level_at_the_back, priority_of
from visibility.tests import prepared

WEIGHTED, STRICT = {"holdfast:priority": "weighted"}, {"holdfast:priority": "strict"}
TAGGED = prepared.queue_named("q", 1, tags=WEIGHTED)
OUT_OF_RANGE = "its value must be a whole number from 0 to 9."


def sent(queue: QueueDefinition, value: str, kind: str = "Number") -> Content:
    attributes = {"holdfast.priority": MessageAttributeValue(kind, value)}
    (content,) = contents_of(SendMessage("q", "x", None, attributes), queue, "AIDA", None)
    assert isinstance(content, Content)
    return content


def test_the_attribute_is_a_digit() -> None:
    assert [priority_of(sent(TAGGED, str(digit)).level) for digit in range(10)] == [*range(10)]


@pytest.mark.parametrize(
    ("value", "kind", "reason"),
    [
        ("10", "Number", OUT_OF_RANGE),
        ("-1", "Number", OUT_OF_RANGE),
        ("1.5", "Number", OUT_OF_RANGE),
        ("3", "String", "its type must be Number, not String."),
    ],
)
def test_other_values_are_refused(value: str, kind: str, reason: str) -> None:
    with pytest.raises(InvalidParameterValue) as caught:
        sent(TAGGED, value, kind)
    assert caught.value.message == (
        f"Message attribute 'holdfast.priority' is invalid. Reason: {reason}"
    )


def test_a_queue_without_the_tag_refuses_it() -> None:
    with pytest.raises(InvalidParameterValue, match="needs a queue with tag holdfast:priority"):
        sent(prepared.queue_named("q", 1), "5")


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
