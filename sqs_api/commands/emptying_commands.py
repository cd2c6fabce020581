"""`holdfast fleet drain-cluster`, `remove-cluster`, `abandon`, and how far an emptied one is."""

from __future__ import annotations

from typing import Any

import click

from sqs_api.commands.operators import OperatorClient, asks, show_json
from sqs_api.commands.terminal_tables import instant, number, plain, show_table

EMPTIED = "fleet/emptied"
_HEAD = ("queue", "part", "shard", "state", "messages", "waits for")
_LOST_HEAD = ("queue", "parts", "messages", "as of")


@click.command("drain-cluster")
@click.argument("cluster", type=click.IntRange(min=1))
@click.option("--cancel", is_flag=True, help="Empty it no more; what has moved stays where it is.")
@asks
def drain_cluster(service: OperatorClient, *, cluster: int, cancel: bool, as_json: bool) -> None:
    """Move all queues of a cluster to others: it gets no new ones, and the manager moves its parts.

    It returns at once; `fleet status` shows how far it is and what it waits for.
    """
    found = service.post("fleet/drain", {"cluster": cluster, "cancel": cancel})
    if as_json:
        show_json(found)
    elif cancel:
        click.echo(f"cluster {cluster} is not emptied any more")
    else:
        show_emptied(found["clusters"])


@click.command("remove-cluster")
@click.argument("cluster", type=click.IntRange(min=1))
@asks
def remove_cluster(service: OperatorClient, *, cluster: int, as_json: bool) -> None:
    """Remove an emptied cluster from the fleet, for good.

    Refused while it has a part of a queue, a message, or one that waits for the archive. Its hosts
    stop, and do not start again. Their folders stay: usage and audit log of the requests that they
    answered lie there only.
    """
    found = service.post("fleet/remove", {"cluster": cluster})
    if as_json:
        show_json(found)
    else:
        hosts = ", ".join(map(plain, found["hosts"])) or "none"
        click.echo(f"cluster {found['number']} is removed; its hosts stop: {hosts}")


@click.command()
@click.argument("cluster", type=click.IntRange(min=1))
@click.option("--confirm", help="The name of the cluster [asked for].")
@asks
def abandon(service: OperatorClient, *, cluster: int, confirm: str | None, as_json: bool) -> None:
    """Give up a cluster whose disks are lost for good, with all messages that it had.

    Its queues answer again, with their parts in other clusters or an empty one. Prints the queues,
    and the messages that were lost as last published, every twenty seconds. Refused while
    something of the cluster answers. A host of it that comes back does not start.
    """
    if confirm is None:
        confirm = click.prompt(
            f"All messages of cluster {cluster} are given up. Type the cluster's name", err=True
        )
    found = service.post("fleet/abandon", {"cluster": cluster, "confirm": confirm})
    while found["left"]:
        more = service.post("fleet/abandon", {"cluster": cluster, "confirm": confirm})
        found = {**more, "queues": found["queues"] + more["queues"]}
    if as_json:
        show_json(found)
        return
    known = sum(each["messages"] or 0 for each in found["queues"])
    click.echo(
        f"cluster {cluster} is given up: {len(found['queues'])} queues lost parts, with "
        f"{known} messages as last published\n"
    )
    show_table(_LOST_HEAD, map(_lost_line, found["queues"]))


COMMANDS = (drain_cluster, remove_cluster, abandon)


def show_emptied(clusters: list[dict[str, Any]]) -> None:
    """Print how far each of these clusters is."""
    for each in clusters:
        click.echo(f"\ncluster {each['number']} is being emptied: {_counts(each)}")
        if each["blocked"]:
            click.echo(f"nothing moves: {plain(each['blocked'])}")
        if not each["stays"]:
            click.echo(f"nothing is left: `holdfast fleet remove-cluster {each['number']}`")
        elif not (each["parts"] or each["blocked"]):
            click.echo(f"it cannot be removed yet: {plain(each['stays'])}")
        if each["parts"]:
            show_table(_HEAD, map(_line, each["parts"]))


def _counts(cluster: dict[str, Any]) -> str:
    parts = f"{cluster['to_move']} parts to move, {cluster['under_way']} under way"
    messages = "?" if cluster["messages"] is None else cluster["messages"]
    return f"{parts}, {messages} messages, {cluster['kept']} deleted queues"


def _lost_line(each: dict[str, Any]) -> tuple[str, ...]:
    messages, as_of = number(each["messages"]), instant(each["at_ms"])
    return plain(each["queue"]), str(each["parts"]), messages, as_of


def _line(each: dict[str, Any]) -> tuple[str, ...]:
    return (
        plain(each["queue"]),
        str(each["part"]),
        str(each["shard"]),
        each["state"],
        number(each["messages"]),
        plain(each["waits_for"]),
    )
