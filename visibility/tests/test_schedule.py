"""The attribute that schedules a message: a year at most, and no delay beside it."""

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


def attribute(value: str) -> dict[str, MessageAttributeValue]:
    return {"holdfast.deliver-at": MessageAttributeValue("Number", value)}


def test_a_delay_contradicts_it() -> None:
    operation = SendMessage("q", "x", 5, attribute(str(NOW_MS)))
    with pytest.raises(InvalidParameterValue, match="Reason: DelaySeconds contradicts it"):
        contents_of(operation, QUEUE, "AIDA", None)


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
