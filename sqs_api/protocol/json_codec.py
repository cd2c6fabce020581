"""AWS JSON 1.0: bytes to Operation and Result to bytes, by msgspec decoders made once at import.
Pure.

Unknown members are ignored, null means absent, an empty body means `{}`. Unreadable input is
InvalidRequest, in the wording of AWS's framework where that is known.
Source: SerializationException texts recorded from AWS services on the same framework (Athena, SES
v2, SQS).
"""

from __future__ import annotations

import re

import msgspec

from sqs_api.protocol.wire_names import TARGET_PREFIX
from visibility.contract.actions import ACTIONS
from visibility.contract.errors import InvalidRequest
from visibility.contract.operations import Operation
from visibility.contract.outcomes import Answer

_MISMATCH = re.compile(r"Expected `(?P<expected>[^`]*)`, got `(?P<given>[^`]*)`")
_HALF_A_PAIR = "A string of the request has half of a UTF-16 surrogate pair, which is no character."
_HALF_AT_END = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u)")
_END_BYTES = 32
_LIST = "Start of list found where not expected"
_STRUCTURE = "Start of structure or map found where not expected."
_WANTED_LIST = "Expected list or null"
_WANTED_STRUCTURE = "Expected null"
_WANTED_SCALARS = {"int": "an Integer", "str": "a String", "bytes": "a Blob"}
_GIVEN_SCALARS = {
    "str": "STRING_VALUE",
    "int": "NUMBER_VALUE",
    "float": "NUMBER_VALUE",
    # msgspec does not report which of the two it met.
    "bool": "BOOLEAN_VALUE",
    "null": "NULL_VALUE",
}

JsonDecoder = msgspec.json.Decoder[Operation]

DECODERS: dict[str, JsonDecoder] = {
    name: msgspec.json.Decoder(action.request) for name, action in ACTIONS.items()
}
"""A typed decoder per action."""

TARGETS: dict[bytes, tuple[str, JsonDecoder]] = {
    (TARGET_PREFIX + name).encode(): (name, decoder) for name, decoder in DECODERS.items()
}
"""`X-Amz-Target` as sent -> action and decoder: the one look-up of the hot path."""

_encode = msgspec.json.Encoder().encode


UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of a decoder: not JSON or a member of the wrong type, not UTF-8, nested too deep."""


def refusal(failure: Exception, body: bytes) -> InvalidRequest:
    """The refusal for one of UNREADABLE."""
    if isinstance(failure, msgspec.MsgspecError):
        return InvalidRequest(_HALF_A_PAIR if _is_half(failure, body) else _wording(failure))
    if isinstance(failure, UnicodeDecodeError):
        return InvalidRequest("The request body is not valid UTF-8.")
    return InvalidRequest("The request body is nested too deeply.")


def _is_half(failure: msgspec.MsgspecError, body: bytes) -> bool:
    """True for a lone surrogate, which near the end of the body msgspec reports as truncated."""
    text = str(failure)
    if "truncated" in text:
        return _HALF_AT_END.search(body[-_END_BYTES:]) is not None
    return "surrogate" in text


def _wording(failure: msgspec.MsgspecError) -> str:
    """AWS's text for a mismatch of types; AWS says nothing at all about bytes that are not JSON, we
    do."""
    mismatch = _MISMATCH.search(str(failure))
    if mismatch is None:
        return str(failure)
    expected = mismatch["expected"].removesuffix(" | null")
    given = mismatch["given"]
    if given == "array":
        return _LIST
    if expected == "array":
        return _WANTED_LIST
    if expected == "object":
        return _WANTED_STRUCTURE
    if given == "object":
        return _STRUCTURE
    wanted = _WANTED_SCALARS.get(expected)
    found = _GIVEN_SCALARS.get(given)
    return (
        str(failure)
        if wanted is None or found is None
        else f"{found} can not be converted to {wanted}"
    )


def encode_json(result: Answer) -> bytes:
    """Write one answer; an action without a result answers the empty object."""
    return b"{}" if result is None else _encode(result)
