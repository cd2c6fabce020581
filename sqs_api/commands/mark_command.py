"""`holdfast mark`: marks what happens beside the service, such as deploys."""

from __future__ import annotations

import click

from sqs_api.commands.operators import OperatorClient, asks, show_json
from sqs_api.commands.terminal_tables import instant, plain, show_table


@click.command()
@click.argument("text", required=False)
@asks
def mark(service: OperatorClient, *, text: str | None, as_json: bool) -> None:
    """Mark that TEXT happened now, such as "deploy 4711": the console draws it beside failures.
    Without it, list the latest marks."""
    if text is not None:
        answer = service.post("marks", {"text": text})
        if as_json:
            show_json(answer)
        return
    found = service.get("marks")
    if as_json:
        show_json(found)
        return
    show_table(
        ("time", "by", "what"),
        ((instant(each["at_ms"]), plain(each["by"]), plain(each["text"])) for each in found),
    )
