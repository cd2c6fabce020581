"""The tags and the attribute of the sender's clock: their form, and what contradicts them."""

from __future__ import annotations

import pytest

from visibility.content.content import contents_of
from visibility.contract.attributes import checked_tags
from visibility.contract.errors import InvalidParameterValue, QueueError
from visibility.contract.levelling_tags import keeps_whole
from visibility.contract.model import QueueDefinition
from visibility.contract.operations import (
    SendMessage,
    SendMessageBatch,
    SendMessageBatchRequestEntry,
)
from visibility.contract.sender_order_tags import check_delay, takes_late, window_ms
from visibility.tests import prepared

ORDER = {"holdfast:order": "sender-clock", "holdfast:order-window": "500"}
QUEUE = prepared.queue_named("q", 1, tags=ORDER)
PLAIN = prepared.queue_named("q", 1)


def refusal(operation: SendMessage, queue: QueueDefinition = QUEUE) -> str:
    with pytest.raises(InvalidParameterValue) as caught:
        contents_of(operation, queue, "AIDA", None)
    return caught.value.message.partition("Reason: ")[2]


# -- messages --------------------------------------------------------------------------------------


def test_a_delay_and_a_group_contradict_the_order_entry_by_entry() -> None:
    reason = "the queue has tag holdfast:order=sender-clock."
    assert refusal(SendMessage("q", "x", 5)) == reason
    assert refusal(SendMessage("q", "x", message_group_id="g")) == reason

    entries = [
        SendMessageBatchRequestEntry("0", "x", delay_seconds=0),
        SendMessageBatchRequestEntry("1", "x", delay_seconds=1),
        SendMessageBatchRequestEntry("2", "x", message_group_id="g"),
    ]
    contents = contents_of(SendMessageBatch("q", entries), QUEUE, "AIDA", None)

    assert [isinstance(each, QueueError) for each in contents] == [False, True, True]


# -- tags ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tags", "needed"),
    [
        ({"holdfast:order": "sender-clock"}, "holdfast:order-window"),
        ({"holdfast:order-window": "5"}, "holdfast:order"),
        ({"holdfast:late-queue": PLAIN.arn}, "holdfast:order"),
    ],
)
def test_the_tags_need_each_other(tags: dict[str, str], needed: str) -> None:
    with pytest.raises(InvalidParameterValue, match=f"needs tag {needed}"):
        checked_tags("q", {}, tags)


@pytest.mark.parametrize(
    "other",
    [
        {"holdfast:priority": "strict"},
        {"holdfast:deliver-at": "on"},
        {"holdfast:overflow": "drop-oldest"},
    ],
)
def test_another_order_is_refused_whichever_comes_last(other: dict[str, str]) -> None:
    for before, given in ((ORDER, other), (other, ORDER), ({}, ORDER | other)):
        with pytest.raises(InvalidParameterValue, match="is not valid with tag holdfast:order"):
            checked_tags("q", before, given)


def test_other_policies_go_together_with_the_order() -> None:
    others = {
        "holdfast:deliver-at": "off",
        "holdfast:overflow": "reject",
        "holdfast:delivery": "at-most-once",
        "holdfast:ttl": "5",
    }
    assert checked_tags("q", ORDER, others) == ORDER | others


def test_a_fifo_queue_has_an_order_of_its_own() -> None:
    with pytest.raises(InvalidParameterValue, match="not valid for a FIFO queue"):
        checked_tags("q.fifo", {}, ORDER)


@pytest.mark.parametrize("value", ["0", "900001", "1.5", ""])
def test_a_window_is_up_to_a_quarter_of_an_hour(value: str) -> None:
    with pytest.raises(InvalidParameterValue, match="whole numbers from 1 to 900000"):
        checked_tags("q", {}, ORDER | {"holdfast:order-window": value})


@pytest.mark.parametrize("value", ["late", PLAIN.arn + ".fifo", "arn:aws:sns:r:0:q"])
def test_a_late_queue_is_the_arn_of_a_standard_queue(value: str) -> None:
    with pytest.raises(InvalidParameterValue, match="the ARN of a standard queue"):
        checked_tags("q", ORDER, {"holdfast:late-queue": value})


def test_without_one_of_the_tags_the_order_has_no_effect() -> None:
    assert window_ms(ORDER) == 500
    assert window_ms({"holdfast:order": "sender-clock"}) == 0
    assert window_ms({"holdfast:order-window": "500"}) == 0


def test_such_a_queue_stays_whole_and_has_no_delay() -> None:
    assert keeps_whole(ORDER) == "tag holdfast:order needs one line"
    check_delay({"DelaySeconds": "0"}, ORDER)
    check_delay({"DelaySeconds": "5"}, {})
    with pytest.raises(InvalidParameterValue, match="DelaySeconds"):
        check_delay({"DelaySeconds": "5"}, ORDER)


def test_a_late_queue_is_another_one_in_the_order_of_arrival() -> None:
    late = prepared.queue_named("late", 2)

    assert takes_late(late, QUEUE)
    assert not takes_late(QUEUE, QUEUE)
    assert not takes_late(prepared.queue_named("late", 2, tags=ORDER), QUEUE)
    assert not takes_late(prepared.queue_named("late.fifo", 2), QUEUE)
