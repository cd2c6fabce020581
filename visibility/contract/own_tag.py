"""OwnTag: a tag of a queue with a meaning for this service. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from visibility.contract.limits import Range

PREFIX = "holdfast:"
_DIGITS_MAX = 10


class OwnTag(NamedTuple):
    """A key, its values, and their meaning in one sentence.

    It takes one of `choices`, or a whole number within `bounds`. `check` raises
    InvalidParameterValue if the tags that a queue is to have contradict each other. A FIFO queue
    cannot have one that `is_for_standard`.
    """

    key: str
    meaning: str
    choices: tuple[str, ...] = ()
    bounds: Range | None = None
    check: Callable[[Mapping[str, str]], None] | None = None
    is_for_standard: bool = False

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
        if not (value.isascii() and value.isdigit() and len(value) <= _DIGITS_MAX):
            return False
        return self.bounds.low <= int(value) <= self.bounds.high
