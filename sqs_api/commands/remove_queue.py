"""`holdfast delete-queue` and `purge-queue`: the same as the actions, and for protected queues with
--force."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from sqs_api.commands import command_options

_REGION = click.option("--region", help="Region [the configured one].")
_FORCE = click.option(
    "--force",
    is_flag=True,
    help="Override the tags holdfast:protect=on and holdfast:deletion-protection=on.",
)
_Command = Callable[..., None]


def _options(command: _Command) -> _Command:
    for option in (
        command_options.CONFIG,
        command_options.DATA,
        command_options.URL,
        _FORCE,
        _REGION,
        command_options.ACCOUNT,
        click.argument("name"),
    ):
        command = option(command)
    return command


@click.command("delete-queue")
@_options
def delete_queue(name: str, **given: Any) -> None:
    """Delete a queue. `restore-queue` brings it back for a while."""
    _remove("delete", name, **given)
    click.echo(f"deleted {name}")


@click.command("purge-queue")
@_options
def purge_queue(name: str, **given: Any) -> None:
    """Remove all messages of a queue. `restore-queue` brings them back for a while."""
    _remove("purge", name, **given)
    click.echo(f"purged {name}")


def _remove(
    how: str,
    name: str,
    *,
    account: str | None,
    region: str | None,
    force: bool,
    url: str | None,
    data: Path | None,
    config_file: Path | None,
) -> None:
    from sqs_api.commands.page_client import AdminRefused

    settings = command_options.load(
        config_file, {"data": data, "account": account, "region": region}
    )
    if config_file is not None and "data" in settings.model_fields_set:
        data = settings.data
    try:
        command_options.admin_client(url, data).remove_queue(
            how, settings.account, settings.region, name, force=force
        )
    except AdminRefused as error:
        raise command_options.Refused(str(error)) from error
