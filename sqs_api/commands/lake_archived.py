"""`holdfast lake-archived`: the process in which a running service reads the archive's table.

Not for people.
"""

from __future__ import annotations

import signal
import sys

import click
import msgspec

from sqs_api.commands.command_options import Refused
from sqs_api.settings import config


@click.command("lake-archived", hidden=True)
def lake_archived() -> None:
    """Read a claim from standard input; print the reason why it is wrong, or null."""
    from storage.lake.archived_batch import ArchivedTask, refute
    from storage.lake.table import Lake, LakeUnusable, ObjectStore

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's: the service ends this process
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=ArchivedTask)
    try:
        lake = Lake(task.lake, ObjectStore.from_environment(config.environment()))
        refutation = refute(lake, task.claimed)
    except LakeUnusable as error:
        raise Refused(str(error)) from error
    click.echo(msgspec.json.encode(refutation))
