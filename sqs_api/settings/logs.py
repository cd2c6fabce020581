"""Structured logs on standard error: one event name and key=value fields, with request ids, without
bodies or secrets."""

from __future__ import annotations

import logging
import sys
from enum import StrEnum

import structlog


class LogFormat(StrEnum):
    """Formats of log lines."""

    JSON = "json"
    CONSOLE = "console"


EVENTS: dict[tuple[str, str], int] = {}
"""Number of warnings and errors of this process by event and level, for metrics."""
_LEVELS_COUNTED = ("warning", "error", "critical")


def _count(_: object, level: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
    """A processor that counts; the names of events are constants of the source."""
    level = "error" if level == "exception" else level
    if level in _LEVELS_COUNTED:
        key = (str(event.get("event")), level)
        EVENTS[key] = EVENTS.get(key, 0) + 1
    return event


def set_up_logs(form: LogFormat) -> None:
    """Send structlog's and the standard library's logs to standard error in this form."""
    shared: list[structlog.types.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderer: structlog.types.Processor
    if form is LogFormat.JSON:
        shared.append(structlog.processors.format_exc_info)
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            # The others print locals: bodies, secrets.
            exception_formatter=structlog.dev.plain_traceback,
        )
    structlog.configure(
        processors=[_count, *shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
