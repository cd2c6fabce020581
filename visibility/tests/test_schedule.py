"""The attribute that schedules a message: its form, its tag, and a year at most."""

from __future__ import annotations

import pytest

from visibility.content.content import contents_of
from visibility.contract.errors import InvalidParameterValue, QueueError
from visibility.contract.model import Content
from visibility.contract.operations import (
    MessageAttributeValue,
    SendMessage,
    SendMessageBatch,
    SendMessageBatchRequestEntry,
)
from visibility.contract.schedule import AHEAD_MAX_MS, soon_enough
from visibility.tests import prepared

NOW_MS = 1_790_000_000_000
QUEUE = prepared.queue_named("q", 1, tags={"holdfast:deliver-at": "on"})


def attribute(value: str, kind: str = "Number") -> dict[str, MessageAttributeValue]:
    return {"holdfast.deliver-at": MessageAttributeValue(kind, value)}


def reason(value: str, kind: str = "Number", delay_s: int | None = None, off: bool = False) -> str:
    queue = prepared.queue_named("q", 1, tags={"holdfast:deliver-at": "off"}) if off else QUEUE
    operation = SendMessage("q", "x", delay_s, attribute(value, kind))
    with pytest.raises(InvalidParameterValue) as caught:
        contents_of(operation, queue, "AIDA", None)
    return caught.value.message.partition("Reason: ")[2]


@pytest.mark.parametrize("kind", ["Number", "Number.ms"])
def test_the_attribute_is_the_time_of_delivery(kind: str) -> None:
    operation = SendMessage("q", "x", 0, attribute(str(NOW_MS), kind))

    (content,) = contents_of(operation, QUEUE, "AIDA", None)

    assert isinstance(content, Content)
    assert content.deliver_at_ms == NOW_MS


def test_what_is_no_instant_is_refused() -> None:
    no_instant = "its value must be an instant in milliseconds since 1970."

    assert reason("1790000000") == no_instant  # seconds
    assert reason("1790000000000.5") == no_instant
    assert reason("-1790000000000") == no_instant
    assert reason("1" * 17) == no_instant
    assert reason(str(NOW_MS), "String") == "its type must be Number, not String."


def test_a_queue_without_the_tag_refuses_it_and_so_does_a_delay() -> None:
    assert reason(str(NOW_MS), off=True) == "it needs a queue with tag holdfast:deliver-at=on."
    assert reason(str(NOW_MS), delay_s=5) == "DelaySeconds contradicts it."


def test_more_than_a_year_ahead_is_refused_entry_by_entry() -> None:
    last_ms = NOW_MS + AHEAD_MAX_MS
    entries = [
        SendMessageBatchRequestEntry(str(at_ms), "x", message_attributes=attribute(str(at_ms)))
        for at_ms in (last_ms, last_ms + 1)
    ]
    contents = contents_of(SendMessageBatch("q", entries), QUEUE, "AIDA", None)

    near, far = soon_enough(contents, NOW_MS, is_batch=True)

    assert isinstance(near, Content)
    assert isinstance(far, QueueError)
    with pytest.raises(InvalidParameterValue, match="more than a year ahead"):
        soon_enough(contents[1:], NOW_MS, is_batch=False)
