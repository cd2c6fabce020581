"""Filters: comparing a message with the conditions of an operator.

The message browser and redrives choose messages in the same way. Conditions on what is stored
beside the content are compared first, so most messages need not be opened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from visibility.content.content import Extras
from visibility.content.failures import FAILURE_ID_LENGTH, failure_of
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.move_task import MessageFilter
from visibility.contract.origin import earlier_ids
from visibility.contract.stored_message import StoredMessage

_STEP = re.compile(r"\.?([^.\[\]=]+)|\[([0-9]{1,6})\]")
_FAILURE = re.compile(rf"[0-9a-f]{{{FAILURE_ID_LENGTH}}}")
_MISSING = object()


def check_filter(wanted: MessageFilter) -> None:
    """Raise InvalidParameterValue for a path or an id that cannot be read."""
    for condition in _lines(wanted.json):
        _steps(_compared(condition)[0])
    if wanted.failure is not None and not _FAILURE.fullmatch(wanted.failure):
        raise InvalidParameterValue(f"{wanted.failure} is not the id of a failure.")


def matches_outside(wanted: MessageFilter, message: StoredMessage, received: int) -> bool:
    """True if a message, received this often, fulfils the conditions that need no content."""
    sent_ms, source = message.sent_at_ms, message.dead_letter_source_arn or ""
    return (
        (wanted.message_id is None or _has_id(message, wanted.message_id))
        and (wanted.source is None or source.rpartition(":")[2] == wanted.source)
        and received >= wanted.received_min
        and (wanted.received_max is None or received <= wanted.received_max)
        and sent_ms >= wanted.sent_from_ms
        and (wanted.sent_until_ms is None or sent_ms < wanted.sent_until_ms)
    )


def _has_id(message: StoredMessage, wanted: str) -> bool:
    """True for the beginning of the message's id, and for the whole of one that it had before: the
    beginning of that may be that of a redrive, whose undo takes only what it moved."""
    return message.message_id.startswith(wanted) or wanted in earlier_ids(message)


def matches_inside(wanted: MessageFilter, body: str, extras: Extras | None) -> bool:
    """True if the content fulfils the other conditions."""
    return (
        (wanted.group is None or (extras is not None and extras.group_id == wanted.group))
        and (wanted.text is None or wanted.text.lower() in body.lower())
        and all(_has_attribute(extras, each) for each in _lines(wanted.attribute))
        and all(_has_field(body, each) for each in _lines(wanted.json))
        and (wanted.failure is None or failure_of(body, extras).failure_id == wanted.failure)
    )


def field_text(body: str, path: str) -> str | None:
    """The value of a field of a JSON body; None if it is not there."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return None
    for step in _steps(path):
        found = _inside(found, step)
        if found is _MISSING:
            return None
    return _as_text(found)


def has_pair(pairs: Mapping[str, str], wanted: str) -> bool:
    """True if there is this NAME, NAME=VALUE or NAME^=BEGINNING."""
    name, begins, value = _compared(wanted)
    found = pairs.get(name)
    return found is not None and _agrees(found, begins, value)


def _has_attribute(extras: Extras | None, wanted: str) -> bool:
    name, begins, value = _compared(wanted)
    attributes = extras.attributes if extras else None
    if not attributes or name not in attributes:
        return False
    found = attributes[name][1]
    return value is None or (
        found.startswith(value.encode()) if begins else found == value.encode()
    )


def _has_field(body: str, wanted: str) -> bool:
    path, begins, value = _compared(wanted)
    found = field_text(body, path)
    return found is not None and _agrees(found, begins, value)


def _agrees(found: str, begins: bool, value: str | None) -> bool:
    return value is None or (found.startswith(value) if begins else found == value)


def _lines(conditions: str | None) -> list[str]:
    return [] if conditions is None else conditions.split("\n")


@lru_cache(maxsize=64)
def _compared(condition: str) -> tuple[str, bool, str | None]:
    """The name of a condition, true if its value is a beginning, and the value, if there is one."""
    name, has_value, value = condition.partition("=")
    if not has_value:
        return name, False, None
    return name.removesuffix("^"), name.endswith("^"), value


def _inside(value: Any, step: str | int) -> Any:
    if isinstance(step, int):
        is_there = isinstance(value, list) and step < len(value)
        return value[step] if is_there else _MISSING
    return value.get(step, _MISSING) if isinstance(value, dict) else _MISSING


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


@lru_cache(maxsize=64)
def _steps(path: str) -> tuple[str | int, ...]:
    """The names and positions of a path; a leading `$` does not count."""
    rest = path.removeprefix("$")
    steps: list[str | int] = []
    while rest:
        step = _STEP.match(rest)
        if step is None:
            raise InvalidParameterValue(f"{path} is no path such as order.items[0].sku.")
        steps.append(step[1] if step[2] is None else int(step[2]))
        rest = rest[step.end() :]
    if not steps:
        raise InvalidParameterValue("The path of a JSON field is empty.")
    return tuple(steps)
