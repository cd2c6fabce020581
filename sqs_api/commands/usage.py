"""`holdfast usage`: how much each account did."""

from __future__ import annotations

import json
import sqlite3
from datetime import datetime
from pathlib import Path

import click

from sqs_api.commands.options import CONFIG, DATA, Refused, load


@click.command()
@DATA
@CONFIG
@click.option("--account", help="Of this account only.")
@click.option("--since", type=click.DateTime(["%Y-%m-%d"]), help="From this day on (UTC).")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table")
def usage(
    data: Path | None,
    config_file: Path | None,
    account: str | None,
    since: datetime | None,
    form: str,
) -> None:
    """Show requests and bytes of each account and queue, by day, as of now."""
    from sqs_api.gateway.usage import FILE_NAME, UsageRow, read_usage
    from sqs_api.gateway.usage_journal import journals_in

    settings = load(config_file, {"data": data})
    file = settings.data / FILE_NAME
    day = None if since is None else since.date().isoformat()
    if not file.exists() and not journals_in(settings.data):
        raise Refused(f"there is no usage in {settings.data} yet")
    try:
        rows = read_usage(file, account, day)
    except (sqlite3.Error, OSError) as error:
        raise Refused(f"cannot read {file}: {error}") from error
    if form == "json":
        click.echo(json.dumps([row._asdict() for row in rows], indent=1))
        return
    lines = [UsageRow._fields, *([str(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        click.echo(
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        )
