"""Shared parts of the commands that ask the operators' API of a running service: options, also
those that choose messages, and the client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import click

from sqs_api.commands.command_options import CONFIG, DATA, URL, Refused, admin_client, load
from sqs_api.commands.terminal_tables import json_text, show_table

_CONDITIONS = {
    "id": ("--id", str, "The beginning of the message's id."),
    "group": ("--group", str, "The message group's id."),
    "source": ("--source", str, "The queue that a dead letter came from."),
    "received_min": ("--received-min", int, "Received this often at least."),
    "received_max": ("--received-max", int, "Received this often at most."),
    "older_s": ("--older", int, "Sent more than these seconds ago."),
    "newer_s": ("--newer", int, "Sent within these last seconds."),
    "text": ("--text", str, "A part of the body."),
    "attribute": (
        "--attribute",
        str,
        "NAME, NAME=VALUE or NAME^=BEGINNING of a message attribute.",
    ),
    "json": (
        "--field",
        str,
        "PATH, PATH=VALUE or PATH^=BEGINNING of a JSON body, such as items[0].sku=A1.",
    ),
    "failure": ("--failure", str, "The id of a failure, see `queues failures`."),
}
"""Flag, type and help of each condition, by the API's name."""


def filtered(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options; it gets them under the API's names."""
    for name, (flag, kind, text) in reversed(_CONDITIONS.items()):
        command = click.option(flag, name, type=kind, help=text)(command)
    return command


def taken_from(given: dict[str, Any]) -> dict[str, Any]:
    """The conditions that were given, taken out of a command's options."""
    conditions = {name: given.pop(name) for name in _CONDITIONS}
    return {name: value for name, value in conditions.items() if value is not None}


QUEUE = click.argument("queue")
SEQUENCES = click.argument("sequences", type=int, nargs=-1, required=True)
_OPTIONS = (
    click.option("--json", "as_json", is_flag=True, help="The whole answer as JSON."),
    URL,
    DATA,
    CONFIG,
    click.option("--account", help="Account of the queue [that of the key]."),
    click.option("--region", help="Region [the configured one]."),
)


class OperatorClient:
    """Asks the API in one account and region."""

    def __init__(
        self, url: str | None, data: Path | None, *, account: str | None, region: str
    ) -> None:
        self._client = admin_client(url, data, region)
        self._account = account

    def get(self, path: str, **parameters: object) -> Any:
        """The answer of a route. Raises Refused."""
        return self._ask("GET", path, None, parameters)

    def post(self, path: str, content: object) -> Any:
        """The answer of a route that changes something. Raises Refused."""
        return self._ask("POST", path, content, {})

    def pages(self, path: str, member: str, after: str, **parameters: object) -> Iterator[Any]:
        """The items of this member on all pages of a list; `after` is the name of their token."""
        token = None
        while True:
            page = self.get(path, **{**parameters, after: token})
            yield from page[member]
            token = page["next"]
            if token is None:
                return

    def _ask(self, method: str, path: str, content: object, parameters: dict[str, object]) -> Any:
        from sqs_api.commands.page_client import AdminRefused

        given = {"account": self._account, **parameters}
        query = urlencode({name: value for name, value in given.items() if value is not None})
        try:
            page = f"api/{path}?{query}" if query else f"api/{path}"
            return self._client.ask(method, page, content, answer_s=None)
        except AdminRefused as error:
            raise Refused(str(error)) from error


def asks(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the common options, and an OperatorClient and `as_json` in place of them."""

    @wraps(command)
    def run(
        *,
        url: str | None,
        data: Path | None,
        config_file: Path | None,
        account: str | None,
        region: str | None,
        **given: Any,
    ) -> None:
        settings = load(config_file, {"data": data, "account": account, "region": region})
        if config_file is not None and "data" in settings.model_fields_set:
            data = settings.data
        command(OperatorClient(url, data, account=account, region=settings.region), **given)

    for option in reversed(_OPTIONS):
        run = option(run)
    return run


def part(name: str) -> str:
    """A queue's name as a part of a path."""
    return quote(name, safe="")


def show_page(
    page: Any, head: Sequence[str], line: Callable[[Any], Sequence[str]], *, as_json: bool
) -> None:
    """Print a page of messages, and how to go on."""
    if as_json:
        show_json(page)
        return
    show_table(head, map(line, page["messages"]))
    if page["next"]:
        click.echo(f"\nscanned {page['scanned']}; go on with --token {page['next']}")


def show_json(answer: object) -> None:
    """Print an answer for programs."""
    click.echo(json_text(answer, indent=1))
