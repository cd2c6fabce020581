"""`holdfast fleet parts`, `split`, `shrink` and `move`: the parts of a queue."""

from __future__ import annotations

from typing import Any

import click

from sqs_api.commands.operators import QUEUE, OperatorClient, asks, part, show_json
from sqs_api.commands.terminal_tables import number, plain, show_table

_HEAD = ("part", "shard", "state", "visible", "in flight", "delayed", "waits for")
_PARTS = "Parts that take messages afterwards."


@click.command()
@QUEUE
@asks
def parts(service: OperatorClient, *, queue: str, as_json: bool) -> None:
    """Show the parts of a queue, and what keeps those that drain."""
    _show(service.get(f"queues/{part(queue)}/parts"), as_json=as_json)


@click.command()
@QUEUE
@click.option("--parts", "count", type=int, required=True, help=_PARTS)
@asks
def split(service: OperatorClient, *, queue: str, count: int, as_json: bool) -> None:
    """Keep a queue in more parts, each on the shard with the fewest."""
    _show(service.post(f"queues/{part(queue)}/parts/split", {"parts": count}), as_json=as_json)


@click.command()
@QUEUE
@click.option("--parts", "count", type=int, default=1, show_default=True, help=_PARTS)
@asks
def shrink(service: OperatorClient, *, queue: str, count: int, as_json: bool) -> None:
    """Keep a queue in fewer parts. The messages of the others go to these."""
    _show(service.post(f"queues/{part(queue)}/parts/shrink", {"parts": count}), as_json=as_json)


@click.command()
@QUEUE
@click.option("--shard", type=click.IntRange(min=0), required=True, help="The shard to move to.")
@click.option("--part", "number_of_part", type=int, help="The part to move, of a split queue.")
@asks
def move(
    service: OperatorClient, *, queue: str, shard: int, number_of_part: int | None, as_json: bool
) -> None:
    """Move a standard queue, or one of its parts, to another shard, also of another cluster."""
    place = {"shard": shard, "part": number_of_part}
    _show(service.post(f"queues/{part(queue)}/parts/move", place), as_json=as_json)


def _show(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        show_json(found)
    else:
        show_table(_HEAD, map(_line, found["parts"]))


def _line(shown: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"{shown['number']} (home)" if shown["home"] else str(shown["number"]),
        str(shown["shard"]),
        shown["state"],
        number(shown["visible"]),
        number(shown["in_flight"]),
        number(shown["delayed"]),
        plain(shown["waits_for"]),
    )
