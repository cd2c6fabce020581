"""Bounds of a large JSON body, before it is decoded: hundreds of thousands of objects would hold up
the event loop for a third of a second, whose request is refused in the end. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import msgspec

from sqs_api.protocol.transact_shapes import ACTION, ENTRIES_MAX
from visibility.contract import limits
from visibility.contract.errors import (
    InvalidParameterValue,
    RequestTooLarge,
    TooManyEntriesInBatchRequest,
)
from visibility.contract.operations import SendMessage, SendMessageBatch

LARGE_BYTES = 256 << 10
"""No valid request without a message is larger, however its writer escapes it."""
_OBJECTS_MAX = 1_000
"""Several times as many entries, and values of attributes, as a valid request has."""


class _Seen:
    """Objects seen in the body that is being skimmed. Decoding yields to nobody."""

    entries = 0
    attributes = 0


class _Value(msgspec.Struct):
    def __post_init__(self) -> None:
        _Seen.attributes += 1
        if _Seen.attributes > _OBJECTS_MAX:
            _refuse_attributes()


class _Attributed(msgspec.Struct, rename="pascal"):
    message_attributes: dict[str, _Value] | None = None
    message_system_attributes: dict[str, _Value] | None = None


class _Entry(_Attributed):
    def __post_init__(self) -> None:
        _Seen.entries += 1
        if _Seen.entries > _OBJECTS_MAX:
            _refuse_entries(limits.BATCH_ENTRIES_MAX)


class _Batch(msgspec.Struct, rename="pascal"):
    entries: list[_Entry] | None = None


class _Item(msgspec.Struct, rename="pascal"):
    send: _Attributed | None = None

    def __post_init__(self) -> None:
        _Seen.entries += 1
        if _Seen.entries > _OBJECTS_MAX:
            _refuse_entries(ENTRIES_MAX)


class _Transaction(msgspec.Struct, rename="pascal"):
    transact_items: list[_Item] | None = None


_SKIMS: dict[str, Callable[[bytes], object]] = {
    SendMessage.__name__: msgspec.json.Decoder(_Attributed).decode,
    SendMessageBatch.__name__: msgspec.json.Decoder(_Batch).decode,
    ACTION: msgspec.json.Decoder(_Transaction).decode,
}
"""Read what a send may have too much of. All else is skipped, which is fast: what they refuse, the
decoder of the action refuses as early."""


def check_large(action: str, body: bytes) -> None:
    """Refuse a body of more than LARGE_BYTES that no valid request of the action can have.

    Raises RequestTooLarge, TooManyEntriesInBatchRequest, InvalidParameterValue; says nothing about
    a body that cannot be read.
    """
    skim = _SKIMS.get(action)
    if skim is None:
        raise RequestTooLarge(f"The request is larger than {LARGE_BYTES} bytes.")
    if body.count(b"{") <= _OBJECTS_MAX:
        return
    _Seen.entries = _Seen.attributes = 0  # the braces may be those of a message
    try:
        skim(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return  # the decoder of the action ends at the same place


def _refuse_entries(most: int) -> NoReturn:
    raise TooManyEntriesInBatchRequest(
        f"Maximum number of entries per request are {most}. You have sent more than {_OBJECTS_MAX}."
    )


def _refuse_attributes() -> NoReturn:
    raise InvalidParameterValue(
        f"Number of message attributes [more than {_OBJECTS_MAX}] exceeds the allowed maximum "
        f"[{limits.MESSAGE_ATTRIBUTES_MAX}]."
    )
