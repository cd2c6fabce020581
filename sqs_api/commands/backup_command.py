"""`holdfast backup`: copy everything as of one point in time, from a running service or from a
folder at rest."""

from __future__ import annotations

from pathlib import Path

import click

from sqs_api.commands.command_options import URL, Refused, admin_client, load, note, shown_queues


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@URL
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Data folder. A service that runs on it makes the backup; otherwise the folder is copied.",
)
@click.option(
    "--with-master-key",
    is_flag=True,
    help="Include master.key: the backup alone then suffices to read the messages in it.",
)
def backup(target: Path, url: str | None, data: Path | None, *, with_master_key: bool) -> None:
    """Copy queues, messages and keys to the new folder TARGET, as of one point in time.

    The service writes TARGET itself, on its machine, and goes on answering. A backup on the data
    folder's own file system shares its files by hard links: it takes no time and no space, and does
    not survive that disk.
    """
    from sqs_api.settings.service_note import FILE_NAME

    target = target.absolute()
    made: dict[str, int] | None = None
    if url is not None or data is None or (data / FILE_NAME).exists():
        made = _ask_service(url, data, target, with_master_key)
    if made is None:
        made = _copy_closed(data or Path(), target, with_master_key)
    queues = shown_queues(made["queues"], made["deleted_queues"])
    click.echo(f"{target}: {queues}, {made['files']} files, {made['bytes'] / 1e6:.1f} MB")


def _ask_service(
    url: str | None, data: Path | None, target: Path, with_master_key: bool
) -> dict[str, int] | None:
    """The counts of the backup; None if the folder's service is gone. The lock on its files guards
    against a mistake."""
    from sqs_api.commands.page_client import AdminRefused, ServiceAway

    try:
        client = admin_client(url, data)
        return client.make_backup(str(target), with_master_key=with_master_key)
    except AdminRefused as error:
        if url is None and data is not None and isinstance(error, ServiceAway):
            return None
        raise Refused(str(error)) from error


def _copy_closed(data: Path, target: Path, with_master_key: bool) -> dict[str, int]:
    from cluster.clock import SystemClock
    from cluster.copies.backup import back_up_closed
    from sqs_api.settings.config import installed_version
    from storage.copies.manifest import BackupRefused

    settings = load(None, {"data": data})
    try:
        made = back_up_closed(
            data,
            target,
            version=installed_version(),
            made_at_ms=int(SystemClock().wall_s() * 1000),
            with_master_key=with_master_key,
        )
    except BackupRefused as error:
        raise Refused(str(error)) from error
    note(settings, "backup", target=str(target), with_master_key=with_master_key)
    return {
        "queues": made.queues,
        "deleted_queues": made.deleted_queues,
        "files": len(made.files),
        "bytes": made.size,
    }
