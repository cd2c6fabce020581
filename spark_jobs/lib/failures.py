"""What ends a job with one line and exit status 1, beside LakeUnusable and SparkUnusable."""

from __future__ import annotations

import re

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
    return lines[0] if lines else type(error).__name__
