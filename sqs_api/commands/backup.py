"""`holdfast backup`: copy everything as of one point in time, from a running service or from a folder at rest."""

from __future__ import annotations

from pathlib import Path

import click

from sqs_api.commands.options import Refused


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--url",
    default="http://127.0.0.1:9324",
    show_default=True,
    help="Address of the running service, which must be on this machine and writes TARGET itself.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Data folder of a service that does not run: it is copied without one.",
)
@click.option(
    "--with-master-key",
    is_flag=True,
    help="Put master.key in too: whoever has the backup can then read what is encrypted in it.",
)
def backup(target: Path, url: str, data: Path | None, *, with_master_key: bool) -> None:
    """Copy queues, messages and keys to the new folder TARGET, as of one point in time.

    Requests are answered meanwhile. A backup on the data folder's own file system shares its files by hard links: it takes
    no time and no space, and does not survive that disk.
    """
    target = target.absolute()
    if data is None:
        made = _ask_service(url, target, with_master_key)
    else:
        made = _copy_closed(data, target, with_master_key)
    click.echo(
        f"{target}: {made['queues']} queues, {made['files']} files, {made['bytes'] / 1e6:.1f} MB"
    )


def _ask_service(url: str, target: Path, with_master_key: bool) -> dict[str, int]:
    from sqs_api import admin_client

    if not url.startswith(("http://", "https://")):
        raise Refused("--url: must be an http:// or https:// address")
    try:
        return admin_client.make_backup(url, str(target), with_master_key=with_master_key)
    except admin_client.AdminRefused as error:
        raise Refused(str(error)) from error


def _copy_closed(data: Path, target: Path, with_master_key: bool) -> dict[str, int]:
    from importlib import metadata

    from cluster.backup import back_up_closed
    from cluster.clock import SystemClock
    from storage.manifest import BackupRefused

    try:
        made = back_up_closed(
            data,
            target,
            version=metadata.version("holdfast"),
            made_at_ms=int(SystemClock().wall_s() * 1000),
            with_master_key=with_master_key,
        )
    except BackupRefused as error:
        raise Refused(str(error)) from error
    return {"queues": made.queues, "files": len(made.files), "bytes": made.size}
