"""Options that choose messages, shared by `messages browse` and `redrive`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

_OPTIONS = {
    "id": ("--id", str, "The beginning of the message's id."),
    "group": ("--group", str, "The message group's id."),
    "source": ("--source", str, "The queue that a dead letter came from."),
    "received_min": ("--received-min", int, "Received this often at least."),
    "received_max": ("--received-max", int, "Received this often at most."),
    "older_s": ("--older", int, "Sent more than these seconds ago."),
    "newer_s": ("--newer", int, "Sent within these last seconds."),
    "text": ("--text", str, "A part of the body."),
    "attribute": ("--attribute", str, "NAME or NAME=VALUE of a message attribute."),
    "json": ("--field", str, "PATH or PATH=VALUE of a JSON body, such as items[0].sku=A1."),
}
"""Flag, type and help of each condition, by the API's name."""


def filtered(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options; it gets them under the API's names."""
    for name, (flag, kind, text) in reversed(_OPTIONS.items()):
        command = click.option(flag, name, type=kind, help=text)(command)
    return command


def taken_from(given: dict[str, Any]) -> dict[str, Any]:
    """The conditions that were given, taken out of a command's options."""
    conditions = {name: given.pop(name) for name in _OPTIONS}
    return {name: value for name, value in conditions.items() if value is not None}
