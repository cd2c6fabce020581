"""Priority: a tag of a standard queue and an attribute of a message say which goes first. Pure.

A message has a level, which says its place: one more than its priority, 0 for a message without
one. In a queue with strict priority, ten more once it was received so often that it went behind all
others. Priority stays with a message wherever it moves.
"""

from __future__ import annotations

from collections.abc import Mapping

from visibility.contract.limits import Range
from visibility.contract.own_tag import OwnAttribute, OwnTag

PRIORITY_TAG = "holdfast:priority"
PRIORITY_ATTRIBUTE = "holdfast.priority"
WEIGHTED = "weighted"
STRICT = "strict"
DEFAULT_PRIORITY = 4
LEVELS = 10
"""Number of priorities: 0 to 9."""
HIGHEST_LEVEL = LEVELS
"""The level of messages with the highest priority."""
_PRIORITIES = Range(0, LEVELS - 1)

PRIORITY_TAGS = (
    OwnTag(
        PRIORITY_TAG,
        f"Messages of higher priority ({PRIORITY_ATTRIBUTE}, {_PRIORITIES.low} to "
        f"{_PRIORITIES.high}, {DEFAULT_PRIORITY} by default) are received more often, by weights "
        "of one more than their priority, or strictly before all others.",
        (WEIGHTED, STRICT),
        is_for_standard=True,
    ),
)
PRIORITY = OwnAttribute(
    PRIORITY_ATTRIBUTE,
    _PRIORITIES,
    f"a whole number from {_PRIORITIES.low} to {_PRIORITIES.high}",
    (PRIORITY_TAG,),
)


def level_of(numbers: Mapping[str, int]) -> int:
    """The level that the message's attributes name, 0 if they name none."""
    return numbers.get(PRIORITY_ATTRIBUTE, -1) + 1


def priority_of(level: int) -> int:
    """The priority of a message with this level."""
    return (level - 1) % LEVELS if level else DEFAULT_PRIORITY


def is_strict(own_tags: Mapping[str, str]) -> bool:
    """True if the highest priority that waits goes first."""
    return own_tags.get(PRIORITY_TAG) == STRICT


def place_of(level: int) -> int:
    """The place of a level in a queue with strict priority, from 1 on: the highest goes first."""
    behind_all = level > LEVELS
    return priority_of(level) + 1 + (0 if behind_all else LEVELS)


def joining_level(own_tags: Mapping[str, str], level: int) -> int:
    """The level with which a message of this level joins the line of a queue with these tags."""
    return priority_of(level) + 1 if PRIORITY_TAG in own_tags else level


def level_at_the_back(own_tags: Mapping[str, str], level: int) -> int:
    """The level of a message that was received too often: the same, or behind all others."""
    joining = joining_level(own_tags, level)
    return joining + LEVELS if is_strict(own_tags) else joining
