"""Running `holdfast` commands in this process."""

from __future__ import annotations

import re
from typing import NamedTuple

import click
from click.testing import CliRunner

from sqs_api.__main__ import cli
from sqs_api.commands.command_options import Failed

KEY = re.compile(r"AKIA[A-Z2-7]{16}")


class Said(NamedTuple):
    """The outcome of a command."""

    status: int
    out: str
    err: str


def run(*arguments: object) -> Said:
    """A command in this process; refusals end with 2, or 1 for `Failed`, as in `main`."""
    given = [str(argument) for argument in arguments]
    result = CliRunner().invoke(cli, given, standalone_mode=False)
    if isinstance(result.exception, click.ClickException):
        status = 1 if isinstance(result.exception, Failed) else 2
        return Said(status, result.stdout, result.exception.format_message())
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Said(result.exit_code, result.stdout, result.stderr)
