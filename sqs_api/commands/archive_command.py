"""`holdfast archive`: the archive of a running service; `holdfast jobs`: the Spark jobs over it."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from sqs_api.archiving.job_schedule import JOBS
from sqs_api.commands import command_options
from sqs_api.commands.messages_command import body_of, print_message
from sqs_api.commands.operators import (
    QUEUE,
    OperatorClient,
    asks,
    filtered,
    part,
    show_json,
    show_page,
    taken_from,
)
from sqs_api.commands.terminal_tables import instant, number, plain, show_table

_HEAD = ("place", "message id", "left", "sent", "receives", "bytes", "body")
_SPAN = (
    click.option(
        "--from", "from_ms", type=command_options.AT, help="Sent since then: 2h, or a time of UTC."
    ),
    click.option("--until", "until_ms", type=command_options.AT, help="Sent before then."),
    click.option("--reason", type=click.Choice(["expired", "deleted", "over-length", "hops"])),
)
_COUNTS = ("messages", "bytes", "sealed", "damaged", "too_large")


def _spanned(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_SPAN):
        command = option(command)
    return command


@click.command()
@QUEUE
@filtered
@_spanned
@click.option("--order", type=click.Choice(["latest", "oldest"]), default="latest")
@click.option("--limit", type=click.IntRange(1, 100), default=50, show_default=True)
@click.option("--token", help="Go on where the last page ended.")
@asks
def search(service: OperatorClient, *, queue: str, as_json: bool, **given: Any) -> None:
    """List archived messages of QUEUE that match; QUEUE may be deleted."""
    page = service.get(f"archive/{part(queue)}/messages", **given)
    show_page(page, _HEAD, _line, as_json=as_json)


def _line(message: dict[str, Any]) -> tuple[str, ...]:
    return (
        message["place"],
        message["message_id"],
        message["reason"],
        instant(message["sent_at_ms"]),
        number(message["receive_count"]),
        number(message["size"]),
        body_of(message),
    )


@click.command()
@QUEUE
@click.argument("place")
@asks
def show(service: OperatorClient, *, queue: str, place: str, as_json: bool) -> None:
    """Show one archived message with its attributes and its whole body."""
    message = service.get(f"archive/{part(queue)}/messages/{part(place)}")
    if as_json:
        show_json(message)
    else:
        print_message(message)


@click.command()
@QUEUE
@click.argument("places", nargs=-1)
@click.option("--all", "takes_all", is_flag=True, help="All archived messages of QUEUE.")
@filtered
@_spanned
@click.option("--to", help="Queue that gets the copies [QUEUE].")
@click.option("--token", help="Go on where a replay stopped.")
@click.option("--dry-run", is_flag=True, help="Count what would be sent, and send nothing.")
@asks
def replay(
    service: OperatorClient,
    *,
    queue: str,
    takes_all: bool,
    dry_run: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Send copies of archived messages, in the order in which they were sent: those at up to 100
    PLACES, those that match, or all.

    The audit log has the id of each copy with that of its original. The exit status is 1 if
    messages were left out.
    """
    wanted = _wanted(takes_all, given)
    path = f"archive/{part(queue)}/replays"
    if dry_run:
        _show_plan(_planned(service, path, wanted), as_json)
    else:
        _show_replay(*_replayed(service, path, wanted), as_json)


def _wanted(takes_all: bool, given: dict[str, Any]) -> dict[str, Any]:
    conditions = taken_from(given)
    for name in ("from_ms", "until_ms", "reason"):
        value = given.pop(name)
        conditions |= {} if value is None else {name: value}
    places = list(given.pop("places"))
    if sum(map(bool, (takes_all, places, conditions))) != 1:
        raise command_options.Refused(
            "choose messages by their places or with a filter, or all of them with --all"
        )
    chosen = {"places": places} if places else {"filter": conditions}
    return chosen | {name: value for name, value in given.items() if value is not None}


def _planned(service: OperatorClient, path: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """The sums of all steps of a plan."""
    sums: Counter[str] = Counter()
    while True:
        step = service.post(f"{path}/plan", wanted)
        sums.update({name: step[name] for name in _COUNTS})
        if step["next"] is None:
            return {"to": step["to"], **{name: sums[name] for name in _COUNTS}}
        wanted = {**wanted, "token": step["next"]}


def _show_plan(plan: dict[str, Any], as_json: bool) -> None:
    if as_json:
        show_json(plan)
        return
    click.echo(f"{plan['messages']} copies, {plan['bytes']} bytes, would be sent to {plan['to']}")
    for name in _COUNTS[2:]:
        if plan[name]:
            click.echo(f"{plan[name]} {name.replace('_', ' ')}: left out")


def _replayed(
    service: OperatorClient, path: str, wanted: dict[str, Any]
) -> tuple[list[Any], list[Any], str | None]:
    """The copies, the messages left out, and None or what to tell about an early end."""
    copies, left_out = list[Any](), list[Any]()
    while True:
        try:
            step = service.post(path, wanted)
        except command_options.Refused as error:
            if not copies:
                raise
            return copies, left_out, f"{error}; go on with --token {wanted['token']}"
        copies += step["copies"]
        left_out += step["left_out"]
        if step["next"] is None:
            return copies, left_out, None
        wanted = {**wanted, "token": step["next"]}
        if step["stopped"] is not None:
            return copies, left_out, f"{step['stopped']}; go on with --token {step['next']}"


def _show_replay(
    copies: list[Any], left_out: list[Any], stopped: str | None, as_json: bool
) -> None:
    duplicates = sum(each["is_duplicate"] for each in copies)
    if as_json:
        show_json({"copies": copies, "left_out": left_out})
    else:
        known = f", {duplicates} of them sent before" if duplicates else ""
        click.echo(f"{len(copies)} copies sent{known}")
        for reason, messages in Counter(each["reason"] for each in left_out).items():
            click.echo(f"{messages} left out: {reason}")
    if stopped is not None:
        raise command_options.Refused(stopped)
    if left_out:
        sys.exit(command_options.Failed.exit_code)


_SHARD_HEAD = ("shard", "source", "sealed", "archived", "waiting", "bytes", "between shards")
_SHARD_MEMBERS = ("shard", "source", "sealed", "archived", "messages", "bytes", "outbox")


@click.group()
def archive() -> None:
    """See how far the archive is; search it, and send archived messages again."""


for each in (search, show, replay):
    archive.add_command(each)


@archive.command()
@click.option("--json", "as_json", is_flag=True, help="The whole answer as JSON.")
@command_options.URL
@command_options.DATA
@command_options.CONFIG
def status(url: str | None, data: Path | None, config_file: Path | None, *, as_json: bool) -> None:
    """Show each shard's latest batch that is in the lake (sealed) and in the archive's table
    (archived), and the messages that wait for these."""
    from sqs_api.commands.page_client import AdminRefused

    settings = command_options.load(config_file, {"data": data})
    if config_file is not None and "data" in settings.model_fields_set:
        data = settings.data
    try:
        found: dict[str, Any] = command_options.admin_client(url, data).ask("GET", "archive")
    except AdminRefused as error:
        raise command_options.Refused(str(error)) from error
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    click.echo(f"lake: {plain(found['lake'])}")
    show_table(
        _SHARD_HEAD, [[str(shard[name]) for name in _SHARD_MEMBERS] for shard in found["shards"]]
    )


@click.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def jobs(arguments: tuple[str, ...]) -> None:
    """Run a Spark job over the lake: archive, queue-age, dead-letters, replay or compact."""
    if find_spec("pyspark") is None:
        raise command_options.Refused(
            "holdfast jobs needs pyspark: `make jobs` installs and runs it; without make, in a "
            "checkout: pip install '.[spark]'"
        )
    os.execv(JOBS[0], [*JOBS, *arguments])
