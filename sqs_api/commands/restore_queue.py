"""`holdfast restore-queue`: what the restore window is for."""

from __future__ import annotations

from pathlib import Path

import click

from sqs_api.commands.options import DATA, URL, Refused, admin_client


@click.command("restore-queue")
@click.argument("name")
@URL
@DATA
def restore_queue(name: str, url: str | None, data: Path | None) -> None:
    """Bring the latest deleted queue of this name back, within --restore-deleted-s of its deletion."""
    from sqs_api.admin_client import AdminRefused

    try:
        queue = admin_client(url, data).restore_queue(name)
    except AdminRefused as error:
        raise Refused(str(error)) from error
    click.echo(f"restored {name} of account {queue['account']} in {queue['region']}")
