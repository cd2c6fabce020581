"""Options of an edit: fields that are set, and a JSON merge patch."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from sqs_api.commands.command_options import Refused

_SET = click.option(
    "--set",
    "fields",
    multiple=True,
    metavar="PATH=VALUE",
    help="Set a field of each JSON body, such as error.retry=true; VALUE is JSON, else a text.",
)
_PATCH = click.option(
    "--merge-patch", "patch", metavar="JSON", help="A JSON merge patch of each body (RFC 7396)."
)


def edits(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options, which `edit_taken_from` reads."""
    return _SET(_PATCH(command))


def edit_taken_from(given: dict[str, Any]) -> dict[str, Any]:
    """The merge patch of a command's options, empty without one. Raises Refused."""
    fields, text = given.pop("fields"), given.pop("patch")
    patch: Any = {} if text is None else _json(text)
    if not isinstance(patch, dict):
        raise Refused("--merge-patch is no JSON object")
    for field in fields:
        path, has_value, value = field.partition("=")
        names = path.split(".")
        if not has_value or not all(names) or "[" in path:
            raise Refused(f"--set {field} is not PATH=VALUE, such as error.retry=true")
        place = patch
        for name in names[:-1]:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise Refused(f"--set {field} is below a field that is set to a value")
        place[names[-1]] = _json(value, value)
    return patch


def _json(text: str, otherwise: Any = None) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return otherwise
