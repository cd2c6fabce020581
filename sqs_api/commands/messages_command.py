"""`holdfast messages`: look at messages without receiving them, and repair queues."""

from __future__ import annotations

import json
import sys
from time import sleep
from typing import Any

import click
from typing_extensions import override

from sqs_api.commands.command_options import AHEAD, Failed, Lifetime, Refused
from sqs_api.commands.operators import (
    QUEUE,
    SEQUENCES,
    OperatorClient,
    asks,
    filtered,
    part,
    show_json,
    show_page,
    taken_from,
)
from sqs_api.commands.terminal_tables import instant, json_text, number, plain, show_table

_BODY_CHARACTERS = 60
_TAIL_S = 1.0
_HEAD = ("sequence", "message id", "state", "sent", "receives", "bytes", "body")
_STATES = ["all", "visible", "in flight", "delayed", "held", "deleting"]
_OLD = "{} is called {}; the old name goes with the next release."


class _State(click.Choice[str]):
    """A state; `quarantined` is the old name of `held`."""

    @override
    def convert(self, value: str, param: Any, ctx: Any) -> str:
        if value == "quarantined":
            click.echo(_OLD.format("--state quarantined", "--state held"), err=True)
            value = "held"
        return super().convert(value, param, ctx)


_BODY = click.option("--body", help="The body; - reads it from standard input.")
_ATTRIBUTE = {"DataType": "type", "StringValue": "value", "BinaryValue": "binary"}


class _Attributes(click.ParamType[dict[str, Any]]):
    """Attributes as `aws sqs send-message` takes them in JSON, to those of the service's API."""

    name = "JSON"

    @override
    def convert(self, value: str, param: Any, ctx: Any) -> dict[str, Any]:
        try:
            return {
                name: {_ATTRIBUTE[key]: text for key, text in each.items()}
                for name, each in json.loads(value).items()
            }
        except (ValueError, AttributeError, KeyError):
            self.fail('write {"NAME": {"DataType": "String", "StringValue": "VALUE"}}', param, ctx)


_ATTRIBUTES = click.option(
    "--message-attributes",
    "attributes",
    type=_Attributes(),
    help="The attributes, as `aws sqs send-message` takes them in JSON.",
)


@click.group()
def messages() -> None:
    """Browse, show, send, delete, hold and resend messages."""


@messages.command()
@QUEUE
@click.option("--state", type=_State(_STATES))
@filtered
@click.option("--limit", type=click.IntRange(1, 100), default=50, show_default=True)
@click.option("--token", help="Go on where the last page ended.")
@asks
def browse(service: OperatorClient, *, queue: str, as_json: bool, **given: Any) -> None:
    """List messages of QUEUE that match, without receiving them."""
    page = service.get(f"queues/{part(queue)}/messages", **given)
    show_page(page, _HEAD, _line, as_json=as_json)


@messages.command()
@click.argument("message_id", metavar="ID")
@asks
def find(service: OperatorClient, *, message_id: str, as_json: bool) -> None:
    """Find the message with this ID in any queue, without receiving it.

    ID is its whole id, one it had before a redrive or an edit, or the beginning of its id. All
    queues are searched until one has it, some 200,000 messages a second.
    """
    token, scanned, unseen, found = None, 0, list[str](), list[dict[str, Any]]()
    while not found:
        page = service.get("messages", id=message_id, token=token)
        token, found = page["next"], page["messages"]
        scanned += page["scanned"]
        unseen += page["unseen"]
        if token is None:
            break
    if as_json:
        show_json({"messages": found, "scanned": scanned, "unseen": unseen})
    elif found:
        show_table(("queue", *_HEAD), ((each["queue"], *_line(each)) for each in found))
    if unseen:
        click.echo(f"not searched, for their shards have no leader: {', '.join(unseen)}", err=True)
    if not found:
        raise Failed(f"none of {number(scanned)} messages has the id {message_id}")


@messages.command()
@QUEUE
@click.option("--once", is_flag=True, help="The newest few only.")
@asks
def tail(service: OperatorClient, *, queue: str, once: bool, as_json: bool) -> None:
    """Follow the messages that come to QUEUE, without receiving them, until Ctrl-C."""
    token = None
    while True:
        page = service.get(f"queues/{part(queue)}/tail", token=token)
        token = page["next"]
        if page["left_out"]:
            click.echo(f"{page['left_out']} more came than are shown", err=True)
        for message in page["messages"]:
            click.echo(json_text(message) if as_json else "  ".join(_line(message)))
        if once:
            return
        sleep(_TAIL_S)


def _line(message: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(message["sequence"]),
        message["message_id"],
        f"behind {message['waits_behind']}" if message.get("waits_behind") else message["state"],
        instant(message["sent_at_ms"]),
        number(message["receive_count"]),
        number(message["size"]),
        body_of(message),
    )


def body_of(message: dict[str, Any]) -> str:
    """The beginning of the body, in a line."""
    body = message["body"]
    return _unread(message) if body is None else plain(body, _BODY_CHARACTERS)


def _unread(message: dict[str, Any]) -> str:
    return "(masked)" if message["is_masked"] else "(cannot be opened)"


@messages.command()
@QUEUE
@click.argument("sequence", type=int)
@click.option("--due-ms", type=int, help="End of the delay of a delayed message.")
@asks
def show(
    service: OperatorClient, *, queue: str, sequence: int, due_ms: int | None, as_json: bool
) -> None:
    """Show one message with its attributes and its whole body."""
    message = service.get(f"queues/{part(queue)}/messages/{sequence}", due_ms=due_ms)
    if as_json:
        show_json(message)
    else:
        print_message(message)


@messages.command()
@QUEUE
@click.argument("sequence", type=int)
@click.option("--due-ms", type=int, help="End of the delay of a delayed message.")
@asks
def timeline(
    service: OperatorClient, *, queue: str, sequence: int, due_ms: int | None, as_json: bool
) -> None:
    """Show what happened to one message: receives, death, redrives, edits, holds."""
    path = f"queues/{part(queue)}/messages/{sequence}/timeline"
    told = service.get(path, due_ms=due_ms)
    if as_json:
        show_json(told)
        return
    show_table(("time", "what", "by", "details"), map(_event, told["entries"]))
    if told["without_audit"]:
        click.echo("\nwithout the audit log, which your policies do not allow to read")
    if told["missing"]:
        click.echo(f"\nwithout the audit log of {', '.join(told['missing'])}: no answer")


def _event(entry: dict[str, Any]) -> tuple[str, ...]:
    at_ms, what, times = entry["at_ms"] or entry["first_ms"], entry["what"], entry["count"]
    if what == "received":
        what = f"received {times} {'time' if times == 1 else 'times'}"
    details = {
        "": entry["text"],
        "queue ": entry["queue"],
        "id ": entry["message_id"],
        "redrive ": entry["redrive"],
        "until ": entry["until_ms"] and instant(entry["until_ms"]),
    }
    told = ", ".join(f"{name}{value}" for name, value in details.items() if value)
    return instant(at_ms) if at_ms else "", what, plain(entry["by"] or ""), plain(told)


def print_message(message: dict[str, Any]) -> None:
    """Print all of a message."""
    body = message.pop("body")
    message |= message.pop("hold", None) or {}
    origin = message.pop("origin", None) or {}
    message |= {f"origin_{name}": value for name, value in origin.items()}
    if "earlier_ids" in origin:
        message["origin_earlier_ids"] = ", ".join(origin["earlier_ids"])
    attributes = message.pop("attributes")
    lines = [
        (name, instant(value) if name.endswith("_at_ms") else plain(str(value)))
        for name, value in message.items()
        if value not in (None, False, 0) or (name == "priority" and value is not None)
    ]
    lines += [
        (
            f"attribute {plain(name)}",
            plain(f"{each['type']} {each.get('value', each.get('binary', ''))}"),
        )
        for name, each in attributes.items()
    ]
    show_table(("field", "value"), lines)
    click.echo()
    shown = _unread(message) if body is None else body
    click.echo("\n".join(map(plain, shown.split("\n"))))


@messages.command()
@QUEUE
@_BODY
@_ATTRIBUTES
@click.option("--group", "group_id", help="The message group's id.")
@click.option("--deduplication-id", help="For FIFO queues.")
@click.option("--delay", "delay_s", type=int, help="Seconds until it can be received.")
@asks
def send(
    service: OperatorClient, *, queue: str, body: str | None, as_json: bool, **given: Any
) -> None:
    """Send a message to QUEUE."""
    message = {name: value for name, value in given.items() if value is not None}
    if body is None:
        raise Refused("--body: give the message's body")
    answer = service.post(f"queues/{part(queue)}/messages", {"body": _read(body), **message})
    _tell(answer, as_json, f"sent {answer['message_id']}")


@messages.command()
@QUEUE
@SEQUENCES
@click.option("--undo", type=Lifetime(), default="0s", help="Time for undelete, at most 1h [none].")
@asks
def delete(
    service: OperatorClient, *, queue: str, sequences: tuple[int, ...], undo: float, as_json: bool
) -> None:
    """Delete messages of QUEUE by their sequences; those in flight and held ones stay."""
    answer = _post(service, queue, "delete", sequences, undo_s=int(undo))
    _tell(answer, as_json, f"deleted {answer['deleted']}{_kept(answer['kept'])}")


@messages.command()
@QUEUE
@SEQUENCES
@asks
def undelete(
    service: OperatorClient, *, queue: str, sequences: tuple[int, ...], as_json: bool
) -> None:
    """Bring back messages that were deleted with --undo, while that lasts."""
    answer = _post(service, queue, "undelete", sequences)
    gone = f", {answer['gone']} gone" if answer["gone"] else ""
    _tell(answer, as_json, f"undeleted {answer['undeleted']}{gone}")


@messages.command()
@QUEUE
@SEQUENCES
@click.option("--owner", help="Who looks into them [you].")
@click.option("--reference", default="", help="Such as a ticket.")
@asks
def hold(
    service: OperatorClient,
    *,
    queue: str,
    sequences: tuple[int, ...],
    owner: str | None,
    reference: str,
    as_json: bool,
) -> None:
    """Hold messages of QUEUE: no receive, redrive or delete takes them until their release."""
    answer = _post(service, queue, "hold", sequences, owner=owner, reference=reference)
    _tell(answer, as_json, f"held {answer['held']}{_kept(answer['kept'])}")


@messages.command("quarantine", hidden=True, params=hold.params)
@click.pass_context
def _quarantine(context: click.Context, /, **given: Any) -> None:
    """Hold messages: the old name of that."""
    click.echo(_OLD.format("messages quarantine", "messages hold"), err=True)
    context.invoke(hold, **given)


@messages.command()
@QUEUE
@SEQUENCES
@asks
def release(
    service: OperatorClient, *, queue: str, sequences: tuple[int, ...], as_json: bool
) -> None:
    """Make held messages of QUEUE visible again."""
    answer = _post(service, queue, "release", sequences)
    _tell(answer, as_json, f"released {answer['released']}{_kept(answer['kept'])}")


@messages.command()
@QUEUE
@filtered
@asks
def export(service: OperatorClient, *, queue: str, as_json: bool, **given: Any) -> None:
    """Write the messages of QUEUE that match, each as a line of JSON, all without a filter."""
    path, conditions, token = (
        f"queues/{part(queue)}/messages/matching/export",
        taken_from(given),
        None,
    )
    while True:
        page = service.post(path, {"filter": conditions, "token": token})
        for message in page["messages"]:
            click.echo(json_text(message))
        token = page["next"]
        if token is None:
            return


_SCHEDULE_HEAD = ("place", "message id", "due", "sent", "bytes", "body")


class _Place(click.ParamType[dict[str, int]]):
    """A delayed message as `messages scheduled` names it: the end of its delay and its sequence."""

    name = "place"

    @override
    def convert(self, value: Any, param: Any, ctx: Any) -> dict[str, int]:
        if isinstance(value, dict):
            return value
        due_ms, _, sequence = value.partition(":")
        if not (due_ms.isdecimal() and sequence.isdecimal()):
            self.fail(f"{value} is not a place as `messages scheduled` shows it", param, ctx)
        return {"due_ms": int(due_ms), "sequence": int(sequence)}


_PLACES = click.argument("places", type=_Place(), nargs=-1, required=True)


@messages.command()
@QUEUE
@click.option("--limit", type=click.IntRange(1, 100), default=50, show_default=True)
@click.option("--token", help="Go on where the last page ended.")
@asks
def scheduled(
    service: OperatorClient, *, queue: str, limit: int, token: str | None, as_json: bool
) -> None:
    """List the delayed messages of QUEUE, those due first at the beginning."""
    page = service.get(f"queues/{part(queue)}/messages", state="delayed", limit=limit, token=token)
    if as_json:
        show_json(page)
        return
    show_table(
        _SCHEDULE_HEAD,
        (
            (
                f"{message['due_ms']}:{message['sequence']}",
                message["message_id"],
                instant(message["due_ms"]),
                instant(message["sent_at_ms"]),
                number(message["size"]),
                body_of(message),
            )
            for message in page["messages"]
        ),
    )
    if page["next"]:
        click.echo(f"\ngo on with --token {page['next']}")


@messages.command()
@QUEUE
@_PLACES
@asks
def cancel(
    service: OperatorClient, *, queue: str, places: tuple[dict[str, int], ...], as_json: bool
) -> None:
    """Delete delayed messages of QUEUE before they are delivered."""
    path = f"queues/{part(queue)}/messages/cancel"
    answer = service.post(path, {"messages": list(places)})
    _tell(answer, as_json, f"canceled {answer['canceled']}{_kept(answer['kept'])}")


@messages.command()
@QUEUE
@_PLACES
@click.option(
    "--at",
    "at_ms",
    type=AHEAD,
    required=True,
    help="In 2h, say, or a time (UTC), in a year at most.",
)
@asks
def reschedule(
    service: OperatorClient,
    *,
    queue: str,
    places: tuple[dict[str, int], ...],
    at_ms: int,
    as_json: bool,
) -> None:
    """Deliver delayed messages of QUEUE at another time."""
    path = f"queues/{part(queue)}/messages/reschedule"
    answer = service.post(path, {"messages": list(places), "at_ms": at_ms})
    _tell(answer, as_json, f"rescheduled {answer['rescheduled']}{_kept(answer['kept'])}")


def _post(
    service: OperatorClient, queue: str, what: str, sequences: tuple[int, ...], **more: object
) -> Any:
    content = {"sequences": list(sequences), **more}
    return service.post(f"queues/{part(queue)}/messages/{what}", content)


def _kept(kept: int) -> str:
    return f", kept {kept}" if kept else ""


@messages.command()
@QUEUE
@click.argument("sequence", type=int)
@_BODY
@_ATTRIBUTES
@click.option("--group", "group_id", help="The message group's id; empty for none.")
@click.option("--to", help="Queue that gets the copy [QUEUE].")
@click.option("--deduplication-id", help="For FIFO queues.")
@click.option("--replace", is_flag=True, help="Remove the message in the same step.")
@asks
def resend(
    service: OperatorClient,
    *,
    queue: str,
    sequence: int,
    body: str | None,
    attributes: dict[str, Any] | None,
    group_id: str | None,
    to: str | None,
    deduplication_id: str | None,
    replace: bool,
    as_json: bool,
) -> None:
    """Send a copy of a message, by default with its body, attributes and group."""
    path = f"queues/{part(queue)}/messages/{sequence}"
    message = service.get(path)
    if message["is_masked"]:
        raise Refused("you may not read the message that is to be copied")
    copy = {
        "body": message["body"] if body is None else _read(body),
        "attributes": message["attributes"] if attributes is None else attributes,
        "group_id": message["group_id"] if group_id is None else group_id or None,
        "deduplication_id": deduplication_id,
        "trace_header": message["trace_header"],
        "to": to,
        "replace": replace,
    }
    answer = service.post(f"{path}/resend", copy)
    _tell(answer, as_json, f"sent {answer['message_id']}")


def _read(body: str) -> str:
    return sys.stdin.read() if body == "-" else body


def _tell(answer: object, as_json: bool, line: str) -> None:
    if as_json:
        show_json(answer)
    else:
        click.echo(line)
