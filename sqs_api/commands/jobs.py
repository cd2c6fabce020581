"""`holdfast jobs`: runs a Spark job in a process of its own, which needs the extra packages of
holdfast[spark]."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

import click

from sqs_api.commands.options import Refused

JOBS = [sys.executable, "-EP", "-m", "spark_jobs"]
"""Isolated as `holdfast` is, see `sqs_api.__main__`."""


@click.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def jobs(arguments: tuple[str, ...]) -> None:
    """Run a Spark job over the lake: archive, queue-age, dead-letters, replay or compact."""
    check_packages("holdfast jobs", "pyspark")
    os.execv(JOBS[0], [*JOBS, *arguments])


def check_packages(who: str, *names: str) -> None:
    """Raise Refused unless these packages of the extra are installed."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise Refused(f"{who} needs {', '.join(missing)}: pip install 'holdfast[spark]'")
