"""Scheduled messages: a message attribute names the time of delivery, up to a year ahead. Pure.

The queue's tag allows it, so that a queue is not filled for a year by mistake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from visibility.contract.errors import InvalidParameterValue, QueueError
from visibility.contract.limits import DAY
from visibility.contract.model import Content
from visibility.contract.own_tag import (
    INSTANT_FORM,
    INSTANTS,
    OwnAttribute,
    OwnTag,
    attribute_refused,
)

DELIVER_AT_TAG = "holdfast:deliver-at"
DELIVER_AT_ATTRIBUTE = "holdfast.deliver-at"
SCHEDULED_MAX = 1_000_000
"""Delayed messages of a queue, or of a part of it, above which none is scheduled."""
AHEAD_MAX_MS = 366 * DAY * 1000
_ALLOWED = "on"

SCHEDULE_TAGS = (
    OwnTag(
        DELIVER_AT_TAG,
        f"Messages may say in their attribute {DELIVER_AT_ATTRIBUTE} when they can be received, up "
        "to a year ahead.",
        (_ALLOWED, "off"),
        is_for_standard=True,
    ),
)

DELIVER_AT = OwnAttribute(
    DELIVER_AT_ATTRIBUTE, INSTANTS, INSTANT_FORM, (f"{DELIVER_AT_TAG}={_ALLOWED}",)
)


def deliver_at_ms(numbers: Mapping[str, int], delay_s: int | None) -> int:
    """The instant from which the message can be received, in epoch milliseconds; 0 if its
    attributes name none. Raises InvalidParameterValue."""
    at_ms = numbers.get(DELIVER_AT_ATTRIBUTE, 0)
    if at_ms and delay_s:
        raise _refused("DelaySeconds contradicts it.")
    return at_ms


def soon_enough(
    parts: Sequence[Content | QueueError], now_ms: int, *, is_batch: bool
) -> tuple[Content | QueueError, ...]:
    """The contents of a send, with a refusal for each that is to be delivered more than a year
    ahead. Raises it if the send is no batch."""
    last_ms = now_ms + AHEAD_MAX_MS
    checked: list[Content | QueueError] = []
    for part in parts:
        if isinstance(part, Content) and part.deliver_at_ms > last_ms:
            refusal = _refused("it is more than a year ahead.")
            if not is_batch:
                raise refusal
            checked.append(refusal)
        else:
            checked.append(part)
    return tuple(checked)


def check_reschedule(at_ms: int, now_ms: int) -> None:
    """Refuse a new time of delivery more than a year ahead. Raises InvalidParameterValue."""
    if at_ms > now_ms + AHEAD_MAX_MS:
        raise InvalidParameterValue("The new time of delivery is more than a year ahead.")


def _refused(reason: str) -> InvalidParameterValue:
    return attribute_refused(DELIVER_AT_ATTRIBUTE, reason)
