"""Options that choose messages, shared by `messages browse` and `redrive`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

_OPTIONS = (
    click.option("--id", "id", help="The beginning of the message's id."),
    click.option("--group", help="The message group's id."),
    click.option("--source", help="The queue that a dead letter came from."),
    click.option("--received-min", type=int, help="Received this often at least."),
    click.option("--received-max", type=int, help="Received this often at most."),
    click.option("--older", "older_s", type=int, help="Sent more than these seconds ago."),
    click.option("--newer", "newer_s", type=int, help="Sent within these last seconds."),
    click.option("--text", help="A part of the body."),
    click.option("--attribute", help="NAME or NAME=VALUE of a message attribute."),
    click.option(
        "--field", "json", help="PATH or PATH=VALUE of a JSON body, such as items[0].sku=A1."
    ),
)
_NAMES = (
    "id",
    "group",
    "source",
    "received_min",
    "received_max",
    "older_s",
    "newer_s",
    "text",
    "attribute",
    "json",
)


def filtered(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options; it gets them under the API's names."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def taken_from(given: dict[str, Any]) -> dict[str, Any]:
    """The conditions that were given, taken out of a command's options."""
    conditions = {name: given.pop(name) for name in _NAMES}
    return {name: value for name, value in conditions.items() if value is not None}
