"""`holdfast queues`: the queues of a running service."""

from __future__ import annotations

from typing import Any

import click

from sqs_api.commands.operators import QUEUE, OperatorClient, asks, part, show_json
from sqs_api.commands.tables import number, plain, show_table, span

_SORTS = ("name", "visible", "in_flight", "delayed", "oldest", "expires")
_HEAD = ("queue", "visible", "in flight", "delayed", "oldest", "lost in", "dead letters")


@click.group()
def queues() -> None:
    """List queues and their dead letters."""


@queues.command("list")
@click.option("--search", help="A part of their names.")
@click.option("--sort", type=click.Choice(_SORTS), default="name", show_default=True)
@click.option("--dead-letters", is_flag=True, help="Dead-letter queues, the worst first.")
@asks
def list_queues(
    service: OperatorClient, *, search: str | None, sort: str, dead_letters: bool, as_json: bool
) -> None:
    """List the queues with their counters and ages."""
    path = "dead-letters" if dead_letters else "queues"
    more = {} if dead_letters else {"sort": sort}
    found = list(service.pages(path, "queues", "after", search=search, limit=500, **more))
    if as_json:
        show_json(found)
        return
    show_table(_HEAD, map(_line, found))


def _line(queue: dict[str, Any]) -> tuple[str, ...]:
    has_messages = any(queue[name] for name in ("visible", "in_flight", "delayed"))
    links = [f"of {', '.join(queue['sources'])}"] if queue["sources"] else []
    if queue["dead_letter_queue"]:
        links.append(f"to {queue['dead_letter_queue']['name']}")
    return (
        queue["name"],
        number(queue["visible"]),
        number(queue["in_flight"]),
        number(queue["delayed"]),
        span(queue["oldest_age_s"]),
        span(queue["expires_in_s"]) if has_messages else "",
        "; ".join(links),
    )


@queues.command()
@QUEUE
@asks
def show(service: OperatorClient, *, queue: str, as_json: bool) -> None:
    """Show one queue: counters, attributes, tags, dead letters, the latest redrive."""
    found = service.get(f"queues/{part(queue)}")
    if as_json:
        show_json(found)
        return
    show_table(_HEAD, [_line(found)])
    if found["task"]:
        task = found["task"]
        click.echo(f"\nlatest redrive: {task['status']}, {task['moved']} of {task['to_move']}")
    meanings = {row["key"]: row["meaning"] for row in found["own_tags"]}
    for title in ("attributes", "tags"):
        if found[title]:
            click.echo()
            lines = [
                (plain(name), plain(text), meanings.get(name, ""))
                for name, text in found[title].items()
            ]
            show_table((title, "", ""), lines)
    if found["policy_without_effect"]:
        labels = plain(", ".join(found["policy_without_effect"]))
        click.echo(
            "\nwarning: these statements of the policy have no effect, since their Resource is "
            f"not this queue: {labels}"
        )
