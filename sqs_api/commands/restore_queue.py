"""`holdfast restore-queue`: undo the deletion or the purge of a queue."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from sqs_api.commands.command_options import AS_JSON, DATA, URL, Refused, admin_client
from sqs_api.commands.terminal_tables import json_text
from visibility.contract.naming import is_account


@click.command("restore-queue")
@click.argument("name", required=False)
@click.option("--list", "lists", is_flag=True, help="Show what can be restored.")
@AS_JSON
@click.option("--account", help="Account, 12 digits [any, if only one has such a queue].")
@click.option("--region", help="Region [any, if only one has such a queue].")
@URL
@DATA
def restore_queue(
    name: str | None,
    *,
    lists: bool,
    as_json: bool,
    account: str | None,
    region: str | None,
    url: str | None,
    data: Path | None,
) -> None:
    """Undo the latest deletion or purge of a queue, within --restore-deleted-s of it.

    Messages of a purged queue queue up behind those that came since.
    """
    from sqs_api.commands.page_client import AdminRefused

    if (name is None) is not lists:
        raise Refused("give the name of a queue, or --list")
    if as_json and not lists:
        raise Refused("--json: is for --list")
    if account is not None and not is_account(account):
        raise Refused("--account: must be 12 digits")
    client = admin_client(url, data)
    try:
        if as_json:
            click.echo(json_text(client.deleted_queues(), indent=1))
            return
        if name is None:
            for kept in client.deleted_queues():
                click.echo(_line(kept))
            return
        kept = client.restore_queue(name, account, region)
    except AdminRefused as error:
        raise Refused(str(error)) from error
    what = f"{kept['messages']} messages of {name}" if kept["purged"] else name
    where = f"of account {kept['account']} in {kept['region']}"
    click.echo(f"restored {what} {where}{_rescued(kept)}")
    if kept["left"]:
        click.echo(f"{kept['left']} of them follow; `holdfast restore-queue --list` shows how many")


def _line(kept: dict[str, Any]) -> str:
    how = "purged" if kept["purged"] else "deleted"
    at, until = (_time(kept[name]) for name in ("deleted_at_ms", "restorable_until_ms"))
    place = f"account {kept['account']} in {kept['region']}"
    messages = f"{kept['messages']} messages{_rescued(kept)}"
    lasts = f"until {until}" if kept["obstacle"] is None else "cannot be restored"
    lasts = "left to be restored" if kept["restoring"] else lasts
    reason = "" if kept["obstacle"] is None else f": {kept['obstacle']}"
    return f"{kept['name']}  {how} {at}, {messages}, {lasts}, {place}{reason}"


def _rescued(kept: dict[str, Any]) -> str:
    """The number of messages that a restore does not bring back."""
    letters = kept["dead_letters"]
    return f", {letters} in its dead-letter queue" if letters else ""


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
