"""Order by the sender's clock: three tags of a standard queue and an attribute of a message. Pure.

A message waits until its sender's time is as long ago as the queue's window, so that those sent
before it can still come. One that comes too late for its place goes to the late queue. A sender's
clock that is ahead counts as the time of the arrival.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from visibility.contract.errors import InvalidParameterValue
from visibility.contract.length_tags import DROP_OLDEST, OVERFLOW_TAG
from visibility.contract.limits import DELAY_SECONDS, Range
from visibility.contract.model import QueueDefinition
from visibility.contract.own_tag import INSTANT_FORM, INSTANTS, OwnAttribute, OwnTag
from visibility.contract.priority import PRIORITY_TAG
from visibility.contract.schedule import DELIVER_AT_TAG

ORDER_TAG = "holdfast:order"
WINDOW_TAG = "holdfast:order-window"
LATE_QUEUE_TAG = "holdfast:late-queue"
SENDER_CLOCK = "sender-clock"
SENT_AT_ATTRIBUTE = "holdfast.sent-at"
_ARN = re.compile(r"arn:aws[a-z-]*:sqs:[a-z0-9-]+:[0-9]+:[A-Za-z0-9_-]+")
_WINDOWS = Range(1, DELAY_SECONDS.high * 1000)
_NEEDED_TAGS = {ORDER_TAG: WINDOW_TAG, WINDOW_TAG: ORDER_TAG, LATE_QUEUE_TAG: ORDER_TAG}
_CONTRADICTED_TAGS = {PRIORITY_TAG: None, DELIVER_AT_TAG: "on", OVERFLOW_TAG: DROP_OLDEST}
"""Tags, with the value that contradicts; None for all values."""


def _check(tags: Mapping[str, str]) -> None:
    for key, needed in _NEEDED_TAGS.items():
        if key in tags and needed not in tags:
            raise InvalidParameterValue(f"Tag {key} needs tag {needed}.")


def check_order(tags: Mapping[str, str]) -> None:
    """Refuse tags that give messages another order. Raises InvalidParameterValue."""
    if ORDER_TAG not in tags:
        return
    for key, value in _CONTRADICTED_TAGS.items():
        if key in tags and value in (None, tags[key]):
            raise InvalidParameterValue(
                f"Tag {key}={tags[key]} is not valid with tag {ORDER_TAG}={SENDER_CLOCK}."
            )


ORDER_TAGS = (
    OwnTag(
        ORDER_TAG,
        f"Messages are received in the order of their senders' clocks ({SENT_AT_ATTRIBUTE}).",
        (SENDER_CLOCK,),
        check=_check,
        is_for_standard=True,
        needs=(WINDOW_TAG,),
    ),
    OwnTag(
        WINDOW_TAG,
        "Milliseconds for which each message waits, counted from its sender's time, for others "
        "that were sent before it.",
        bounds=_WINDOWS,
        check=_check,
        is_for_standard=True,
        needs=(ORDER_TAG,),
    ),
    OwnTag(
        LATE_QUEUE_TAG,
        "Queue for messages that come too late for their place in the order.",
        form=("the ARN of a standard queue", _ARN),
        check=_check,
        is_for_standard=True,
        needs=(ORDER_TAG,),
    ),
)

SENT_AT = OwnAttribute(SENT_AT_ATTRIBUTE, INSTANTS, INSTANT_FORM, (f"{ORDER_TAG}={SENDER_CLOCK}",))


def window_ms(own_tags: Mapping[str, str]) -> int:
    """The time for which messages wait, 0 for a queue that is not in this order."""
    return int(own_tags.get(WINDOW_TAG, 0)) if ORDER_TAG in own_tags else 0


def sent_at_ms(numbers: Mapping[str, int]) -> int:
    """The sender's time that the message's attributes name, in epoch milliseconds, 0 for none."""
    return numbers.get(SENT_AT_ATTRIBUTE, 0)


def check_placed(group_id: str | None, delay_s: int | None, own_tags: Mapping[str, str]) -> None:
    """Refuse a message that asks for another place in a queue with this order. Raises
    InvalidParameterValue."""
    if ORDER_TAG not in own_tags:
        return
    given = {"MessageGroupId": group_id, "DelaySeconds": delay_s}
    for name, value in given.items():
        if value:
            raise _invalid(name, value)


def check_delay(attributes: Mapping[str, str], tags: Mapping[str, str]) -> None:
    """Refuse a queue with a delay and this order. Raises InvalidParameterValue."""
    delay = attributes.get("DelaySeconds", "0")
    if ORDER_TAG in tags and delay != "0":
        raise _invalid("DelaySeconds", delay)


def _invalid(name: str, value: object) -> InvalidParameterValue:
    return InvalidParameterValue(
        f"Value {value} for parameter {name} is invalid. Reason: the queue has tag "
        f"{ORDER_TAG}={SENDER_CLOCK}."
    )


def takes_late(late: QueueDefinition, source: QueueDefinition) -> bool:
    """True if `late` may be the late queue of `source`: another standard queue of its account and
    region, in the order of arrival."""
    return (
        (late.account, late.region) == (source.account, source.region)
        and late.name != source.name
        and not late.settings.fifo
        and ORDER_TAG not in late.settings.own_tags
    )
