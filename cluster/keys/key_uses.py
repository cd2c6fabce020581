"""The days on which access keys were used last, numbered since 1970, by the key's id.

A host writes the day of a key once it was used on that day.
"""

from __future__ import annotations

from datetime import date, timedelta

_DAY_DIGITS = 5
"""Later days are damage."""


def day_of(value: bytes | None) -> int | None:
    """A day from its digits; None if there is none, or if it is damage."""
    return int(value) if value and value.isdigit() and len(value) <= _DAY_DIGITS else None


def day_text(day: int | None) -> str | None:
    """A day as text, such as 2026-11-23; None if there is none."""
    return None if day is None else (date(1970, 1, 1) + timedelta(day)).isoformat()
