"""Bytes in, one typed Operation out; one Result or refusal in, bytes out. The protocol is chosen
per request. Pure.

Raises QueueError only, for any bytes: `decode_request` is the border where foreign failures get
AWS's names.
Source: SQS's two protocols on one endpoint; the paths and headers of test_protocol_codec.py are
recorded.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from auth.auth_errors import AuthError
from sqs_api.protocol import json_codec, query_codec, wire_names
from sqs_api.protocol.error_codes import error_row
from sqs_api.protocol.large_json import LARGE_BYTES, check_large
from visibility.contract.actions import ACTIONS
from visibility.contract.errors import InvalidAction, QueueError, UnknownOperation
from visibility.contract.operations import Operation
from visibility.contract.results import Result

__all__ = [
    "Decoded",
    "EncodedError",
    "Wire",
    "content_type",
    "decode_request",
    "detect_wire",
    "encode_error",
    "encode_result",
]

_NOT_ON_A_QUEUE = frozenset(("CreateQueue", "ListQueues"))
_ECHO_MAX = 128  # characters of an unknown action's name in the answer; the longest real one has 28
_OWN_TARGETS = wire_names.TARGET_PREFIX.encode()
_encode = msgspec.json.Encoder().encode


class Wire(enum.Enum):
    """Wire formats of a request and its answer."""

    JSON = "json"
    QUERY_XML = "query, XML answer"
    QUERY_JSON = "query, JSON answer"


_JSON = Wire.JSON
_CONTENT_TYPES = {
    Wire.JSON: wire_names.CONTENT_TYPE_AWS_JSON,
    Wire.QUERY_XML: wire_names.CONTENT_TYPE_XML,
    Wire.QUERY_JSON: wire_names.CONTENT_TYPE_JSON,
}


class Decoded(msgspec.Struct, frozen=True, gc=False):
    """A request that could be read. gc=False: nothing in it refers back to it."""

    operation: Operation
    action: str
    wire: Wire


class EncodedError(NamedTuple):
    """A refusal, ready to be sent."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    content_type: bytes
    body: bytes


def detect_wire(headers: Mapping[bytes, bytes]) -> Wire:
    """The protocol of a request, also of one that cannot be decoded.

    `headers` has lower-case names. Never raises. Some clients of the query protocol send a target,
    too, such as AmazonSQSv20121105.SendMessage (Perl's Amazon::SQS::Simple).
    """
    media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    named = headers.get(b"x-amz-target")
    if media_type == wire_names.CONTENT_TYPE_AWS_JSON or (
        named is not None
        and (media_type != wire_names.CONTENT_TYPE_FORM or named.startswith(_OWN_TARGETS))
    ):
        return Wire.JSON
    if wire_names.CONTENT_TYPE_JSON in headers.get(b"accept", b"").lower():
        return Wire.QUERY_JSON
    return Wire.QUERY_XML


def decode_request(
    method: bytes, target: bytes, headers: Mapping[bytes, bytes], body: bytes
) -> Decoded:
    """Read one request. `target` is the raw path and query, `headers` has lower-case names.

    UnknownOperation: no action named (query). InvalidAction: no such action, or one a queue's own
    URL does not have. InvalidRequest, MissingParameter, InvalidParameterValue: the request cannot
    be read. Errors of `check_large`: nothing as large as that can be valid.
    """
    row = json_codec.TARGETS.get(headers.get(b"x-amz-target", b""))
    if row is not None:
        if len(body) > LARGE_BYTES:
            check_large(row[0], body)
        try:
            return Decoded(row[1].decode(body or b"{}"), row[0], _JSON)
        except json_codec.UNREADABLE as failure:
            raise json_codec.refusal(failure, body) from failure
    chosen = detect_wire(headers)
    if chosen is _JSON:
        raise _no_such_action(_target_action(headers))
    return _decode_query(method, target, body, chosen)


def _target_action(headers: Mapping[bytes, bytes]) -> str:
    named = headers.get(b"x-amz-target", b"").decode("utf-8", "replace")
    return named.removeprefix(wire_names.TARGET_PREFIX)


def _no_such_action(action: str) -> InvalidAction:
    return InvalidAction(f"The action {action[:_ECHO_MAX]} is not valid for this endpoint.")


def _decode_query(method: bytes, target: bytes, body: bytes, chosen: Wire) -> Decoded:
    raw_path, _, query = target.partition(b"?")
    # One form: of two parameters with one name the body's counts.
    sent = (query,) if method in (b"GET", b"HEAD") else (body, query)
    form = b"&".join(part for part in sent if part)
    params = query_codec.decode_form(form)
    action = params.get("Action")
    if not action:
        raise UnknownOperation
    queue_path = _queue_path(raw_path)
    if action not in ACTIONS or (queue_path and action in _NOT_ON_A_QUEUE):
        raise _no_such_action(action)
    if queue_path:
        params.setdefault("QueueUrl", queue_path)
    return Decoded(query_codec.decode_query(action, params), action, chosen)


def _queue_path(raw_path: bytes) -> str | None:
    """The path as a queue URL when its last two parts can be an account and a name, else None."""
    parts = [part for part in raw_path.split(b"/") if part]  # as `naming.queue_address` reads one
    if len(parts) < 2:
        return None
    return query_codec.decode_percent(b"/" + b"/".join(parts).replace(b"+", b"%2B"))


def content_type(chosen: Wire) -> bytes:
    """The content type of an answer that is not an error."""
    if chosen is _JSON:
        return wire_names.CONTENT_TYPE_AWS_JSON
    return _CONTENT_TYPES[chosen]


def encode_result(
    decoded_action: str, chosen: Wire, result: Result | None, request_id: str
) -> bytes:
    """Write one answer; None is the answer of an action without a result."""
    if chosen is _JSON:
        return json_codec.encode_json(result)
    if chosen is Wire.QUERY_XML:
        return query_codec.encode_xml(decoded_action, result, request_id)
    return query_codec.encode_json_form(decoded_action, result, request_id)


def encode_error(error: QueueError | AuthError, chosen: Wire, request_id: str) -> EncodedError:
    """Write one refusal with its status, headers and content type."""
    row = error_row(error)
    # A text may echo undecodable characters; an answer that cannot be encoded would be a second
    # error.
    message = error.message.encode("utf-8", "replace").decode("utf-8")
    if chosen is _JSON:
        header = f"{error.code};{row.fault.value}".encode()
        body = _encode({"__type": row.json_type, row.message_member: message})
        status = 400 if isinstance(error, UnknownOperation) else row.status
        return EncodedError(status, ((b"x-amzn-query-error", header),), content_type(chosen), body)
    if isinstance(error, UnknownOperation):
        return EncodedError(
            row.status, (), wire_names.CONTENT_TYPE_XML, query_codec.UNKNOWN_OPERATION_BODY
        )
    if row.query_message is not None and message == type(error).default_message:
        message = row.query_message
    encode = (
        query_codec.encode_error_xml
        if chosen is Wire.QUERY_XML
        else query_codec.encode_error_json_form
    )
    body = encode(error.code, message, row.fault, request_id)
    return EncodedError(row.status, (), content_type(chosen), body)
