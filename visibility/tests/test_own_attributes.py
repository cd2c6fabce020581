"""The message attributes of policies: each has a form, and needs a queue with its tag."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from visibility.content.content import contents_of
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.model import Content
from visibility.contract.operations import MessageAttributeValue, SendMessage
from visibility.contract.priority import priority_of
from visibility.contract.time_to_live_tags import expiry
from visibility.tests import prepared

NOW_MS = 1_790_000_000_000
NO_INSTANTS = ("1790000000", "1790000000000.5", "-1790000000000", "1" * 17)
INSTANT = "its value must be an instant in milliseconds since 1970."


class Own(NamedTuple):
    """An attribute of ours."""

    tags: tuple[dict[str, str], ...]
    """Of queues that take it."""
    taken: dict[str, int]
    """Values, and the number that a message has by each."""
    of: Callable[[Content], int]
    refused: tuple[str, ...]
    reason: str
    need: str
    """The reason that a queue without the tag gives."""


OWN = {
    "ttl": Own(
        ({"holdfast:expired": "discard"}, {"holdfast:ttl": "5"}),
        {"30": 30_000, "1209600": 1_209_600_000},
        lambda content: content.ttl_ms,
        ("0", "1209601", "1.5", "-1"),
        "its value must be whole seconds from 1 to 1209600.",
        "needs a queue with tag holdfast:ttl or",
    ),
    "priority": Own(
        ({"holdfast:priority": "weighted"},),
        {str(digit): digit for digit in range(10)},
        lambda content: priority_of(content.level),
        ("10", "-1", "1.5"),
        "its value must be a whole number from 0 to 9.",
        "needs a queue with tag holdfast:priority",
    ),
    "deliver-at": Own(
        ({"holdfast:deliver-at": "on"},),
        {str(NOW_MS): NOW_MS},
        lambda content: content.deliver_at_ms,
        NO_INSTANTS,
        INSTANT,
        "it needs a queue with tag holdfast:deliver-at=on.",
    ),
    "sent-at": Own(
        ({"holdfast:order": "sender-clock", "holdfast:order-window": "500"},),
        {str(NOW_MS): NOW_MS},
        lambda content: content.sent_at_ms,
        NO_INSTANTS,
        INSTANT,
        "it needs a queue with tag holdfast:order=sender-clock.",
    ),
}


def sent(name: str, tags: dict[str, str], value: str, kind: str = "Number") -> Content:
    attributes = {f"holdfast.{name}": MessageAttributeValue(kind, value)}
    queue = prepared.queue_named("q", 1, tags=tags)
    (content,) = contents_of(SendMessage("q", "x", None, attributes), queue, "AIDA", None)
    assert isinstance(content, Content)
    return content


@pytest.mark.parametrize("name", OWN)
def test_an_attribute_is_read_where_its_tag_is(name: str) -> None:
    own = OWN[name]
    for tags in own.tags:
        for value, expected in own.taken.items():
            for kind in ("Number", "Number.ms"):
                assert own.of(sent(name, tags, value, kind)) == expected


@pytest.mark.parametrize("name", OWN)
def test_other_values_and_types_are_refused(name: str) -> None:
    own = OWN[name]
    of_type = (next(iter(own.taken)), "String", "its type must be Number, not String.")
    for value, kind, reason in (*((each, "Number", own.reason) for each in own.refused), of_type):
        with pytest.raises(InvalidParameterValue) as caught:
            sent(name, own.tags[0], value, kind)
        assert caught.value.message == (
            f"Message attribute 'holdfast.{name}' is invalid. Reason: {reason}"
        )


@pytest.mark.parametrize(
    ("name", "tags"),
    [*((name, {}) for name in OWN), ("deliver-at", {"holdfast:deliver-at": "off"})],
)
def test_a_queue_without_the_tag_refuses_it(name: str, tags: dict[str, str]) -> None:
    with pytest.raises(InvalidParameterValue, match=OWN[name].need):
        sent(name, tags, next(iter(OWN[name].taken)))


def test_the_shorter_time_to_live_counts() -> None:
    assert expiry({}, 1_000) == 0
    assert expiry({}, 1_000, 500) == 1_500
    assert expiry({"holdfast:ttl": "2"}, 1_000) == 3_000
    assert expiry({"holdfast:ttl": "2"}, 1_000, 500) == 1_500
    assert expiry({"holdfast:ttl": "2"}, 1_000, 5_000) == 3_000
