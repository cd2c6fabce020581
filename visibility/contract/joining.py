"""Joining: what the tags of a queue say about each message that is sent to it, read once. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from visibility.contract.length import OVERFLOW_TAG, TO_DEAD_LETTERS, UNLIMITED, limits_of
from visibility.contract.levelling import THROTTLE_AGE_TAG, THROTTLE_DEPTH_TAG
from visibility.contract.model import Joining
from visibility.contract.priority import joining_level
from visibility.contract.sender_order import ORDER_TAG
from visibility.contract.time_to_live import expiry


def joining_of(own_tags: Mapping[str, str]) -> Joining | None:
    """None if the tags say nothing, or have messages moved or wait when others join."""
    if not own_tags or ORDER_TAG in own_tags or own_tags.get(OVERFLOW_TAG) == TO_DEAD_LETTERS:
        return None
    messages, size = limits_of(own_tags, 1) or (UNLIMITED, UNLIMITED)
    is_throttled = THROTTLE_DEPTH_TAG in own_tags or THROTTLE_AGE_TAG in own_tags
    return Joining(messages, size, expiry(own_tags, 0), joining_level(own_tags, 0), is_throttled)
