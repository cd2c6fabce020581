"""What ends a job with one line and exit status 1, beside LakeUnusable and SparkUnusable."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

_PYTHON_ERROR = re.compile(r"^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Unusable|Failed|Exception): (.+)$")


class JobFailed(Exception):
    """The job could not do what it is for; the text says why in one line."""


def spark_reason(error: Exception) -> str:
    """Why a Spark job failed, in one line: what our code said in a task, if it was that."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in lines:
        if found := _PYTHON_ERROR.match(line.removeprefix("Caused by: ")):
            if not line.startswith(("org.apache.spark.", "py4j.", "Caused by: org.apache.spark.")):
                return found[1]
    return first_line(error)


def first_line(error: Exception) -> str:
    """What the error says, in one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def spark_failures(failed: str = "") -> Iterator[None]:
    """Raise JobFailed for Spark's errors; `failed` says what failed, as in "cannot read the archive"."""
    try:
        yield
    except (Py4JError, PySparkException) as error:
        reason = spark_reason(error)
        raise JobFailed(f"{failed}: {reason}" if failed else reason) from error
