"""Failures that end a job with one line and exit status 1."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

_PYTHON_ERROR = re.compile(r"^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Unusable|Failed|Exception): (.+)$")


_CALLED = "An error occurred while calling"


class JobFailed(Exception):
    """The job failed; the text gives the reason in one line."""


@contextmanager
def spark_failures(action: str = "") -> Iterator[None]:
    """Raise JobFailed for Spark's errors; `action` is, for example, "cannot read the archive"."""
    try:
        yield
    except (Py4JError, PySparkException) as error:
        reason = spark_reason(error)
        raise JobFailed(f"{action}: {reason}" if action else reason) from error


def spark_reason(error: Exception) -> str:
    """The cause of a Spark error in one line: the message of our own code in a task, if any."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in lines:
        if found := _PYTHON_ERROR.match(line.removeprefix("Caused by: ")):
            if not line.startswith(("org.apache.spark.", "py4j.", "Caused by: org.apache.spark.")):
                return found[1]
    return first_line(error)


def first_line(error: Exception) -> str:
    """The first line of the error's text, or its type if it has none. Of an error in Java it is
    that of Java's exception."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    if lines[0].startswith(_CALLED) and len(lines) > 1:
        return lines[1].removeprefix(": ")
    return lines[0]
