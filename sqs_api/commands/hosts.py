"""`holdfast cluster status`, `drain`, `undrain`, `remove` and `upgrade`, which ask a running
host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from sqs_api.commands.options import DATA, URL, Refused, admin_client
from sqs_api.commands.tables import show_table


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Everything, as one JSON object.")
@URL
@DATA
def status(*, as_json: bool, url: str | None, data: Path | None) -> None:
    """Show the hosts, shards and etcd of the cluster, as the asked host sees them.

    The exit status is 1 if something needs an operator: a host or a majority of etcd is away, a
    shard has no leader, a copy is damaged or far behind, etcd raises an alarm or is nearly full.
    """
    from sqs_api.commands.client import AdminRefused

    try:
        found = admin_client(url, data).cluster()
    except AdminRefused as error:
        raise Refused(str(error)) from error
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        _show(found)
    if found["problems"]:
        raise SystemExit(1)


def _show(found: dict[str, Any]) -> None:
    click.echo(f"cluster {found['cluster']}, as host {found['host']} sees it\n")
    show_table(("host", "address", "version", "state"), map(_host_line, found["hosts"]))
    click.echo()
    lines = [line for shard in found["shards"] for line in _shard_lines(shard)]
    show_table(("shard", "term", "host", "role", "entries behind"), lines)
    click.echo()
    show_table(("etcd", "version", "role", "database", "alarms"), map(_etcd_line, found["etcd"]))
    if found.get("formats", 1) < min(host.get("formats", 1) for host in found["hosts"]):
        click.echo("all hosts read newer formats: `holdfast cluster upgrade` has them written")
    for problem in found["problems"]:
        click.echo(f"problem: {problem}")


def _host_line(host: dict[str, Any]) -> tuple[str, ...]:
    states = ["runs" if host["is_alive"] else "away"]
    if host["is_alive"] and not host["is_reached"]:
        states.append("not reached")
    if host["is_drained"]:
        states.append("drained")
    if host.get("replication") == "async":
        states.append("async")
    return host["name"], host["peer_address"], host["version"], ", ".join(states)


def _shard_lines(shard: dict[str, Any]) -> list[tuple[str, ...]]:
    """A line for each copy, also for those of voters that were not reached."""
    number, term = str(shard["shard"]), str(shard["term"])
    lines: list[tuple[str, ...]] = []
    for copy in shard["replicas"]:
        role = copy["role"] if copy["is_voter"] else f"{copy['role']}, does not count yet"
        role = f"{role}, damaged" if copy["damage"] else role
        lag = "needs a checkpoint" if copy["needs_checkpoint"] else str(copy["behind"])
        lines.append((number, term, copy["host"], role, lag))
    reached = {copy["host"] for copy in shard["replicas"]}
    lines += [
        (number, term, host, "not reached", "") for host in shard["voters"] if host not in reached
    ]
    return lines


def _etcd_line(member: dict[str, Any]) -> tuple[str, ...]:
    if not member["is_reached"]:
        return member["endpoint"], "", "not reached", "", ""
    role = "leader" if member["is_leader"] else "follower"
    role = role if member["has_leader"] else "sees no leader"
    used = f"{member['database_bytes'] / (1 << 20):.1f}"
    quota = f"{member['quota_bytes'] >> 20} MiB" if member["quota_bytes"] else "an unknown quota"
    alarms = ", ".join(member["alarms"])
    return member["endpoint"], member["version"], role, f"{used} of {quota}", alarms


@click.command()
@click.argument("host")
@URL
@DATA
def drain(host: str, url: str | None, data: Path | None) -> None:
    """Have HOST hand over all shards that it leads, and lead none from now on.

    It goes on to keep its copies. Stop it, or remove it, once `status` shows others as leaders.
    """
    _ask(url, data, host, drained=True)


@click.command()
@click.argument("host")
@URL
@DATA
def undrain(host: str, url: str | None, data: Path | None) -> None:
    """Let HOST lead shards again."""
    _ask(url, data, host, drained=False)


def _ask(url: str | None, data: Path | None, host: str, *, drained: bool) -> None:
    from sqs_api.commands.client import AdminRefused

    try:
        admin_client(url, data).drain_host(host, drained=drained)
    except AdminRefused as error:
        raise Refused(str(error)) from error
    said = "is drained: its shards move to other hosts" if drained else "may lead shards again"
    click.echo(f"host {host} {said}")


@click.command()
@click.argument("host")
@URL
@DATA
def remove(host: str, url: str | None, data: Path | None) -> None:
    """Take HOST out of the cluster: its copies do not count any more.

    For a host that is gone for good, or drained. It may come back with an empty data folder only.
    """
    from sqs_api.commands.client import AdminRefused

    try:
        admin_client(url, data).remove_host(host)
    except AdminRefused as error:
        raise Refused(str(error)) from error
    click.echo(f"host {host} is removed")


@click.command()
@URL
@DATA
def upgrade(url: str | None, data: Path | None) -> None:
    """Have the cluster write the newest formats that all hosts read, after a rolling upgrade.

    From then on no host of an earlier version can be started.
    """
    from sqs_api.commands.client import AdminRefused

    try:
        formats = admin_client(url, data).raise_formats()
    except AdminRefused as error:
        raise Refused(str(error)) from error
    click.echo(f"the cluster writes formats {formats}")
