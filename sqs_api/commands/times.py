"""Times as options: a duration before now, or a date."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from cluster.clock import SystemClock
from sqs_api.settings import config


class _At(click.ParamType[int]):
    """A duration such as 2h, which ended now, or a date and time of UTC; in milliseconds."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> int:
        """See click."""
        if isinstance(value, int):
            return value
        try:
            return int((SystemClock().wall_s() - config.seconds_of(value)) * 1000)
        except ValueError:
            pass
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value} is neither a duration such as 2h nor a time", param, context)
        return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


AT = _At()
