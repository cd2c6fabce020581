"""`holdfast metrics`: the metrics of an account's queues, for its owner's Prometheus."""

from __future__ import annotations

from pathlib import Path

import click

from sqs_api.commands.options import DATA, URL, Refused, admin_client


@click.command()
@DATA
@URL
def metrics(data: Path | None, url: str | None) -> None:
    """Print the metrics of the account's queues in the Prometheus text format.

    Signed with the access key that other commands use, since Prometheus signs no requests: write
    the output to a file for the textfile collector of a node exporter, once a minute. A user needs
    holdfast:ReadMetrics on the queues.
    """
    from sqs_api.commands.client import AdminRefused

    try:
        page = admin_client(url, data).queue_metrics()
    except AdminRefused as error:
        raise Refused(str(error)) from error
    click.echo(page, nl=False)
