"""Commands on a data folder that need no service: `holdfast verify`, `salvage`, `convert` and
`restore`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from sqs_api.commands.command_options import Failed, Refused, load, shown_queues

_FOUND = 1
"""Status of a command that names damage or what is missing."""

_NEW_DATA = click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder to make; it must not exist or be empty.",
)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
def verify(folder: Path) -> None:
    """Say what is damaged in FOLDER, a data folder or a backup, one finding a line.

    Ends with status 0 if all is sound, with 1 if not, with 3 if a disk takes no writes so that not
    all could be read. Changes nothing, and may run beside the
    service.
    """
    from cluster.copies.verify import FolderCheck
    from storage.files.folder import FolderRefused

    findings = 0
    try:
        check = FolderCheck(folder)
        for finding in check.findings():
            findings += 1
            click.echo(finding)
    except FolderRefused as error:
        raise Refused(str(error)) from error
    queues = shown_queues(check.queues, check.deleted_queues)
    if check.lacks_records:
        queues = "queues and keys are in etcd and were not compared"
    click.echo(
        f"{folder}: {check.shards} shards, {queues}, {check.rows} rows"
        f"{f', {check.files} files' if check.files else ''}; {findings or 'nothing'} found"
    )
    sys.exit(_FOUND if findings else 0)


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@_NEW_DATA
def salvage(source: Path, data: Path) -> None:
    """Copy all that can be read of SOURCE, a damaged data folder, to a new one to start the service
    on.

    SOURCE is not changed, and no service may use it. Says what is missing, by queue, and ends with
    status 1 if anything is.
    """
    from cluster.copies.salvage import SalvageRefused
    from cluster.copies.salvage import salvage as salvage_folder

    try:
        done = salvage_folder(source, data)
    except SalvageRefused as error:
        raise Refused(str(error)) from error
    for finding in done.findings:
        click.echo(finding)
    archived = f", {done.archived} of the archive" if done.archived else ""
    click.echo(
        f"{data}: {done.queues} queues with rows, {done.messages} messages{archived}; "
        f"{done.missing or 'none'} known to be missing"
    )
    sys.exit(_FOUND if done.findings else 0)


@click.command()
@click.argument("data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Go on where a part of the old log is damaged or missing.",
)
def convert(data: Path, accept_loss: bool) -> None:
    """Convert DATA, a data folder of format 3 that no service uses, to the format of this version.

    Needs little space: files that never change are shared with the old folders, which stay as a
    backup. It may be interrupted at any time and run again; the old version opens the folder until
    the last step.
    """
    from storage.copies.convert import convert as convert_folder
    from storage.engines.store import StoreFailed
    from storage.files.folder import FolderRefused

    try:
        kept = convert_folder(data, accepts_loss=accept_loss)
    except FolderRefused as error:
        raise Refused(str(error)) from error
    except (StoreFailed, OSError) as error:
        raise Failed(f"nothing was converted: {error}") from error
    click.echo(f"{data} has format 4 now. What it had before is kept as a backup:")
    for file in kept:
        click.echo(f"    {file}")
    click.echo("Remove these once the service has run on the new files.")


@click.command()
@click.argument("backup", type=click.Path(path_type=Path))
@_NEW_DATA
@click.option(
    "--fleet",
    is_flag=True,
    help="BACKUP is of a fleet: make a data folder of the cluster of --cluster-number.",
)
@click.option("--cluster-number", type=click.IntRange(min=1), help="A cluster of the fleet.")
@click.option(
    "--single", is_flag=True, help="Make a single host of a cluster's backup; needs its master key."
)
@click.option(
    "--master-key-file",
    type=click.Path(path_type=Path),
    help="The cluster's master key, with --single [HOLDFAST_MASTER_KEY].",
)
def restore(
    backup: Path,
    data: Path,
    *,
    fleet: bool,
    cluster_number: int | None,
    single: bool,
    master_key_file: Path | None,
) -> None:
    """Make a data folder as it was when BACKUP was made, to start the service on. A cluster's
    backup becomes a new cluster: restore it on each of its founding hosts. With --single it becomes
    a single host, with all that the cluster had. A fleet's backup becomes a new fleet: restore it
    with --fleet on each host.

    Every file is checked on the way. Messages that were deleted after the backup are there again,
    those sent after it are not. A damaged backup is named, file by file, and ends with status 1.
    """
    from cluster.copies.restore import BackupDamaged
    from cluster.copies.restore import restore as restore_backup
    from cluster.keys.master_key import FILE_NAME as MASTER_KEY_FILE
    from storage.copies.manifest import BackupRefused

    if fleet != (cluster_number is not None) or (fleet and single):
        raise Refused("--fleet: goes with --cluster-number, and not with --single")
    master = _cluster_master_key(master_key_file) if single else None
    backup = backup / f"cluster-{cluster_number}" if fleet else backup
    try:
        made = restore_backup(backup, data, master, number=cluster_number or 0)
    except BackupRefused as error:
        raise Refused(str(error)) from error
    except BackupDamaged as damage:
        for finding in damage.findings:
            click.echo(f"{backup}: {finding.path}: {finding.reason}", err=True)
        click.echo(f"nothing was restored: {damage}", err=True)
        sys.exit(_FOUND)
    queues = shown_queues(made.queues, made.deleted_queues)
    click.echo(f"{data}: {queues}, {len(made.files)} files, {made.size / 1e6:.1f} MB")
    if single:
        click.echo(f"Start it with the master key of cluster {made.cluster} and no etcd.")
    elif made.fleet:
        click.echo(
            f"Restore it on each host of cluster {made.cluster_number}, and the parts of all other "
            "clusters on theirs. Start them with --cluster-hosts, the master key of fleet "
            f"{made.cluster} and an etcd without records of it; the others wait for cluster 1."
        )
    elif made.cluster:
        click.echo(
            "Restore it on each founding host of a new cluster, then start them with the master "
            f"key of cluster {made.cluster} and an etcd without records of the new one. For a "
            "single host restore it with --single."
        )
    elif not made.has_master_key:
        click.echo(
            f"The backup has no {MASTER_KEY_FILE}: the service needs the one it was made with."
        )


def _cluster_master_key(file: Path | None) -> bytes:
    """The master key that was given. Raises Refused."""
    from cluster.keys.master_key import KeysUnusable
    from sqs_api.settings.key_stores import given_master_key

    try:
        master = given_master_key(load(None, {"master_key_file": file}))
    except KeysUnusable as error:
        raise Refused(str(error)) from error
    if master is None:
        raise Refused(
            "--single: needs the cluster's master key, by --master-key-file or HOLDFAST_MASTER_KEY"
        )
    return master
