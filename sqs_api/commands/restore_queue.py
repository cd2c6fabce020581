"""`holdfast restore-queue`: what the restore window is for."""

from __future__ import annotations

import click

from sqs_api.commands.options import Refused


@click.command("restore-queue")
@click.argument("name")
@click.option(
    "--url",
    default="http://127.0.0.1:9324",
    show_default=True,
    help="Address of the service, which must be on this machine.",
)
def restore_queue(name: str, url: str) -> None:
    """Bring the latest deleted queue of this name back, within --restore-deleted-s of its deletion."""
    from sqs_api import admin_client

    if not url.startswith(("http://", "https://")):
        raise Refused("--url: must be an http:// or https:// address")
    try:
        queue = admin_client.restore_queue(url, name)
    except admin_client.AdminRefused as error:
        raise Refused(str(error)) from error
    click.echo(f"restored {name} of account {queue['account']} in {queue['region']}")
