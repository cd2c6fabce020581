"""Limits of a queue's length: tags say how many messages it holds at most, and how many bytes, and
what becomes of a send above that. Pure.

Messages in any state count: visible ones, those in flight and delayed ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from visibility.contract.errors import InvalidParameterValue
from visibility.contract.limits import Range
from visibility.contract.model import QueueSettings
from visibility.contract.own_tag import OwnTag

MAX_MESSAGES_TAG = "holdfast:max-messages"
MAX_BYTES_TAG = "holdfast:max-bytes"
OVERFLOW_TAG = "holdfast:overflow"
DROP_OLDEST = "drop-oldest"
TO_DEAD_LETTERS = "dead-letter"
TO_ARCHIVE = "archive"
UNLIMITED = 1 << 62
_LEAST_OF_DROPPING = 10
"""A batch must fit, or it would drop what the one before it brought."""


def _check(tags: Mapping[str, str]) -> None:
    limit = tags.get(MAX_MESSAGES_TAG)
    if tags.get(OVERFLOW_TAG) == DROP_OLDEST and limit and int(limit) < _LEAST_OF_DROPPING:
        raise InvalidParameterValue(
            f"Tag {OVERFLOW_TAG} with value {DROP_OLDEST} needs a {MAX_MESSAGES_TAG} of "
            f"{_LEAST_OF_DROPPING} or more."
        )


LENGTH_TAGS = (
    OwnTag(
        MAX_MESSAGES_TAG,
        "Messages that the queue holds at most, in flight and delayed ones included.",
        bounds=Range(1, 1_000_000_000),
        check=_check,
    ),
    OwnTag(
        MAX_BYTES_TAG,
        "Bytes of messages that the queue holds at most, as AWS counts them, in flight and delayed "
        "ones included.",
        bounds=Range(1024, 1_000_000_000_000),
    ),
    OwnTag(
        OVERFLOW_TAG,
        "Fate of a send above the limits: it is refused with OverLimit (the default), or the "
        "oldest waiting messages make room, which are dropped, become dead letters or go to the "
        "archive.",
        ("reject", DROP_OLDEST, TO_DEAD_LETTERS, TO_ARCHIVE),
        check=_check,
        to_archive=TO_ARCHIVE,
        to_dead_letters=TO_DEAD_LETTERS,
        needs=(MAX_MESSAGES_TAG, MAX_BYTES_TAG),
    ),
)


def check_overflow(settings: QueueSettings, tags: Mapping[str, str], queue_arn: str) -> None:
    """Refuse a queue whose messages would make room for others by moving to its end. Raises
    InvalidParameterValue."""
    policy = settings.redrive_policy
    goes_back = policy is not None and policy.dead_letter_target_arn == queue_arn
    if goes_back and tags.get(OVERFLOW_TAG) == TO_DEAD_LETTERS:
        raise InvalidParameterValue(
            f"Tag {OVERFLOW_TAG} with value {TO_DEAD_LETTERS} is not valid for a queue that is its "
            "own dead-letter queue."
        )


def limits_of(own_tags: Mapping[str, str], parts: int) -> tuple[int, int] | None:
    """(messages, bytes) that a queue with these tags, or each of its parts, holds at most; None if
    nothing limits it."""
    messages, size = own_tags.get(MAX_MESSAGES_TAG), own_tags.get(MAX_BYTES_TAG)
    if messages is None and size is None:
        return None
    share = parts or 1
    return (
        UNLIMITED if messages is None else int(messages) // share,
        UNLIMITED if size is None else int(size) // share,
    )


def parts_without_room(own_tags: Mapping[str, str], parts: int, message_size: int) -> str | None:
    """The reason why that is too many parts for a queue with these tags: each must have room for a
    message of the largest size. None if they are not."""
    limits = limits_of(own_tags, parts)
    if limits is None or parts <= 1:
        return None
    messages, size = limits
    if not messages:
        return f"tag {MAX_MESSAGES_TAG} is below its {parts} parts"
    if size < message_size:
        return f"tag {MAX_BYTES_TAG} leaves each of {parts} parts no room for a largest message"
    return None
