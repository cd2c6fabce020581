"""`holdfast usage`: how much each account did, and `holdfast metrics`: the metrics of its queues,
for its owner's Prometheus."""

from __future__ import annotations

import json
import sqlite3
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import click

from sqs_api.commands.command_options import CONFIG, DATA, URL, Refused, admin_client, load

if TYPE_CHECKING:
    from sqs_api.gateway.usage import UsageRow


@click.command()
@DATA
@CONFIG
@URL
@click.option("--account", help="Of this account only.")
@click.option("--since", type=click.DateTime(["%Y-%m-%d"]), help="From this day on (UTC).")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table")
def usage(
    data: Path | None,
    config_file: Path | None,
    url: str | None,
    account: str | None,
    since: datetime | None,
    form: str,
) -> None:
    """Show requests and bytes of each account and queue, by day, as of now.

    Asks the service that --url or AWS_ENDPOINT_URL names. A single host's also come from its data
    folder, with or without a service. Those of a cluster are added up over its hosts by a running
    one.
    """
    from sqs_api.gateway.usage import UsageRow
    from sqs_api.settings.config import environment

    settings = load(config_file, {"data": data})
    day = None if since is None else since.date().isoformat()
    is_named = data is None and config_file is None and environment().get("AWS_ENDPOINT_URL")
    if url is None and settings.etcd is None and not is_named:
        rows = _of_folder(settings.data, account, day)
    else:
        rows = _of_service(url, data, account, day)
    if form == "json":
        click.echo(json.dumps([row._asdict() for row in rows], indent=1))
        return
    lines = [UsageRow._fields, *([str(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        click.echo(
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        )


def _of_folder(data: Path, account: str | None, day: str | None) -> list[UsageRow]:
    """The usage in a data folder. Raises Refused."""
    from sqs_api.gateway.usage import FILE_NAME, read_usage
    from sqs_api.gateway.usage_journal import journals_in

    file = data / FILE_NAME
    if not file.exists() and not journals_in(data):
        raise Refused(f"there is no usage in {data} yet")
    try:
        return read_usage(file, account, day)
    except (sqlite3.Error, OSError) as error:
        raise Refused(f"cannot read {file}: {error}") from error


def _of_service(
    url: str | None, data: Path | None, account: str | None, day: str | None
) -> list[UsageRow]:
    """The usage that a running host shows; hosts that it cannot reach are named. Raises
    Refused."""
    from sqs_api.commands.page_client import AdminRefused
    from sqs_api.gateway.usage import UsageRow

    wanted = {name: value for name, value in (("account", account), ("since", day)) if value}
    try:
        found = admin_client(url, data).usage(urlencode(wanted))
    except AdminRefused as error:
        raise Refused(str(error)) from error
    if found["missing"]:
        missing = ", ".join(found["missing"])
        click.echo(f"holdfast: without the usage of {missing}, which do not answer", err=True)
    return [UsageRow(**row) for row in found["rows"]]


@click.command()
@DATA
@URL
def metrics(data: Path | None, url: str | None) -> None:
    """Print the metrics of the account's queues in the Prometheus text format.

    Signed with the access key that other commands use, since Prometheus signs no requests: write
    the output to a file for the textfile collector of a node exporter, once a minute. A user needs
    holdfast:ReadMetrics on the queues.
    """
    from sqs_api.commands.page_client import AdminRefused

    try:
        page = admin_client(url, data).queue_metrics()
    except AdminRefused as error:
        raise Refused(str(error)) from error
    click.echo(page, nl=False)
