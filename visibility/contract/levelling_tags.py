"""Load levelling: tags that limit what consumers take and what producers may add. Pure.

Receives above a limit wait or are empty, which is no error; sends above one are refused with
RequestThrottled, which SDKs repeat after a pause.
"""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

from visibility.contract.limits import IN_FLIGHT_MAX, MESSAGE_RETENTION_PERIOD, Range
from visibility.contract.own_tag import OwnTag
from visibility.contract.priority import PRIORITY_TAG
from visibility.contract.sender_order_tags import ORDER_TAG

RECEIVE_RATE_TAG = "holdfast:receive-rate"
MAX_IN_FLIGHT_TAG = "holdfast:max-in-flight"
THROTTLE_DEPTH_TAG = "holdfast:throttle-depth"
THROTTLE_AGE_TAG = "holdfast:throttle-age"
SECOND_US = 1_000_000
_THROTTLED_FROM = 0.8
"""Part of a limit of sends at which the first of them are refused."""
_CHANCES = 1 << 32
_LEAST_RESERVED = 10
"""Fewer are not kept for the highest priority."""
_LEAST_OF_SPLIT = {RECEIVE_RATE_TAG: 100, MAX_IN_FLIGHT_TAG: 1_000}
"""Below these a queue stays whole: a part that is cut off would hold its share for hours."""

LEVELLING_TAGS = (
    OwnTag(
        RECEIVE_RATE_TAG,
        "Messages that all consumers together get in a second at most; after a pause as many as in "
        "a second at once.",
        bounds=Range(1, 100_000),
    ),
    OwnTag(
        MAX_IN_FLIGHT_TAG,
        "Messages that consumers may have in flight at a time, all together.",
        bounds=Range(1, IN_FLIGHT_MAX),
    ),
    OwnTag(
        THROTTLE_DEPTH_TAG,
        "Number of visible messages from which on sends are refused with RequestThrottled; from "
        "four fifths of it on, some are.",
        bounds=Range(1, 1_000_000_000),
    ),
    OwnTag(
        THROTTLE_AGE_TAG,
        "Age in seconds of the oldest receivable message from which on sends are refused with "
        "RequestThrottled; from four fifths of it on, some are.",
        bounds=Range(1, MESSAGE_RETENTION_PERIOD.high),
    ),
)


def keeps_whole(own_tags: Mapping[str, str]) -> str | None:
    """The reason why a queue with these tags is not split, in words; None if it may be."""
    for key, least in _LEAST_OF_SPLIT.items():
        value = own_tags.get(key)
        if value is not None and int(value) < least:
            return f"tag {key} is below {least}"
    return f"tag {ORDER_TAG} needs one line" if ORDER_TAG in own_tags else None


def in_flight_limits(own_tags: Mapping[str, str], parts: int) -> tuple[int, int]:
    """(messages, of these for the highest priority only) that consumers may have in flight of a
    queue with these tags, or of each of its parts."""
    most = own_tags.get(MAX_IN_FLIGHT_TAG)
    if most is None:
        return IN_FLIGHT_MAX // (parts or 1), 0
    share = int(most) // (parts or 1)
    tenth = share // 10 if PRIORITY_TAG in own_tags else 0
    return share, tenth if tenth >= _LEAST_RESERVED else 0


def rate_room(own_tags: Mapping[str, str], paced_until_us: int, now_us: int, parts: int) -> int:
    """The number of messages that may be received now.

    `paced_until_us` is `rate_used` as of the last receive, 0 if there was none since the shard was
    loaded: it then begins with one, so that a failover is no second burst.
    """
    rate = own_tags.get(RECEIVE_RATE_TAG)
    if rate is None:
        return IN_FLIGHT_MAX
    each_us = _each_us(rate, parts)
    if not paced_until_us:
        return 1
    return min(
        max(1, SECOND_US // each_us), (now_us + _burst_us(each_us) - paced_until_us) // each_us
    )


def rate_used(
    own_tags: Mapping[str, str], paced_until_us: int, now_us: int, parts: int, messages: int
) -> int:
    """The instant at which the rate has caught up with these messages, and those before; negative
    numbers of messages were given back."""
    each_us = _each_us(own_tags[RECEIVE_RATE_TAG], parts)
    begin_us = paced_until_us or now_us + _burst_us(each_us) - each_us
    return max(begin_us, now_us) + messages * each_us


def rate_again_us(own_tags: Mapping[str, str], paced_until_us: int, parts: int) -> int:
    """The instant from which the next message may be received."""
    each_us = _each_us(own_tags[RECEIVE_RATE_TAG], parts)
    return paced_until_us + each_us - _burst_us(each_us)


def _each_us(rate: str, parts: int) -> int:
    return max(1, SECOND_US * max(1, parts) // int(rate))


def _burst_us(each_us: int) -> int:
    """The rate's messages of a second, but one at least."""
    return max(SECOND_US, each_us)


def is_throttled(value: float, limit: float, request_id: str) -> bool:
    """True if a send is refused at this value of what is limited.

    From four fifths of the limit on more and more requests are, so that producers slow down before
    all of them stop. The request's id decides, so a retry inside gets the same answer.
    """
    begin = limit * _THROTTLED_FROM
    if value < begin:
        return False
    if value >= limit:
        return True
    return crc32(request_id.encode()) < _CHANCES * (value - begin) / (limit - begin)
