"""Time to live: a tag of the queue and an attribute of a message say for how long it may be
received. Pure.

A message's own time ends with its first death, and with a redrive; that of a queue begins when the
message joins it, for a delayed message when it can first be received.
"""

from __future__ import annotations

from collections.abc import Mapping

from visibility.contract.limits import MESSAGE_RETENTION_PERIOD, Range
from visibility.contract.own_tag import OwnAttribute, OwnTag

TTL_TAG = "holdfast:ttl"
EXPIRED_TAG = "holdfast:expired"
TTL_ATTRIBUTE = "holdfast.ttl"
DISCARD = "discard"
TO_DEAD_LETTERS = "dead-letter"
TO_ARCHIVE = "archive"
_SECONDS = Range(1, MESSAGE_RETENTION_PERIOD.high)

TTL_TAGS = (
    OwnTag(
        TTL_TAG,
        "Seconds after which a message cannot be received any more, unless its attribute "
        f"{TTL_ATTRIBUTE} says fewer.",
        bounds=_SECONDS,
    ),
    OwnTag(
        EXPIRED_TAG,
        "Fate of messages whose time to live is over: they are discarded (the default), become "
        "dead letters or go to the archive.",
        (DISCARD, TO_DEAD_LETTERS, TO_ARCHIVE),
        to_archive=TO_ARCHIVE,
        to_dead_letters=TO_DEAD_LETTERS,
    ),
)

TTL = OwnAttribute(
    TTL_ATTRIBUTE,
    _SECONDS,
    f"whole seconds from {_SECONDS.low} to {_SECONDS.high}",
    (TTL_TAG, EXPIRED_TAG),
)


def discards_expired(own_tags: Mapping[str, str]) -> bool:
    """True if messages of the queue are lost when its time to live is over."""
    return TTL_TAG in own_tags and own_tags.get(EXPIRED_TAG, DISCARD) == DISCARD


def own_ttl_ms(numbers: Mapping[str, int]) -> int:
    """The message's own time to live, 0 if its attributes name none."""
    return numbers.get(TTL_ATTRIBUTE, 0) * 1000


def expiry(own_tags: Mapping[str, str], from_ms: int, own_ms: int = 0) -> int:
    """The instant at which the time to live of a message ends that can be received from then on, 0
    for never. `own_ms` is its own time."""
    ttl_ms = shorter_ms(int(own_tags.get(TTL_TAG, 0)) * 1000, own_ms)
    return from_ms + ttl_ms if ttl_ms else 0


def shorter_ms(queue_ms: int, own_ms: int) -> int:
    """The time to live of a message, from that of its queue and its own; 0 is none."""
    return min(queue_ms, own_ms) if queue_ms and own_ms else queue_ms or own_ms
