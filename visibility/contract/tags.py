"""TABLE: tags with a meaning for this service. Pure.

SQS has no attributes for these settings and refuses unknown attributes, but every client can set a
tag. A feature declares its tags with `own_tag`; checks, console, commands and the OpenAPI document
show what is declared. A tag of this prefix that nobody declared is refused: it is probably a typing
error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from visibility.contract.errors import InvalidParameterValue
from visibility.contract.limits import Range

PREFIX = "holdfast:"


class OwnTag(NamedTuple):
    """One row: a tag, its values, and their meaning in one sentence.

    It takes one of `choices`, or a whole number within `bounds`.
    """

    key: str
    meaning: str
    choices: tuple[str, ...] = ()
    bounds: Range | None = None

    @property
    def values(self) -> str:
        """The valid values in words."""
        if self.bounds is not None:
            return f"whole numbers from {self.bounds.low} to {self.bounds.high}"
        return ", ".join(self.choices)

    def takes(self, value: str) -> bool:
        """True if the value is valid."""
        if self.bounds is None:
            return value in self.choices
        digits = value if value.isascii() and value.isdigit() and len(value) <= _DIGITS_MAX else ""
        return bool(digits) and self.bounds.low <= int(digits) <= self.bounds.high


_DIGITS_MAX = 10

OWN_TAGS: dict[str, OwnTag] = {}
"""The declared tags, by key."""
CHECKS: list[Callable[[Mapping[str, str]], None]] = []
"""Checks of a queue's tags together, which raise InvalidParameterValue."""


def own_tag(row: OwnTag) -> str:
    """Declare a tag; returns its key."""
    assert row.key.startswith(PREFIX)
    assert row.key not in OWN_TAGS
    OWN_TAGS[row.key] = row
    return row.key


ARCHIVE_EXPIRED = "expired"
ARCHIVE_ALL = "all"
ARCHIVE_NONE = "none"
ARCHIVE_TAG = own_tag(
    OwnTag(
        "holdfast:archive",
        "Messages that go to the archive: those older than the queue's retention (the default), "
        "also those that consumers deleted, or none.",
        (ARCHIVE_EXPIRED, ARCHIVE_ALL, ARCHIVE_NONE),
    )
)

PROTECT_ON = "on"
PROTECT_TAG = own_tag(
    OwnTag(
        "holdfast:protect",
        "The queue is protected from being deleted or purged.",
        (PROTECT_ON, "off"),
    )
)


def check_own_tags(tags: Mapping[str, str]) -> None:
    """Refuse a tag of this service with an unknown key or value. Raises InvalidParameterValue."""
    for key, value in tags.items():
        if not key.lower().startswith(PREFIX):
            continue
        row = OWN_TAGS.get(key)
        if row is None:
            raise InvalidParameterValue(
                f"Tag {key} is unknown. Tags beginning with {PREFIX} are: {', '.join(OWN_TAGS)}."
            )
        if not row.takes(value):
            raise InvalidParameterValue(
                f"Value {value} for tag {key} is invalid. Valid values are: {row.values}."
            )


def check_together(tags: Mapping[str, str]) -> None:
    """Refuse tags of this service that contradict each other. Raises InvalidParameterValue."""
    for check in CHECKS:
        check(tags)
