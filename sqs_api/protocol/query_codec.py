"""The query protocol: form parameters to Operation, Result to XML or to its JSON form. Pure.

Readers and writers are compiled from the Structs at import (`fields`); this file knows
percent-encoding, the envelope of an answer and the envelope of an error.
Source: the query-era service model and answers recorded from AWS.
"""

from __future__ import annotations

from codecs import escape_decode

import msgspec

from sqs_api.protocol.error_codes import Fault
from sqs_api.protocol.fields import (
    Params,
    StructReader,
    XmlWriter,
    escape_xml,
    json_form,
    xml_writer,
)
from sqs_api.protocol.wire_names import XML_NAMESPACE
from visibility.contract.actions import ACTIONS
from visibility.contract.errors import InvalidRequest
from visibility.contract.operations import Operation
from visibility.contract.results import Result

_DECLARATION = '<?xml version="1.0"?>'
_READERS: dict[str, StructReader] = {
    name: StructReader(action.request) for name, action in ACTIONS.items()
}
_WRITERS: dict[str, XmlWriter] = {
    name: xml_writer(action.result) for name, action in ACTIONS.items() if action.result is not None
}
_encode = msgspec.json.Encoder().encode

PARAMETERS_MAX = 10_000
"""A full batch has about 700 parameters; ten thousand are read in under 50 ms, more are no honest
request."""

UNKNOWN_OPERATION_BODY = b"<UnknownOperationException/>\n"
"""The whole answer to a query request that names no action."""


def decode_form(form: bytes) -> dict[str, str]:
    """Parameters of an encoded form or query string; the first of several with one name counts.

    InvalidRequest: a broken percent escape, bytes that are not UTF-8, or more than PARAMETERS_MAX
    parameters.
    """
    if form.count(b"&") >= PARAMETERS_MAX:
        raise InvalidRequest(f"The request has more than {PARAMETERS_MAX} parameters.")
    params: dict[str, str] = {}
    for pair in form.split(b"&"):
        name, _, value = pair.partition(b"=")
        decoded = decode_percent(name)
        if decoded and decoded not in params:
            params[decoded] = decode_percent(value)
    return params


def decode_percent(text: bytes) -> str:
    """Form-decode: `+` is a space, `%41` is A.

    Escapes are handed to Python's escape decoder as `\\x41`: a mebibyte of message can be mostly
    escapes, and this way of decoding them does not hold the event loop for long. InvalidRequest: a
    broken escape, or not UTF-8.
    """
    try:
        if b"+" in text:
            text = text.replace(b"+", b" ")
        if b"%" in text:
            text, _ = escape_decode(text.replace(b"\\", b"\\x5c").replace(b"%", b"\\x"))
        return text.decode()
    except ValueError as failure:
        raise InvalidRequest(
            "The request's parameters are not valid UTF-8 form encoding."
        ) from failure


def decode_query(action: str, params: Params) -> Operation:
    """Read one request of a known action. Raises InvalidRequest, MissingParameter,
    InvalidParameterValue."""
    operation: Operation = _READERS[action].read(params)
    return operation


def encode_xml(action: str, result: Result | None, request_id: str) -> bytes:
    """Write one answer; an action without a result has only ResponseMetadata."""
    out = [f'{_DECLARATION}<{action}Response xmlns="{XML_NAMESPACE}">']
    if result is not None:
        members: list[str] = []
        _WRITERS[action](result, members)
        if members:
            out += (f"<{action}Result>", *members, f"</{action}Result>")
        else:
            out.append(f"<{action}Result/>")
    out.append(
        f"<ResponseMetadata><RequestId>{escape_xml(request_id)}</RequestId></ResponseMetadata>"
        f"</{action}Response>"
    )
    return "".join(out).encode()


def encode_json_form(action: str, result: Result | None, request_id: str) -> bytes:
    """Write one answer to a query request that accepts JSON; absent members are null, as AWS has
    them."""
    content: dict[str, object] = {"ResponseMetadata": {"RequestId": request_id}}
    if result is not None:
        content[f"{action}Result"] = json_form(result)
    return _encode({f"{action}Response": content})


def encode_error_xml(code: str, message: str, fault: Fault, request_id: str) -> bytes:
    """Write one refusal; `<Detail/>` is always there and always empty."""
    return (
        f'{_DECLARATION}<ErrorResponse xmlns="{XML_NAMESPACE}"><Error><Type>{fault.value}</Type>'
        f"<Code>{escape_xml(code)}</Code><Message>{escape_xml(message)}</Message><Detail/></Error>"
        f"<RequestId>{escape_xml(request_id)}</RequestId></ErrorResponse>"
    ).encode()


def encode_error_json_form(code: str, message: str, fault: Fault, request_id: str) -> bytes:
    """Write one refusal of a query request that accepts JSON."""
    error = {"Code": code, "Message": message, "Type": fault.value}
    return _encode({"Error": error, "RequestId": request_id})
