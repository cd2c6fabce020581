"""Structured logs on standard error: one event name and key=value fields, with request ids, without
bodies or secrets."""

from __future__ import annotations

import logging
import sys
from enum import StrEnum
from typing import TextIO, cast

import structlog

from sqs_api.settings.log_output import LogOutput, standard_error


class LogFormat(StrEnum):
    """Formats of log lines."""

    JSON = "json"
    CONSOLE = "console"


EVENTS: dict[tuple[str, str], int] = {}
"""Number of warnings and errors of this process by event and level, for metrics."""
OUTPUT = LogOutput()
"""The output of this process, which counts the lines that it drops."""
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
            colors=sys.stderr is not None and sys.stderr.isatty(),
            # The others print locals: bodies, secrets.
            exception_formatter=structlog.dev.plain_traceback,
        )
    structlog.configure(
        processors=[_count, *shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, OUTPUT)),
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )
    handler = logging.StreamHandler(OUTPUT)
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)

    def dropped_line(count: int) -> str:
        event: structlog.types.EventDict = {"event": "log_lines_dropped", "count": count}
        for process in shared:
            event = process(None, "warning", event)  # type: ignore[assignment]
        return f"{renderer(None, 'warning', event)!s}\n"

    OUTPUT.start(standard_error(), dropped_line)
