"""`holdfast archive`: the archive of a running service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from sqs_api.commands.archived import replay, search, show
from sqs_api.commands.command_options import CONFIG, DATA, URL, Refused, admin_client, load
from sqs_api.commands.tables import plain, show_table

_HEAD = ("shard", "source", "sealed", "archived", "waiting", "bytes", "between shards")
_NAMES = ("shard", "source", "sealed", "archived", "messages", "bytes", "outbox")


@click.group()
def archive() -> None:
    """See how far the archive is; search it, and send archived messages again."""


for each in (search, show, replay):
    archive.add_command(each)


@archive.command()
@click.option("--json", "as_json", is_flag=True, help="The whole answer as JSON.")
@URL
@DATA
@CONFIG
def status(url: str | None, data: Path | None, config_file: Path | None, *, as_json: bool) -> None:
    """Show each shard's latest batch that is in the lake (sealed) and in the archive's table
    (archived), and the messages that wait for these."""
    from sqs_api.commands.page_client import AdminRefused

    settings = load(config_file, {"data": data})
    if config_file is not None and "data" in settings.model_fields_set:
        data = settings.data
    try:
        found: dict[str, Any] = admin_client(url, data).ask("GET", "archive")
    except AdminRefused as error:
        raise Refused(str(error)) from error
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    click.echo(f"lake: {plain(found['lake'])}")
    show_table(_HEAD, [[str(shard[name]) for name in _NAMES] for shard in found["shards"]])
