"""`holdfast fleet`: several clusters that share queues, users and keys, and queues over several
shards; it asks a running host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sqs_api.commands import emptying_commands, plan_commands
from sqs_api.commands.cluster_command import (
    MACHINES_OF_TRIAL,
    OF_THE_TRIAL,
    PORT_OF_TRIAL,
    HostNames,
    data_of_trial,
    run_trial,
)
from sqs_api.commands.command_options import DATA, URL, Refused, admin_client, setting_flags
from sqs_api.commands.part_commands import move, parts, shrink, split
from sqs_api.commands.terminal_tables import show_table

if TYPE_CHECKING:
    from collections.abc import Iterator


@click.group()
def fleet() -> None:
    """Look after several clusters behind one endpoint, and queues in several parts."""


for command in (
    parts,
    split,
    shrink,
    move,
    *plan_commands.COMMANDS,
    *emptying_commands.COMMANDS,
):
    fleet.add_command(command)


def _ask(url: str | None, data: Path | None, method: str, page: str, content: object = None) -> Any:
    from sqs_api.commands.page_client import AdminRefused

    try:
        return admin_client(url, data).ask(method, page, content)
    except AdminRefused as error:
        raise Refused(str(error)) from error


@fleet.command()
@click.option("--json", "as_json", is_flag=True, help="Everything, as one JSON object.")
@URL
@DATA
def status(*, as_json: bool, url: str | None, data: Path | None) -> None:
    """Show the clusters and gateways of the fleet, as the asked host sees them.

    The exit status is 1 if something needs an operator: a host is away, or a shard has no leader.
    """
    found = _ask(url, data, "GET", "fleet")
    if any(each["state"] != "open" for each in found["clusters"]):
        found |= {"emptied": _ask(url, data, "GET", f"api/{emptying_commands.EMPTIED}")["clusters"]}
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        click.echo(f"fleet {found['fleet']}, as {found['host']} sees it\n")
        show_table(("cluster", "name", "hosts", "shards", "queues"), _lines(found["clusters"]))
        for gateway in found["gateways"]:
            click.echo(f"gateway {gateway['name']} {gateway['version']}")
        emptying_commands.show_emptied(found.get("emptied", []))
        for problem in found["problems"]:
            click.echo(f"problem: {problem}")
    if found["problems"]:
        raise SystemExit(1)


def _lines(clusters: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for each in clusters:
        hosts = map(_host, each["hosts"])
        led = (f"{shard['shard']} {shard['leader'] or '-'}" for shard in each["shards"])
        queues = sum(shard["queues"] for shard in each["shards"])
        yield str(each["number"]), each["name"], ", ".join(hosts), ", ".join(led), str(queues)


def _host(host: dict[str, Any]) -> str:
    zone = f" in {host['zone']}" if host.get("zone") else ""
    away = "" if host["is_alive"] else " (away)"
    return f"{host['name']}{zone}{away}"


@fleet.command("add-cluster")
@click.option("--hosts", required=True, type=HostNames(), help="Names of its hosts: d,e,f.")
@click.option(
    "--shards", type=click.IntRange(1, 16), default=3, show_default=True, help="Its shards."
)
@click.option("--name", default="", help="Its name [cluster-NUMBER].")
@URL
@DATA
def add_cluster(
    *, hosts: tuple[str, ...], shards: int, name: str, url: str | None, data: Path | None
) -> None:
    """Add a cluster of one to four hosts, which are started afterwards.

    Prints its number. Its hosts get certificates with `holdfast cluster certificates
    --cluster-number NUMBER`, by the authority of the others, and start with --cluster-number
    NUMBER, on empty folders, with the etcd and the master key of the others.
    """
    asked = {"hosts": list(hosts), "shards": shards, "name": name}
    made = _ask(url, data, "POST", "fleet/clusters", asked)
    first, count = made["first_shard"], made["shards"]
    click.echo(f"cluster {made['number']}: {made['name']}, shards {first} to {first + count - 1}")
    click.echo(f"start its hosts with --cluster-number {made['number']}")


@fleet.command("try")
@data_of_trial("holdfast-fleet")
@PORT_OF_TRIAL
@MACHINES_OF_TRIAL
def try_fleet(
    data: Path, port: int, machines: tuple[tuple[str, str, str], ...], **flags: str | None
) -> None:
    """Run two clusters of three hosts and a gateway on this machine until SIGTERM or SIGINT.

    As `holdfast cluster try`, with a second cluster. Without haproxy the endpoint is the gateway.
    """
    run_trial(data, port, machines, flags, is_fleet=True)


try_fleet.params += setting_flags(without=OF_THE_TRIAL)
