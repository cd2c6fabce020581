"""`holdfast redrive`: move dead letters, all or selected ones, after a dry run."""

from __future__ import annotations

import sys
from time import sleep
from typing import Any

import click

from sqs_api.commands.operators import QUEUE, Service, asks, part, show_json
from sqs_api.commands.options import Refused
from sqs_api.commands.tables import instant, number, show_table

_TO = click.option("--to", "destination", help="Queue that gets them [each message's own source].")
_SEQUENCE = click.option(
    "--sequence", "sequences", type=int, multiple=True, help="One of the selected messages."
)
_LOOK_S = 0.5


@click.group()
def redrive() -> None:
    """Plan, start, list and cancel redrives of dead letters."""


@redrive.command()
@QUEUE
@_SEQUENCE
@_TO
@asks
def plan(
    service: Service,
    *,
    queue: str,
    sequences: tuple[int, ...],
    destination: str | None,
    as_json: bool,
) -> None:
    """Show how many messages would move where, and which would stay, without moving any."""
    path = f"queues/{part(queue)}/redrives/plan"
    content = {"sequences": list(sequences) or None, "destination": destination}
    targets: dict[str, dict[str, int]] = {}
    refused: dict[str, int] = {}
    at: int | None = 0
    while at is not None:
        step = service.post(path, {**content, "from_sequence": at})
        for arn, planned in step["targets"].items():
            known = targets.setdefault(arn, {"messages": 0, "bytes": 0})
            for name in known:
                known[name] += planned[name]
        for reason, messages in step["refused"].items():
            refused[reason] = refused.get(reason, 0) + messages
        at = step["next"]
    if as_json:
        show_json({"targets": targets, "refused": refused})
        return
    lines = [
        (arn.rpartition(":")[2], str(each["messages"]), str(each["bytes"]), "")
        for arn, each in targets.items()
    ]
    lines += [("(stay)", str(messages), "", reason) for reason, messages in refused.items()]
    show_table(("to", "messages", "bytes", "reason"), lines)


@redrive.command()
@QUEUE
@click.option("--all", "takes_all", is_flag=True, help="All messages of QUEUE.")
@_SEQUENCE
@_TO
@click.option("--rate", type=click.IntRange(1, 500), help="Messages a second.")
@click.option("--wait", is_flag=True, help="Show the progress until it ends.")
@asks
def start(
    service: Service,
    *,
    queue: str,
    takes_all: bool,
    sequences: tuple[int, ...],
    destination: str | None,
    rate: int | None,
    wait: bool,
    as_json: bool,
) -> None:
    """Begin to move the messages of QUEUE to their sources, or to another queue."""
    if takes_all == bool(sequences):
        raise Refused("name messages with --sequence, or all of them with --all")
    content = {"sequences": list(sequences) or None, "destination": destination, "rate": rate}
    answer = service.post(f"queues/{part(queue)}/redrives", content)
    if wait:
        answer = {**_watch(service, queue), "handle": answer["handle"]}
    if as_json:
        show_json(answer)
    elif wait:
        click.echo(f"{answer['status']}: moved {answer['moved']} of {answer['to_move']}")
    else:
        click.echo(f"started; cancel it with: holdfast redrive cancel {queue}")


def _watch(service: Service, queue: str) -> dict[str, Any]:
    """The latest redrive, once it has ended."""
    latest = _latest(service, queue)
    with click.progressbar(length=latest["to_move"] or 1, label=queue, file=sys.stderr) as bar:
        while latest["status"] in ("RUNNING", "CANCELLING"):
            bar.update(latest["moved"] - bar.pos)
            sleep(_LOOK_S)
            latest = _latest(service, queue)
        bar.update(latest["moved"] - bar.pos)
    return latest


def _latest(service: Service, queue: str) -> dict[str, Any]:
    latest: dict[str, Any] = service.get(f"queues/{part(queue)}/redrives")["redrives"][0]
    return latest


@redrive.command("list")
@QUEUE
@asks
def list_redrives(service: Service, *, queue: str, as_json: bool) -> None:
    """List the latest redrives of QUEUE, newest first; also those that other clients started."""
    found = service.get(f"queues/{part(queue)}/redrives")["redrives"]
    if as_json:
        show_json(found)
        return
    lines = [
        (
            instant(task["started_at_ms"]),
            task["status"],
            f"{number(task['moved'])} of {number(task['to_move'])}",
            (task["destination_arn"] or "each to its source").rpartition(":")[2],
            str(task["rate"] or ""),
            task["failure"] or "",
        )
        for task in found
    ]
    show_table(("started", "status", "moved", "to", "rate", "failure"), lines)


@redrive.command()
@QUEUE
@asks
def cancel(service: Service, *, queue: str, as_json: bool) -> None:
    """Cancel the running redrive of QUEUE."""
    found = service.get(f"queues/{part(queue)}/redrives")["redrives"]
    running = [task for task in found if task["handle"]]
    if not running:
        raise Refused(f"no redrive of {queue} is running")
    path = f"queues/{part(queue)}/redrives/cancel"
    answer = service.post(path, {"handle": running[0]["handle"]})
    if as_json:
        show_json(answer)
    else:
        click.echo(f"cancelled after {answer['moved']} messages")
