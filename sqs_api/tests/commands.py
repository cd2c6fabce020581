"""Running `holdfast` commands in this process."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import click
from click.testing import CliRunner

from sqs_api.commands.command_line import cli
from sqs_api.commands.command_options import Failed

T = TypeVar("T")
KEY = re.compile(r"AKIA[A-Z2-7]{16}")


class Said(NamedTuple):
    """The outcome of a command."""

    status: int
    out: str
    err: str


def in_thread(work: Callable[[], T]) -> T:
    """Do something that has an event loop of its own, also while one runs here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def run(*arguments: object) -> Said:
    """A command in this process; refusals end with 2, or 1 for `Failed`, as in `main`."""
    given = [str(argument) for argument in arguments]
    result = in_thread(lambda: CliRunner().invoke(cli, given, standalone_mode=False))
    if isinstance(result.exception, click.ClickException):
        status = 1 if isinstance(result.exception, Failed) else 2
        return Said(status, result.stdout, result.exception.format_message())
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Said(result.exit_code, result.stdout, result.stderr)
