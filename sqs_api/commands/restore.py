"""`holdfast restore`: make a data folder of a backup."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from sqs_api.commands.options import Refused, shown_queues

_DAMAGED = 1


@click.command()
@click.argument("backup", type=click.Path(path_type=Path))
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder to make; it must not exist or be empty.",
)
def restore(backup: Path, data: Path) -> None:
    """Make a data folder as it was when BACKUP was made, to start the service on. A cluster's
    backup becomes a new cluster: restore it on each of its founding hosts.

    Every file is checked on the way. Messages that were deleted after the backup are there again,
    those sent after it are not. A damaged backup is named, file by file, and ends with status 1.
    """
    from cluster.copies.restore import BackupDamaged
    from cluster.copies.restore import restore as restore_backup
    from cluster.keys.master_key import FILE_NAME as MASTER_KEY_FILE
    from storage.copies.manifest import BackupRefused

    try:
        made = restore_backup(backup, data)
    except BackupRefused as error:
        raise Refused(str(error)) from error
    except BackupDamaged as damage:
        for finding in damage.findings:
            click.echo(f"{backup}: {finding.path}: {finding.reason}", err=True)
        click.echo(f"nothing was restored: {damage}", err=True)
        sys.exit(_DAMAGED)
    queues = shown_queues(made.queues, made.deleted_queues)
    click.echo(f"{data}: {queues}, {len(made.files)} files, {made.size / 1e6:.1f} MB")
    if made.cluster:
        click.echo(
            "Restore it on each founding host of a new cluster, then start them with the master "
            f"key of cluster {made.cluster} and an etcd without records of the new one."
        )
    elif not made.has_master_key:
        click.echo(
            f"The backup has no {MASTER_KEY_FILE}: the service needs the one it was made with."
        )
