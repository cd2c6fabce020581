"""CloudWatch's three protocols on SQS's endpoint: bytes to a request's members, results to bytes.
Pure.

    smithy-rpc-v2-cbor   POST /service/GraniteServiceVersion20100801/operation/ACTION
    json                 X-Amz-Target: GraniteServiceVersion20100801.ACTION
    query                Version=2010-08-01&Action=ACTION, by GET or POST; the answer is XML

Source: botocore's model of CloudWatch; what its parsers of these protocols read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import NamedTuple

import msgspec

from auth.auth_errors import AuthError
from sqs_api.cloudwatch.cbor import CborUnreadable, Instant, decode_cbor, encode_cbor
from sqs_api.cloudwatch.requests import MonitoringRefusal, invalid, iso_time
from sqs_api.protocol.error_codes import error_row
from sqs_api.protocol.fields import escape_xml
from sqs_api.protocol.query_codec import decode_form
from sqs_api.protocol.reply import HeaderLines
from visibility.contract.errors import QueueError

_SERVICE = b"GraniteServiceVersion20100801"
_PATH = re.compile(rb"/service/%b/operation/(\w{1,64})" % _SERVICE)
_TARGET = re.compile(rb"%b\.(\w{1,64})" % _SERVICE)
_FIELD = rb"Version=2010-08-01"
_VERSION = re.compile(rb"%b(?<![^&]%b)(?=&|$)" % (_FIELD, _FIELD))
"""The field with a border on both sides. It begins with plain text, for which searches are fast."""
BODY_BYTES_MAX = 512 << 10
"""Several times as much as 500 metrics take."""
_NAMESPACE = "http://monitoring.amazonaws.com/doc/2010-08-01/"
_SHAPES = "com.amazonaws.cloudwatch#"
_SENDER, _RECEIVER = "Sender", "Receiver"
_INDEX = re.compile(r"[1-9]\d{0,3}")
_DEPTH_MAX = 12
_TWO_FORMS = "The parameter {} is there in two forms."

Members = dict[str, object]


class Protocol(Enum):
    """The protocol of a request and its answer."""

    CBOR = b"application/cbor"
    JSON = b"application/x-amz-json-1.0"
    QUERY = b"text/xml"


class Written(NamedTuple):
    """An answer in its protocol."""

    status: int
    content_type: bytes
    body: bytes
    headers: HeaderLines = ()


def protocol_of(target: bytes, headers: Mapping[bytes, bytes], body: bytes) -> Protocol | None:
    """The protocol of a request for CloudWatch; None if it is for another service.

    Strangers ask this: what is behind BODY_BYTES_MAX is not searched.
    """
    if _PATH.fullmatch(target.partition(b"?")[0]):
        return Protocol.CBOR
    operation = headers.get(b"x-amz-target")
    if operation is not None:
        return Protocol.JSON if _TARGET.fullmatch(operation) else None
    if _VERSION.search(body, 0, BODY_BYTES_MAX) or _VERSION.search(target.partition(b"?")[2]):
        return Protocol.QUERY
    return None


def read_action(
    protocol: Protocol, target: bytes, headers: Mapping[bytes, bytes], body: bytes
) -> tuple[str, Callable[[], object]]:
    """The action, and a function that reads its members; those of the query protocol are all text.

    Only the query protocol has the action in the body: the others' body is read by the function,
    once the caller was let in. Both raise MonitoringRefusal.
    """
    if protocol is Protocol.QUERY:
        action, members = _read_query(target, body)
        return action, lambda: members
    if protocol is Protocol.CBOR:
        found = _PATH.fullmatch(target.partition(b"?")[0])
    else:
        found = _TARGET.fullmatch(headers[b"x-amz-target"])
    assert found is not None
    return found[1].decode(), partial(_read_members, protocol, body)


def _read_members(protocol: Protocol, body: bytes) -> object:
    if not body:
        return {}
    try:
        return decode_cbor(body) if protocol is Protocol.CBOR else msgspec.json.decode(body)
    except (CborUnreadable, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = f"The request cannot be read: {error}"
        raise MonitoringRefusal("MalformedInput", text, "SerializationException") from error


def _read_query(target: bytes, body: bytes) -> tuple[str, Members]:
    try:
        form = decode_form(b"&".join(part for part in (body, target.partition(b"?")[2]) if part))
    except QueueError as error:
        raise invalid(error.message) from error
    action = form.pop("Action", "")
    form.pop("Version", None)
    members: Members = {}
    for name, value in form.items():
        _put(members, name, value)
    return action, {name: _lists_in(member) for name, member in members.items()}


def _put(members: Members, name: str, value: str) -> None:
    """Put the value of `A.member.1.B` into its place."""
    *places, last = name.split(".")
    if len(places) > _DEPTH_MAX:
        raise invalid(f"The parameter {name[:100]} is not known.")
    for place in places:
        inner = members.setdefault(place, {})
        if not isinstance(inner, dict):
            raise invalid(_TWO_FORMS.format(name[:100]))
        members = inner
    if last in members:
        raise invalid(_TWO_FORMS.format(name[:100]))
    members[last] = value


def _lists_in(value: object) -> object:
    """The members with each `member.N` as a list."""
    if not isinstance(value, dict):
        return value
    listed = value.get("member")
    if len(value) == 1 and isinstance(listed, dict) and all(map(_INDEX.fullmatch, listed)):
        return [_lists_in(listed[index]) for index in sorted(listed, key=int)]
    return {name: _lists_in(member) for name, member in value.items()}


# -- answers ---------------------------------------------------------------------------------------


def write_result(protocol: Protocol, action: str, result: Members, request_id: str) -> Written:
    """The answer to a request; its timestamps are Instants."""
    if protocol is Protocol.CBOR:
        return Written(200, protocol.value, encode_cbor(result), _CBOR_HEADERS)
    if protocol is Protocol.JSON:
        return Written(200, protocol.value, msgspec.json.encode(_as_json(result)))
    text = (
        f'<{action}Response xmlns="{_NAMESPACE}"><{action}Result>{_xml(result)}</{action}Result>'
        f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata>"
        f"</{action}Response>"
    )
    return Written(200, protocol.value, text.encode())


_CBOR_HEADERS: HeaderLines = ((b"smithy-protocol", b"rpc-v2-cbor"),)


def _as_json(value: object) -> object:
    if isinstance(value, dict):
        return {name: _as_json(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_as_json(each) for each in value]
    return float(value) if isinstance(value, Instant) else value


def _xml(value: object) -> str:
    if isinstance(value, dict):
        return "".join(f"<{name}>{_xml(member)}</{name}>" for name, member in value.items())
    if isinstance(value, list):
        return "".join(f"<member>{_xml(each)}</member>" for each in value)
    if isinstance(value, Instant):
        return iso_time(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return escape_xml(str(value))


def write_refusal(
    protocol: Protocol, refusal: MonitoringRefusal | QueueError | AuthError, request_id: str
) -> Written:
    """A refusal with its code and status."""
    if isinstance(refusal, MonitoringRefusal):
        shape, status = _SHAPES + refusal.shape, refusal.status
    else:
        row = error_row(refusal)
        shape, status = row.json_type, row.status
    fault = _SENDER if status < 500 else _RECEIVER
    if protocol is Protocol.QUERY:
        text = (
            f'<ErrorResponse xmlns="{_NAMESPACE}"><Error><Type>{fault}</Type>'
            f"<Code>{escape_xml(refusal.code)}</Code>"
            f"<Message>{escape_xml(refusal.message)}</Message></Error>"
            f"<RequestId>{request_id}</RequestId></ErrorResponse>"
        )
        return Written(status, protocol.value, text.encode())
    content = {"__type": shape, "message": refusal.message}
    headers = ((b"x-amzn-query-error", f"{refusal.code};{fault}".encode()),)
    if protocol is Protocol.CBOR:
        return Written(status, protocol.value, encode_cbor(content), (*headers, *_CBOR_HEADERS))
    return Written(status, protocol.value, msgspec.json.encode(content), headers)
