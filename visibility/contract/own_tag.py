"""OwnTag: a tag of a queue with a meaning for this service; and OwnAttribute: such a
message attribute. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from visibility.contract.digests import Attributes
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.limits import Range

PREFIX = "holdfast:"
INSTANTS = Range(10**11, 10**16 - 1)
"""In milliseconds. Smaller numbers are seconds by mistake: these were over in 1973."""
INSTANT_FORM = "an instant in milliseconds since 1970"
_DIGITS_MAX = 13


class OwnTag(NamedTuple):
    """A key, its values, and their meaning in one sentence.

    It takes one of `choices`, a whole number within `bounds`, or what has the `form`, in words and
    as a pattern. `check` raises InvalidParameterValue if the tags that a queue is to have
    contradict each other. A FIFO queue cannot have one that `is_for_standard`. The value
    `to_archive` needs an archive. Without one of the tags that it `needs` it has no effect, nor has
    the value `to_dead_letters` without a dead-letter queue.
    """

    key: str
    meaning: str
    choices: tuple[str, ...] = ()
    bounds: Range | None = None
    check: Callable[[Mapping[str, str]], None] | None = None
    is_for_standard: bool = False
    to_archive: str = ""
    to_dead_letters: str = ""
    needs: tuple[str, ...] = ()
    form: tuple[str, re.Pattern[str]] | None = None

    @property
    def values(self) -> str:
        """The valid values in words."""
        if self.form is not None:
            return self.form[0]
        if self.bounds is not None:
            return f"whole numbers from {self.bounds.low} to {self.bounds.high}"
        return ", ".join(self.choices)

    def takes(self, value: str) -> bool:
        """True if the value is valid."""
        if self.form is not None:
            return self.form[1].fullmatch(value) is not None
        if self.bounds is None:
            return value in self.choices
        if not (value.isascii() and value.isdigit() and len(value) <= _DIGITS_MAX):
            return False
        return self.bounds.low <= int(value) <= self.bounds.high


class OwnAttribute(NamedTuple):
    """A message attribute: a whole number within `bounds`, which are in words in `form`. A queue
    with one of the `tags` takes it, each of which is a key, or a key and its value."""

    name: str
    bounds: Range
    form: str
    tags: tuple[str, ...]

    def is_taken(self, own_tags: Mapping[str, str]) -> bool:
        """True if messages of a queue with these tags may have it."""
        pairs = (tag.partition("=") for tag in self.tags)
        return any(
            own_tags.get(key) == value if value else key in own_tags for key, _, value in pairs
        )

    def number_in(self, attributes: Attributes, own_tags: Mapping[str, str]) -> int:
        """The number in attributes that have it. Raises InvalidParameterValue."""
        if not self.is_taken(own_tags):
            need = f"it needs a queue with tag {' or '.join(self.tags)}."
            raise attribute_refused(self.name, need)
        kind, value = attributes[self.name]
        if kind.partition(".")[0] != "Number":
            raise attribute_refused(self.name, f"its type must be Number, not {kind}.")
        low, high = self.bounds.low, self.bounds.high
        if not (value.isdigit() and len(value) <= len(str(high)) and low <= int(value) <= high):
            raise attribute_refused(self.name, f"its value must be {self.form}.")
        return int(value)


def attribute_refused(name: str, reason: str) -> InvalidParameterValue:
    """The refusal of a message attribute."""
    return InvalidParameterValue(f"Message attribute '{name}' is invalid. Reason: {reason}")
