"""Edits: the bodies of many messages changed in one way, by a JSON merge patch (RFC 7396).

A field that the patch does not name keeps its text: a number such as 1.10 stays as it was written.
"""

from __future__ import annotations

from typing import Any

import msgspec

from visibility.content.content import unpack, with_body
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.naming import checked_utf8
from visibility.contract.stored_message import StoredMessage

EDIT_BYTES_MAX = 4_096
_DEPTH_MAX = 32
_Fields = dict[str, msgspec.Raw]
NO_OBJECT = "BodyIsNoObject"
TOO_LONG = "EditedTooLong"
"""Reasons for which a message is not edited."""


def edit_of(patch: dict[str, Any]) -> str:
    """The stored form of a merge patch. Raises InvalidParameterValue."""
    if not patch:
        raise InvalidParameterValue("The edit changes nothing.")
    try:
        text = msgspec.json.encode(patch).decode()
        depth = _depth(patch)
    except (RecursionError, UnicodeError):
        raise InvalidParameterValue("The edit is no JSON that a message can hold.") from None
    if checked_utf8(text) is None:
        raise InvalidParameterValue("The edit has a character that no message can hold.")
    if len(text.encode()) > EDIT_BYTES_MAX or depth > _DEPTH_MAX:
        raise InvalidParameterValue(
            f"An edit has at most {EDIT_BYTES_MAX} bytes and {_DEPTH_MAX} levels."
        )
    return text


def edited_body(body: str, edit: str) -> str | None:
    """The body with the edit; None if it is no JSON object."""
    try:
        return _merged(body.encode(), msgspec.json.decode(edit)).decode()
    except (msgspec.MsgspecError, RecursionError):
        return None


def edited(message: StoredMessage, data: bytes, edit: str, size_max: int) -> StoredMessage | str:
    """The message with the edit, not sealed, or the reason why it is not edited.

    `data` is its content. A message longer than `size_max` may stay as long as it is.
    """
    _, body, _ = unpack(data)
    after = edited_body(body, edit)
    if after is None:
        return NO_OBJECT
    size = message.size + len(after.encode()) - len(body.encode())
    if size > max(size_max, message.size):
        return TOO_LONG
    return msgspec.structs.replace(message, size=size, data=with_body(data, after), sealed=0)


def _merged(text: bytes | msgspec.Raw, patch: dict[str, Any]) -> bytes:
    """A JSON object after a merge patch: what is null goes, objects are merged, others replace."""
    fields = msgspec.json.decode(text, type=_Fields)
    for name, change in patch.items():
        if change is None:
            fields.pop(name, None)
        elif isinstance(change, dict):
            fields[name] = msgspec.Raw(_merged(_object_in(fields, name), change))
        else:
            fields[name] = msgspec.Raw(msgspec.json.encode(change))
    return msgspec.json.encode(fields)


def _object_in(fields: _Fields, name: str) -> bytes | msgspec.Raw:
    """The object that is merged with; one that is not there, or is something else, is empty."""
    held = fields.get(name)
    return held if held is not None and bytes(held).lstrip().startswith(b"{") else b"{}"


def _depth(value: object) -> int:
    if not isinstance(value, dict):
        return 0
    return 1 + max(map(_depth, value.values()), default=0)
