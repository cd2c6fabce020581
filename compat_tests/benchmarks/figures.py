"""A figure of a benchmark and its bound."""

from __future__ import annotations

from typing import NamedTuple


class Figure(NamedTuple):
    """One figure; the bound is the most that it may be, or the least if it is to be `at_least`."""

    name: str
    value: float
    unit: str
    bound: float
    at_least: bool = False

    @property
    def is_kept(self) -> bool:
        """True within the bound."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def __str__(self) -> str:
        which = "at least" if self.at_least else "at most"
        kept = "" if self.is_kept else ", EXCEEDED"
        return f"{self.name}: {self.value:.2f} {self.unit} ({which} {self.bound:g}{kept})"
