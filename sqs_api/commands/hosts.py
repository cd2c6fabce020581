"""`holdfast cluster status`, `drain`, `undrain`, `remove`, `wait` and `upgrade`: they ask a running
host."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sqs_api.commands.command_options import DATA, URL, Lifetime, Refused, admin_client
from sqs_api.commands.terminal_tables import show_table

if TYPE_CHECKING:
    from sqs_api.commands.page_client import AdminClient

_NOT_IN_TIME = 4
"""Exit status of a wait whose time is over."""
_LOOK_S = 0.5
TIMEOUT = click.option(
    "--timeout", type=Lifetime(), help="Wait no longer than this: 90s, 15m, 1h [no limit]."
)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Everything, as one JSON object.")
@URL
@DATA
def status(*, as_json: bool, url: str | None, data: Path | None) -> None:
    """Show the hosts, shards and etcd of the cluster, as the asked host sees them.

    The exit status is 1 if something needs an operator: a host or a majority of etcd is away, a
    shard has no leader, a copy is damaged or far behind, etcd raises an alarm or is nearly full.
    """
    from sqs_api.commands.page_client import AdminRefused

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
    show_table(("host", "zone", "address", "version", "state"), map(_host_line, found["hosts"]))
    click.echo()
    lines = [line for shard in found["shards"] for line in _shard_lines(shard)]
    show_table(("shard", "term", "host", "role", "entries behind"), lines)
    click.echo()
    show_table(("etcd", "version", "role", "database", "alarms"), map(_etcd_line, found["etcd"]))
    if found.get("formats", 1) < min(host.get("formats", 1) for host in found["hosts"]):
        click.echo("all hosts read newer formats: `holdfast cluster upgrade` has them written")
    for shard in found["shards"]:
        if shard["change"]:
            click.echo(f"change of voters: shard {shard['shard']}: {shard['change']}")
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
    return (
        host["name"],
        host.get("zone", ""),
        host["peer_address"],
        host["version"],
        ", ".join(states),
    )


def _shard_lines(shard: dict[str, Any]) -> list[tuple[str, ...]]:
    """A line for each copy, also for those of voters that were not reached."""
    number, term = str(shard["shard"]), str(shard["term"])
    lines: list[tuple[str, ...]] = []
    for copy in shard["replicas"]:
        role = copy["role"] if copy["is_voter"] else f"{copy['role']}, does not count yet"
        role = f"{role}, damaged" if copy["damage"] else role
        role = f"{role}, in conflict" if copy["conflict"] else role
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
    from sqs_api.commands.page_client import AdminRefused

    try:
        admin_client(url, data).drain_host(host, drained=drained)
    except AdminRefused as error:
        raise Refused(str(error)) from error
    said = "is drained: its shards move to other hosts" if drained else "may lead shards again"
    click.echo(f"host {host} {said}")


@click.command()
@click.argument("host")
@TIMEOUT
@URL
@DATA
def remove(host: str, timeout: float | None, url: str | None, data: Path | None) -> None:
    """Take HOST out of the cluster, and wait until no shard counts its copy any more.

    For a host that is gone for good, or drained. It may come back with an empty data folder only.
    No other host may be lost before the command has ended. It can be interrupted, and called again:
    then it waits for what is left.

    The exit status is 4 if the shards have not all changed within the timeout.
    """
    from sqs_api.commands.page_client import AdminRefused

    client = admin_client(url, data)
    try:
        client.remove_host(host)
    except AdminRefused as error:
        raise Refused(str(error)) from error
    repeat = f"the cluster goes on with it: `holdfast cluster remove {host}` waits for the rest"
    _wait(client, _that_change, timeout, f"host {host} still counts; {repeat}")
    click.echo(f"host {host} is removed")


def _that_change(status: dict[str, Any]) -> list[str]:
    """The shards whose voters change, or may: only a leader knows that they do not."""
    lines = []
    for shard in status["shards"]:
        leads = any(copy["role"] == "leader" for copy in shard["replicas"])
        reason = shard["change"] or ("" if leads else "it has no leader that is reached")
        lines += [f"shard {shard['shard']}: {reason}"] if reason else []
    return lines


@click.command()
@click.argument("host")
@TIMEOUT
@URL
@DATA
def wait(host: str, timeout: float | None, url: str | None, data: Path | None) -> None:
    """Wait until HOST, which has just joined, counts: its copies of all shards are voters.

    From then on another host may be removed, or lost.

    The exit status is 4 if it does not count within the timeout.
    """
    missing = partial(_that_do_not_count, host)
    _wait(admin_client(url, data), missing, timeout, f"host {host} does not count yet")
    click.echo(f"host {host} counts in all shards")


def _that_do_not_count(host: str, status: dict[str, Any]) -> list[str]:
    found = next((each for each in status["hosts"] if each["name"] == host), None)
    if found is None:
        return [f"host {host} is no member"]
    if not found["is_reached"]:
        return [f"host {host} is not reached"]
    lines = []
    for shard in status["shards"]:
        copy = next((each for each in shard["replicas"] if each["host"] == host), None)
        reason = "its copy is not there yet" if copy is None else _why_not(copy) or shard["change"]
        lines += [f"shard {shard['shard']}: {reason}"] if reason else []
    return lines


def _why_not(copy: dict[str, Any]) -> str:
    """The reason why a copy does not count; empty if it does."""
    if copy["conflict"]:
        return "its copy has entries that the others lost, see `holdfast cluster status`"
    if copy["damage"]:
        return "its copy is damaged and fetches sound rows"
    if copy["needs_checkpoint"]:
        return "its copy fetches a checkpoint"
    return "" if copy["is_voter"] else "its copy does not count yet"


def _wait(
    client: AdminClient,
    missing: Callable[[dict[str, Any]], list[str]],
    timeout_s: float | None,
    unfinished: str,
) -> None:
    """Wait until nothing is missing in the status, and show what is each time that it changes.

    `unfinished` is said where the wait ends before.
    """
    from cluster.clock import SystemClock

    clock = SystemClock()
    end_s = float("inf") if timeout_s is None else clock.monotonic_s() + timeout_s
    shown: list[str] = []
    try:
        while lines := _missing_now(client, missing):
            for line in lines:
                if line not in shown:
                    click.echo(f"waits: {line}")
            shown = lines
            if clock.monotonic_s() >= end_s:
                click.echo(f"holdfast: {unfinished}", err=True)
                raise SystemExit(_NOT_IN_TIME)
            time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        click.echo(f"holdfast: {unfinished}", err=True)
        raise click.Abort from None


def _missing_now(client: AdminClient, missing: Callable[[dict[str, Any]], list[str]]) -> list[str]:
    """The lines of the present status. No answer is one of them: behind a balancer the host that
    was asked may be the removed one. Raises Refused."""
    from sqs_api.commands.page_client import AdminRefused, NoAnswer

    try:
        return missing(client.cluster())
    except NoAnswer as error:
        return [str(error)]
    except AdminRefused as error:
        raise Refused(str(error)) from error


@click.command()
@URL
@DATA
def upgrade(url: str | None, data: Path | None) -> None:
    """Have the cluster write the newest formats that all hosts read, after a rolling upgrade.

    From then on no host of an earlier version can be started.
    """
    from sqs_api.commands.page_client import AdminRefused

    try:
        formats = admin_client(url, data).raise_formats()
    except AdminRefused as error:
        raise Refused(str(error)) from error
    click.echo(f"the cluster writes formats {formats}")
