"""`holdfast redrive`: move dead letters, all, selected or filtered ones, after a dry run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import sleep
from typing import TYPE_CHECKING, Any

import click

from sqs_api.commands.command_options import Failed, Refused
from sqs_api.commands.edit_options import edit_taken_from, edits
from sqs_api.commands.operators import (
    QUEUE,
    OperatorClient,
    asks,
    filtered,
    part,
    show_json,
    taken_from,
)
from sqs_api.commands.terminal_tables import instant, number, plain, show_table

if TYPE_CHECKING:
    from sqs_api.operators.redrive_answers import PlannedTarget, RedrivePlan

_TO = click.option("--to", "destination", help="Queue that gets them [each message's own source].")
_SEQUENCES = click.argument("sequences", type=int, nargs=-1)
_RATE = click.option("--rate", type=click.IntRange(1, 500), help="Messages a second.")
_ID = click.option("--redrive", "id_", help="The beginning of its id [the latest].")
_LOOK_S = 0.5
_SHOWN_MAX = 1_000
"""Characters of a body that is shown."""


@click.group()
def redrive() -> None:
    """Plan, start, watch, pause and undo redrives of dead letters."""


# -- plan ------------------------------------------------------------------------------------------


@redrive.command()
@QUEUE
@_SEQUENCES
@filtered
@_TO
@_RATE
@edits
@asks
def plan(service: OperatorClient, *, queue: str, as_json: bool, **given: Any) -> None:
    """Show how many messages would move where, and which would stay, without moving any.

    Without SEQUENCES or options that choose messages, it is about all.
    """
    planned = _plan(service, queue, _wanted(given))
    if as_json:
        show_json(planned)
        return
    lines = [
        (arn.rpartition(":")[2], str(each["messages"]), str(each["bytes"]), _warning(each))
        for arn, each in planned["targets"].items()
    ]
    lines += [
        ("(stay)", str(messages), "", reason) for reason, messages in planned["refused"].items()
    ]
    show_table(("to", "messages", "bytes", "note"), lines)
    for messages, text in (
        (planned["passed"], "do not match and stay"),
        (planned["expiring"], "expire before their turn"),
        (planned["overtaking"], "leave earlier messages of their group behind"),
    ):
        if messages:
            click.echo(f"{messages} {text}")
    for sample in planned["samples"]:
        click.echo(sample["message_id"])
        click.echo(f"- {plain(sample['before'], _SHOWN_MAX)}")
        click.echo(f"+ {plain(sample['after'], _SHOWN_MAX)}")


def _plan(service: OperatorClient, queue: str, wanted: dict[str, Any]) -> RedrivePlan:
    """The plan, with the sums and samples of all its steps."""
    planned: RedrivePlan = service.post(f"queues/{part(queue)}/redrives/plan", wanted)
    samples = planned["samples"]
    while planned["next"] is not None:
        content = {**wanted, "token": planned["next"]}
        planned = service.post(f"queues/{part(queue)}/redrives/plan", content)
        samples += planned["samples"]
    return {**planned, "samples": samples}


def _warning(target: PlannedTarget) -> str:
    notes = []
    if target["too_large"]:
        notes.append(f"{target['too_large']} above its MaximumMessageSize")
    if target["returns_after"] is None:
        notes.append("those that fail again do not come back here")
    return ", ".join(notes)


def _wanted(given: dict[str, Any]) -> dict[str, Any]:
    """The options of a redrive, as the API takes them."""
    conditions, sequences = taken_from(given), given.pop("sequences")
    edit = edit_taken_from(given)
    if conditions and sequences:
        raise Refused("choose messages by their sequences or with a filter, not both")
    wanted = {name: value for name, value in given.items() if value is not None}
    if sequences:
        wanted["sequences"] = list(sequences)
    if conditions:
        wanted["filter"] = conditions
    if edit:
        wanted["edit"] = edit
    return wanted


# -- start -----------------------------------------------------------------------------------------


@redrive.command()
@QUEUE
@_SEQUENCES
@click.option("--all", "takes_all", is_flag=True, help="All messages of QUEUE.")
@filtered
@_TO
@_RATE
@click.option("--ramp", "ramp_s", type=int, help="Seconds in which the rate rises to --rate.")
@click.option("--canary", type=int, help="Pause after this many messages.")
@click.option("--stop-after", type=int, help="Pause when this many have come back to QUEUE.")
@click.option("--reason", help="The reason, for the history.")
@edits
@click.option("--wait", is_flag=True, help="Show the progress until it ends or pauses.")
@asks
def start(
    service: OperatorClient, *, queue: str, takes_all: bool, wait: bool, as_json: bool, **given: Any
) -> None:
    """Begin to move messages of QUEUE to their sources, or to another queue."""
    wanted = _wanted(given)
    if takes_all == bool(wanted.keys() & {"sequences", "filter"}):
        raise Refused("name messages by their sequences or a filter, or all of them with --all")
    if "filter" in wanted:
        wanted["planned"] = _plan(service, queue, wanted)["messages"]
    answer = service.post(f"queues/{part(queue)}/redrives", wanted)
    if wait:
        answer = _watch(service, queue, answer["handle"])
    if as_json:
        show_json(answer)
    elif wait:
        click.echo(_outcome(answer, queue))
    else:
        click.echo(f"started; cancel it with: holdfast redrive cancel {queue}")
    if wait and answer["status"] == "FAILED":
        sys.exit(Failed.exit_code)


def _outcome(task: Mapping[str, Any], queue: str) -> str:
    if task["paused"]:
        return (
            f"paused ({task['paused']}): moved {task['moved']}, came back {task['came_back']}; "
            f"go on with: holdfast redrive resume {queue}"
        )
    return f"{task['status']}: moved {_moved(task)}"


def _moved(task: Mapping[str, Any]) -> str:
    """Messages moved, of all that were chosen or planned, else of those that match so far."""
    if task["filter"] is None or task["is_planned"]:
        return f"{number(task['moved'])} of {number(task['to_move'])}"
    so_far = " so far" if task["is_active"] else ""
    return f"{number(task['moved'])} of {number(task['moved'] + task['stayed'])} that match{so_far}"


def _watch(service: OperatorClient, queue: str, handle: str) -> dict[str, Any]:
    """The redrive, once it has ended or pauses."""
    task = _of_handle(service, queue, handle)
    with click.progressbar(length=task["to_move"] or 1, label=queue, file=sys.stderr) as bar:
        while True:
            looks = task["filter"] and not task["is_planned"]
            done = task["looked_at"] if looks else task["moved"]
            bar.update(done - bar.pos)
            if task["paused"] or not task["is_active"]:
                return task
            sleep(_LOOK_S)
            task = _of_handle(service, queue, handle)


def _of_handle(service: OperatorClient, queue: str, handle: str) -> dict[str, Any]:
    """The redrive, which others may have followed. Raises Refused."""
    task: dict[str, Any]
    for task in service.pages(f"queues/{part(queue)}/redrives", "redrives", "before", limit=10):
        if task["handle"] == handle:
            return task
    raise Refused(f"the redrive of {queue} is no longer listed")


# -- list and control ------------------------------------------------------------------------------


@redrive.command("list")
@QUEUE
@click.option("--limit", type=click.IntRange(1, 100), default=10, show_default=True)
@click.option("--before", type=int, help="Those with lower numbers.")
@asks
def list_redrives(service: OperatorClient, *, queue: str, as_json: bool, **given: Any) -> None:
    """List the latest redrives of QUEUE, newest first; also those that other clients started."""
    found = service.get(f"queues/{part(queue)}/redrives", **given)["redrives"]
    if as_json:
        show_json(found)
        return
    head = ("started", "redrive", "status", "moved", "back", "to", "rate", "by", "note")
    show_table(head, map(_line, found))


def _line(task: Mapping[str, Any]) -> tuple[str, ...]:
    filters = [f"{name}={value}" for name, value in (task["filter"] or {}).items()]
    notes = [task["reason"], *filters, task["failure"] or ""]
    if task["edit"]:
        notes.append(f"edit {json.dumps(task['edit'])}")
    if task["undone"]:
        notes.append(f"undone: {task['undone']['moved']} returned")
    if task["undoes"]:
        notes.append(f"undo of {task['undoes'][:8]}")
    return (
        instant(task["started_at_ms"]),
        task["id"][:8],
        f"PAUSED ({task['paused']})" if task["paused"] else task["status"],
        _moved(task),
        number(task["came_back"]),
        (task["destination_arn"] or "each to its source").rpartition(":")[2],
        str(task["rate"] or ""),
        task["started_by"].rpartition(":")[2],
        plain(", ".join(filter(None, notes)), 100),
    )


_Task = Mapping[str, Any]
"""A redrive as the API shows it."""


def _control(
    change: str,
    text: str,
    outcome: Callable[[_Task, Mapping[str, Any]], Iterable[str]],
    *,
    of_active: bool,
) -> Callable[..., None]:
    """A command that changes one redrive. `text` is its help; `outcome` describes the task's
    change by the answer, in lines."""

    @redrive.command(change, help=text)
    @QUEUE
    @_ID
    @asks
    def control(service: OperatorClient, *, queue: str, id_: str | None, as_json: bool) -> None:
        task = _named(service, queue, id_, of_active=of_active)
        answer = service.post(f"queues/{part(queue)}/redrives/{change}", {"handle": task["handle"]})
        if as_json:
            show_json(answer)
        else:
            for line in outcome(task, answer):
                click.echo(line)
        if change == "undo" and (answer["refused"] or not answer["begun"]):
            sys.exit(Failed.exit_code)

    return control


def _named(service: OperatorClient, queue: str, id_: str | None, *, of_active: bool) -> _Task:
    """The redrive whose id begins so, by default the latest. Raises Refused."""
    task: _Task
    for task in service.pages(f"queues/{part(queue)}/redrives", "redrives", "before", limit=100):
        if task["id"].startswith(id_ or "") and (task["is_active"] or not of_active):
            return task
    running = " is running" if of_active else ""
    raise Refused(f"no redrive {id_} of {queue}" if id_ else f"no redrive of {queue}{running}")


def _paused(task: _Task, answer: Mapping[str, Any]) -> Iterator[str]:
    yield f"paused after {task['moved']} messages"


def _resumed(task: _Task, answer: Mapping[str, Any]) -> Iterator[str]:
    yield f"resumed after {task['moved']} messages"


def _cancelled(task: _Task, answer: Mapping[str, Any]) -> Iterator[str]:
    yield f"cancelled after {answer['moved']} messages"


def _undone(task: _Task, answer: Mapping[str, Any]) -> Iterator[str]:
    yield f"undo begun in {', '.join(answer['begun']) or 'no queue'}"
    for name, reason in answer["refused"].items():
        yield f"not in {name}: {reason}"


pause = _control("pause", "Let the running redrive of QUEUE wait.", _paused, of_active=True)
resume = _control("resume", "Let a paused redrive of QUEUE go on.", _resumed, of_active=True)
cancel = _control(
    "cancel",
    "Cancel the running redrive of QUEUE; what has moved stays moved.",
    _cancelled,
    of_active=True,
)


@redrive.command()
@QUEUE
@_ID
@click.option("--rate", type=click.IntRange(0, 500), help="Messages a second; 0 for no limit.")
@click.option(
    "--stop-after", type=click.IntRange(0), help="Pause when so many came back; 0 for never."
)
@asks
def pace(
    service: OperatorClient,
    *,
    queue: str,
    id_: str | None,
    rate: int | None,
    stop_after: int | None,
    as_json: bool,
) -> None:
    """Change the rate or the stop of the running redrive of QUEUE."""
    task = _named(service, queue, id_, of_active=True)
    wanted = {"handle": task["handle"], "rate": rate, "stop_after": stop_after}
    answer = service.post(f"queues/{part(queue)}/redrives/pace", wanted)
    if as_json:
        show_json(answer)
    else:
        click.echo(f"changed after {task['moved']} messages")


undo = _control(
    "undo",
    "Return to QUEUE what a redrive moved and was not received.",
    _undone,
    of_active=False,
)
