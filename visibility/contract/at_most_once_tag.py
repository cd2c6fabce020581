"""Delivery at most once: a tag by which a receive removes the messages that it hands out. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from visibility.contract.errors import InvalidParameterValue
from visibility.contract.levelling_tags import MAX_IN_FLIGHT_TAG
from visibility.contract.own_tag import OwnTag
from visibility.contract.retry_backoff import RETRY_MAX_TAG, RETRY_MIN_TAG

DELIVERY_TAG = "holdfast:delivery"
AT_MOST_ONCE = "at-most-once"
_USELESS_TAGS = (RETRY_MIN_TAG, RETRY_MAX_TAG, MAX_IN_FLIGHT_TAG)
"""No message comes again, and none is in flight."""


def delivers_at_most_once(own_tags: Mapping[str, str]) -> bool:
    """True if a receive of the queue removes what it hands out."""
    return own_tags.get(DELIVERY_TAG) == AT_MOST_ONCE


def check_delivery(tags: Mapping[str, str]) -> None:
    """Refuse tags that mean nothing without a second delivery. Raises InvalidParameterValue."""
    if delivers_at_most_once(tags):
        for key in _USELESS_TAGS:
            if key in tags:
                raise InvalidParameterValue(
                    f"Tag {key} is not valid with tag {DELIVERY_TAG}={AT_MOST_ONCE}."
                )


DELIVERY_TAGS = (
    OwnTag(
        DELIVERY_TAG,
        "A message that no consumer deletes comes again (the default), or a receive removes what "
        "it hands out, so that no message comes twice.",
        ("at-least-once", AT_MOST_ONCE),
    ),
)
