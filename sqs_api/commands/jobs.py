"""`holdfast jobs`: runs a Spark job in a process of its own, which needs the extra packages of
holdfast[spark]."""

from __future__ import annotations

import os
from importlib.util import find_spec

import click

from sqs_api.archiving.schedule import JOBS
from sqs_api.commands.command_options import Refused


@click.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def jobs(arguments: tuple[str, ...]) -> None:
    """Run a Spark job over the lake: archive, queue-age, dead-letters, replay or compact."""
    if find_spec("pyspark") is None:
        raise Refused(
            "holdfast jobs needs pyspark: `make jobs` installs and runs it; without make: "
            "pip install 'holdfast[spark]'"
        )
    os.execv(JOBS[0], [*JOBS, *arguments])
