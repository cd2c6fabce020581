"""The attribute and the tag of a time to live: their form, and the shorter of both."""

from __future__ import annotations

import pytest

from visibility.content.content import contents_of
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.model import Content, QueueDefinition
from visibility.contract.operations import MessageAttributeValue, SendMessage
from visibility.contract.time_to_live_tags import expiry
from visibility.tests import prepared

TAGGED = prepared.queue_named("q", 1, tags={"holdfast:expired": "discard"})
OUT_OF_RANGE = "its value must be whole seconds from 1 to 1209600."


def sent(queue: QueueDefinition, value: str, kind: str = "Number") -> Content:
    attributes = {"holdfast.ttl": MessageAttributeValue(kind, value)}
    (content,) = contents_of(SendMessage("q", "x", None, attributes), queue, "AIDA", None)
    assert isinstance(content, Content)
    return content


def test_the_attribute_is_seconds() -> None:
    assert sent(TAGGED, "30").ttl_ms == 30_000
    assert sent(prepared.queue_named("q", 1, tags={"holdfast:ttl": "5"}), "1209600").ttl_ms


@pytest.mark.parametrize(
    ("value", "kind", "reason"),
    [
        ("0", "Number", OUT_OF_RANGE),
        ("1209601", "Number", OUT_OF_RANGE),
        ("1.5", "Number", OUT_OF_RANGE),
        ("-1", "Number", OUT_OF_RANGE),
        ("30", "String", "its type must be Number, not String."),
    ],
)
def test_other_values_are_refused(value: str, kind: str, reason: str) -> None:
    with pytest.raises(InvalidParameterValue) as caught:
        sent(TAGGED, value, kind)
    assert caught.value.message == f"Message attribute 'holdfast.ttl' is invalid. Reason: {reason}"


def test_a_queue_without_a_tag_refuses_it() -> None:
    with pytest.raises(InvalidParameterValue, match="needs a queue with tag holdfast:ttl or"):
        sent(prepared.queue_named("q", 1), "30")


def test_the_shorter_time_counts() -> None:
    assert expiry({}, 1_000) == 0
    assert expiry({}, 1_000, 500) == 1_500
    assert expiry({"holdfast:ttl": "2"}, 1_000) == 3_000
    assert expiry({"holdfast:ttl": "2"}, 1_000, 500) == 1_500
    assert expiry({"holdfast:ttl": "2"}, 1_000, 5_000) == 3_000
