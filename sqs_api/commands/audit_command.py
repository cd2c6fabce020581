"""`holdfast audit`: who changed what, read message bodies, or was refused."""

from __future__ import annotations

from itertools import islice
from typing import Any

import click

from sqs_api.commands.command_options import AT, Refused
from sqs_api.commands.operators import OperatorClient, asks, show_json
from sqs_api.commands.terminal_tables import plain, show_table

_PAGE = 500
_HEAD = ("time", "who", "action", "queue", "outcome", "from", "details")
_DETAIL_CHARACTERS = 80


@click.command()
@click.option("--since", "since_ms", type=AT, help="From then on: 2h ago, or a time (UTC).")
@click.option("--until", "until_ms", type=AT, help="Up to then.")
@click.option("--user", help="A user's name, `root`, an access key id, an account, or a login.")
@click.option("--action", help="A part of the action, such as Purge.")
@click.option("--queue", help="The name of a queue.")
@click.option("--denied", is_flag=True, help="Only calls refused because of their caller.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True)
@asks
def audit(
    service: OperatorClient, *, denied: bool, limit: int, as_json: bool, **given: Any
) -> None:
    """Show the audit log of all hosts, the latest lines first."""
    wanted = {**given, "denied": "true" if denied else None, "limit": min(limit, _PAGE)}
    missing: set[str] = set()
    found = list(islice(_entries(service, wanted, missing), limit))
    if as_json:
        show_json(found)
    else:
        show_table(_HEAD, map(_line, found))
    if missing:
        raise Refused(f"without the lines of {', '.join(sorted(missing))}: no answer")


def _entries(service: OperatorClient, wanted: dict[str, Any], missing: set[str]) -> Any:
    token = None
    while True:
        page = service.get("audit", **wanted, before=token)
        missing.update(page["missing"])
        yield from page["entries"]
        token = page["next"]
        if token is None:
            return


def _local(login: str | None, uid: int | None) -> str:
    """A caller on the service's machine; empty for others."""
    if login is None:
        return "" if uid is None else f"uid {uid}"
    return f"{login} (local)"


def _line(entry: dict[str, Any]) -> tuple[str, ...]:
    details = {name: value for name, value in entry["details"].items() if name != "request_id"}
    uid = details.pop("uid", None)
    key = "root" if entry["is_root"] else entry["access_key_id"] or ""
    who = entry["user"] or _local(entry["login"], uid) or key
    shown = ", ".join(f"{name}={value}" for name, value in details.items())
    return (
        entry["time"][:19].replace("T", " "),
        plain(who),
        plain(entry["action"]),
        plain((entry["queue"] or "").replace("/", ":").rpartition(":")[2]),
        plain(("denied: " if entry["denied"] else "") + (entry["outcome"] or "")),
        plain(entry["source_ip"] or entry["host"] or ""),
        plain(shown, _DETAIL_CHARACTERS),
    )
