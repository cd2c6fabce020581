"""Search: the conditions of a message browser. Pure.

id=TEXT  group=TEXT  source=QUEUE  received_min=N
text=TEXT             a part of the body, in upper or lower case
attribute=NAME=VALUE  a message attribute; NAME alone: it is there
json=PATH=VALUE       a field of a JSON body, such as items[0].sku=A1; PATH alone: it is there
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from sqs_api.operators.shown_messages import Opened
from visibility.contract.errors import InvalidParameterValue

_STEP = re.compile(r"\.?([^.\[\]=]+)|\[([0-9]{1,6})\]")
_MISSING = object()


class Search(msgspec.Struct, frozen=True):
    """Conditions that must all hold."""

    message_id: str | None = None
    group: str | None = None
    source: str | None = None
    received_min: int = 0
    text: str | None = None
    attribute: str | None = None
    json: str | None = None

    def __bool__(self) -> bool:
        return self != _ANY

    @property
    def reads_bodies(self) -> bool:
        """True if the outcome tells something of bodies or attributes."""
        return bool(self.text or self.attribute or self.json)

    def check(self) -> None:
        """Raise InvalidParameterValue for a path that cannot be read."""
        if self.json is not None:
            _steps(self.json.partition("=")[0])

    def matches(self, message: Opened) -> bool:
        """True if the message fulfils all conditions."""
        found, stored = message.found, message.found.message
        received = found.lease.receive_count if found.lease else stored.receive_count
        source = (stored.dead_letter_source_arn or "").rpartition(":")[2]
        extras = message.extras
        return (
            self.message_id in (None, stored.message_id)
            and received >= self.received_min
            and self.source in (None, source)
            and (self.group is None or (extras is not None and extras.group_id == self.group))
            and (self.text is None or self.text.lower() in (message.body or "").lower())
            and (self.attribute is None or _has_attribute(message, self.attribute))
            and (self.json is None or _has_field(message.body or "", self.json))
        )


_ANY = Search()


def _has_attribute(message: Opened, wanted: str) -> bool:
    name, has_value, value = wanted.partition("=")
    attributes = message.extras.attributes if message.extras else None
    if not attributes or name not in attributes:
        return False
    return not has_value or attributes[name][1] == value.encode()


def _has_field(body: str, wanted: str) -> bool:
    path, has_value, value = wanted.partition("=")
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return False
    for step in _steps(path):
        found = _inside(found, step)
        if found is _MISSING:
            return False
    return not has_value or _as_text(found) == value


def _inside(value: Any, step: str | int) -> Any:
    if isinstance(step, int):
        is_there = isinstance(value, list) and step < len(value)
        return value[step] if is_there else _MISSING
    return value.get(step, _MISSING) if isinstance(value, dict) else _MISSING


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _steps(path: str) -> list[str | int]:
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
    return steps
