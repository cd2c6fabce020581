"""Instants on the command line: 2026-11-20, 2026-11-20T08:00+01:00, or so long ago: 90s, 30m, 2h, 3d, 1w."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click

_AGO = re.compile(r"([0-9]{1,9})([smhdw])").fullmatch
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_instant(text: str, now: datetime) -> datetime:
    """The instant in UTC. Raises ValueError."""
    if ago := _AGO(text):
        try:
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        except OverflowError:
            raise ValueError("that long ago there were no messages") from None
    instant = datetime.fromisoformat(text)
    return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).astimezone(UTC)


class Instant(click.ParamType[datetime]):
    """An option that is an instant; what is relative counts from when it is read."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> datetime:
        """The instant; wrong use when the text is none."""
        if isinstance(value, datetime):
            return value
        try:
            return parse_instant(value, datetime.now(UTC))
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r} is no time: write 2026-11-20T08:00Z, or 2h or 3d ago", param, context
            )
