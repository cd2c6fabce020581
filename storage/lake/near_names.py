"""Names of queues that somebody who mistyped one may have meant."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from difflib import get_close_matches

_NEAR_MAX = 3
_COMPARED_MAX = 10_000
"""Comparing takes some 20 microseconds a name."""


def near_names(wanted: str, names: Collection[str]) -> list[str]:
    """The names most like this one, the most similar first; none if nothing is like it."""
    compared = sorted(names, key=lambda name: abs(len(name) - len(wanted)))[:_COMPARED_MAX]
    return get_close_matches(wanted, compared, _NEAR_MAX)


def did_you_mean(near: Sequence[str]) -> str:
    """The end of a message about the wrong name; nothing if nothing is like it."""
    return f"; did you mean {' or '.join(near)}?" if near else ""
