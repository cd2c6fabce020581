"""Settings of all tests: Hypothesis never judges the speed of an example, collected tests are no
work for Python's collector of garbage, and logged errors have plain tracebacks."""

import gc
import os
import sys
from collections.abc import Generator

import pytest
import structlog
from hypothesis import HealthCheck, settings

settings.register_profile(
    "patient", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("quick", settings.get_profile("patient"), max_examples=20)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "patient"))

# The default renderer shows the locals of each frame, which takes half a second for an error. The
# default logger writes to `sys.stdout`, which is captured while a test runs a command beside a
# service in one process.
_PLAIN = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
structlog.configure(
    processors=[*structlog.get_config()["processors"][:-1], _PLAIN],
    logger_factory=structlog.WriteLoggerFactory(file=sys.__stderr__),
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, bool, bool]:
    """Leave thousands of tests out of each full collection, which comes more seldom than Python's
    default."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()
