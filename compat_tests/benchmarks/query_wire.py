"""The query protocol, for a service that does not speak JSON: the load's calls and their answers,
translated. Pure."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

import msgspec

CONTENT_TYPE = "application/x-www-form-urlencoded"
_VERSION = "2012-11-05"
_VALUE = re.compile(rb"<(QueueUrl|MessageId)>([^<]*)</")
_MESSAGE = re.compile(rb"<ReceiptHandle>([^<]*)</.*?<Body>([^<]*)</", re.DOTALL)
_SUCCESS = re.compile(rb"<(?:Send|Delete)MessageBatchResultEntry>\s*<Id>([^<]*)</")
_FAILURE = re.compile(rb"<BatchResultErrorEntry>.*?</BatchResultErrorEntry>", re.DOTALL)


def form_of(action: str, body: bytes) -> bytes:
    """The form of a call whose members are JSON."""
    members: dict[str, Any] = msgspec.json.decode(body)
    fields = [("Action", action), ("Version", _VERSION)]
    for name, value in members.items():
        if isinstance(value, dict):
            for number, pair in enumerate(value.items(), 1):
                fields += zip(_attribute_names(number), pair, strict=True)
        elif isinstance(value, list):
            for number, entry in enumerate(value, 1):
                start = f"{action}RequestEntry.{number}."
                fields += [(start + member, text) for member, text in entry.items()]
        else:
            fields.append((name, value))
    return urlencode(fields).encode()


def json_of(answer: bytes) -> bytes:
    """The members of an answer that the load reads, as JSON. Its texts have no escapes."""
    values: dict[str, object] = {}
    for name, value in reversed(_VALUE.findall(answer)):
        values[name.decode()] = value.decode()
    values["Messages"] = [
        {"ReceiptHandle": handle.decode(), "Body": body.decode()}
        for handle, body in _MESSAGE.findall(answer)
    ]
    values["Successful"] = [{"Id": entry_id.decode()} for entry_id in _SUCCESS.findall(answer)]
    values["Failed"] = [failure.decode() for failure in _FAILURE.findall(answer)]
    return msgspec.json.encode(values)


def _attribute_names(number: int) -> tuple[str, str]:
    return f"Attribute.{number}.Name", f"Attribute.{number}.Value"
