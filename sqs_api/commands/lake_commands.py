"""`holdfast lake-search`, `lake-archived`: the processes in which a service reads the archive.

Not for people.
"""

from __future__ import annotations

import os
import signal
import sys

import click
import msgspec

from sqs_api.commands.command_options import Refused
from sqs_api.settings import config

_NICE = 10


@click.command("lake-search", hidden=True)
def lake_search() -> None:
    """Read a search from standard input; print the page that it finds."""
    from sqs_api.archiving.archive_search import ArchiveSearch
    from sqs_api.archiving.lake_search import search
    from storage.lake.table import Lake, LakeUnusable, ObjectStore

    os.nice(_NICE)  # messages come first
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's: the service ends this process
    wanted = msgspec.json.decode(sys.stdin.buffer.read(), type=ArchiveSearch)
    try:
        lake = Lake(wanted.lake, ObjectStore.from_environment(config.environment()))
        found = search(lake, wanted)
    except LakeUnusable as error:
        raise Refused(str(error)) from error
    click.echo(msgspec.json.encode(found))


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
