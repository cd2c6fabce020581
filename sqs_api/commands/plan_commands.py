"""`holdfast fleet plan`, `apply`, `undo`, `pause` and `resume`: the manager of a fleet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import click

from sqs_api.commands.operators import OperatorClient, asks, show_json
from sqs_api.commands.terminal_tables import plain, show_table

_PLAN = "fleet/plan"


@click.command()
@click.option("--history", is_flag=True, help="Also the decisions and refusals of the past.")
@asks
def plan(service: OperatorClient, *, history: bool, as_json: bool) -> None:
    """Show the loads of clusters and what the manager would do, did, and refused, and why."""
    found = service.get(_PLAN)
    if as_json:
        show_json(found)
        return
    click.echo(_about(found) + "\n")
    show_table(("cluster", "name", "load", "hosts", "shards (leader, load)"), _clusters(found))
    _list("changes", ("id", "kind", "queue", "places", "reason"), _changes(found["changes"]))
    _list("refused", ("kind", "of", "reason"), _notes(found["refusals"]))
    _list("warnings", ("of", "reason"), (note[1:] for note in _notes(found["warnings"])))
    _list("made", ("id", "time", "by", "kind", "queue", "places", "reason"), _made(found["made"]))
    if history:
        _list("history", ("time", "what", "kind", "of", "reason"), _history(found["history"]))


@click.command()
@click.argument("change")
@asks
def apply(service: OperatorClient, *, change: str, as_json: bool) -> None:
    """Make one change of the plan now, by its id."""
    _show_made(service.post(f"{_PLAN}/apply", {"id": change}), as_json=as_json)


@click.command()
@click.argument("change", default="")
@asks
def undo(service: OperatorClient, *, change: str, as_json: bool) -> None:
    """Undo a change of the last hour, by its id, or the last one.

    That is a new change: parts that were added drain, for those that drain new ones are added, and
    a part that moved moves back.
    """
    _show_made(service.post(f"{_PLAN}/undo", {"id": change}), as_json=as_json)


@click.command()
@asks
def pause(service: OperatorClient, *, as_json: bool) -> None:
    """Let nobody make a change of the plan, until `fleet resume`."""
    _show_mode(service.post(f"{_PLAN}/mode", {"mode": "paused"}), as_json=as_json)


@click.command()
@click.option(
    "--mode",
    type=click.Choice(("shadow", "on")),
    default=None,
    help="shadow: it only says what it would do. on: it makes its changes. Without it, the mode "
    "before the pause.",
)
@asks
def resume(service: OperatorClient, *, mode: str | None, as_json: bool) -> None:
    """End a pause, or change the mode."""
    _show_mode(service.post(f"{_PLAN}/mode", {"mode": mode}), as_json=as_json)


COMMANDS = (plan, apply, undo, pause, resume)


def _about(found: dict[str, Any]) -> str:
    if not found["holder"]:
        return f"manager {found['mode']}: no host plans now"
    if found["at_ms"] is None:
        return f"manager {found['mode']}: host {found['holder']} has no plan yet, or is away"
    return f"manager {found['mode']}: host {found['holder']} planned at {_time(found['at_ms'])}"


def _clusters(found: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for each in found["clusters"]:
        away = {*each["away"]}
        hosts = (f"{host} (away)" if host in away else host for host in each["hosts"])
        shards = (
            f"{shard['shard']} ({shard['leader'] or '-'}, {_share(shard['asked'])})"
            for shard in each["shards"]
        )
        yield (
            str(each["number"]),
            plain(each["name"]),
            _share(each["load"]),
            ", ".join(hosts),
            ", ".join(shards),
        )


def _changes(changes: Iterable[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for each in changes:
        missing = f" (cannot be made: {each['unavailable']})" if each["unavailable"] else ""
        reason = plain(each["reason"]["text"] + missing)
        yield each["id"], each["kind"], _queue(each), _places(each), reason


def _made(changes: Iterable[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for each in changes:
        yield (
            each["id"],
            _time(each["at_ms"]),
            plain(each["by"]),
            each["kind"],
            _queue(each),
            _places(each),
            plain(each["reason"]["text"]),
        )


def _notes(notes: Iterable[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    return ((each["wanted"], plain(each["of"]), plain(each["reason"]["text"])) for each in notes)


def _history(notes: Iterable[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for each, said in zip(notes, _notes(notes), strict=True):
        yield _time(each["at_ms"]), each["what"], *said


def _queue(change: dict[str, Any]) -> str:
    return plain(change["queue"]["name"] or change["queue"]["id"] or change["queue"]["account"])


def _places(change: dict[str, Any]) -> str:
    opens = [f"+ shard {shard}" for shard in change["opens"]]
    return ", ".join(opens + [f"- part {number}" for number in change["drains"]])


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _list(title: str, head: tuple[str, ...], lines: Iterable[tuple[str, ...]]) -> None:
    if found := list(lines):
        click.echo(f"\n{title}")
        show_table(head, found)


def _show_made(made: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        show_json(made)
    else:
        click.echo(f"{made['id']}: {made['kind']} {_queue(made)}, {_places(made)}")


def _show_mode(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        show_json(found)
    else:
        click.echo(_about(found))
