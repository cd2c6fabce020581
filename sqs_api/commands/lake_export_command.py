"""`holdfast lake-export`: the process that a running service starts to write to the lake.

Not for people.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click
import msgspec
from pydantic import SecretStr

from sqs_api.commands.command_options import Refused
from sqs_api.settings import config

_NICE = 10


@click.command("lake-export", hidden=True)
def lake_export() -> None:
    """Read what is wanted from standard input, do it, and say on standard output what was done."""
    from cluster.clock import SystemClock, SystemEntropy
    from cluster.copies.lake_export import ExportFailed, export
    from cluster.keys.keyring import Keyring
    from cluster.keys.master_key import KeysUnusable
    from cluster.members.member_records import MembershipRefused
    from sqs_api.commands.opened_records import copied_records
    from sqs_api.settings.key_stores import open_keyring
    from storage.copies.export_task import ExportTask
    from storage.files.folder import FolderRefused
    from storage.lake.table import Lake, LakeUnusable, ObjectStore

    os.nice(_NICE)  # requests come first
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's: the service ends this process
    signal.signal(signal.SIGTERM, _end)
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=ExportTask)
    file = task.master_key_file
    given: dict[str, Any] = {**task.member}
    settings = config.Settings(
        data=Path(task.data),
        master_key=SecretStr(task.master_key) if task.master_key is not None else None,
        master_key_file=Path(file) if file is not None else None,
        **given,
    )

    def keyring() -> Keyring:
        """The keys of now; no more is asked of it than it knows."""
        below = copied_records(settings).below
        clock, entropy = SystemClock(), SystemEntropy()
        return asyncio.run(open_keyring(settings, below, clock, entropy, founds=False))

    try:
        store = ObjectStore.from_environment(config.environment())
        lake = Lake(task.export.lake, store, task.export.umask)
        done = export(task.export, lake, keyring)
    except (
        ExportFailed,
        LakeUnusable,
        KeysUnusable,
        FolderRefused,
        MembershipRefused,
    ) as error:
        raise Refused(str(error)) from error
    click.echo(msgspec.json.encode(done))


def _end(number: int, frame: object) -> None:
    """Remove all leftovers: data for an object store lies in a local file first."""
    sys.exit(1)
