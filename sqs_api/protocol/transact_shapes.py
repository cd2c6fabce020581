"""Holdfast.TransactMessages on the wire, in AWS JSON 1.0 only, and its model for SDKs.

The model is made from the shapes, in the form of botocore's service models, which boto3 and the AWS
CLI read from `~/.aws/models`.
"""

from __future__ import annotations

import types
import typing
from typing import Any

import msgspec

from visibility.contract.operations import DeleteMessage, SendMessage, member_name
from visibility.contract.results import Part, Result

ACTION = "TransactMessages"
TARGET_PREFIX = "Holdfast"
ENTRIES_MAX = 100
TOKEN_CHARACTERS_MAX = 128
API_VERSION = "2026-11-25"

_SCALARS = {str: "string", int: "integer", bytes: "blob"}
_REQUIRED = frozenset({"TransactItems", "QueueUrl", "MessageBody", "ReceiptHandle", "DataType"})
_ERRORS = (
    "TransactionCanceledException",
    "IdempotentParameterMismatchException",
    "EmptyBatchRequest",
    "TooManyEntriesInBatchRequest",
    "BatchRequestTooLong",
    "RequestThrottled",
)


class TransactItem(msgspec.Struct, frozen=True, rename=member_name, omit_defaults=True):
    """An entry: one of the two."""

    send: SendMessage | None = None
    delete: DeleteMessage | None = None


class TransactMessagesRequest(msgspec.Struct, frozen=True, rename=member_name):
    """The request. The token is remembered for ten minutes at least."""

    transact_items: list[TransactItem] | None = None
    client_request_token: str | None = None


class TransactItemResult(Part, frozen=True, gc=False):
    """A sent message, as SendMessage answers; a delete has no members."""

    md5_of_message_body: str | None = None
    message_id: str | None = None
    md5_of_message_attributes: str | None = None
    md5_of_message_system_attributes: str | None = None
    sequence_number: str | None = None


class TransactMessagesResult(Result, frozen=True, gc=False):
    """The answer to an accepted transaction, an entry for each of the request."""

    results: list[TransactItemResult]


class CancellationReason(Part, frozen=True, gc=False):
    """The reason of an entry that cancelled the transaction; "None" for one that did not."""

    code: str
    message: str | None = None


_DOCUMENTATION = (
    "<p>Sends and deletes messages of several queues of one account, in whichever shards these "
    "are: all or none, also if the service fails meanwhile.</p><p>A delete whose handle is not "
    "that of the latest receive cancels all, so a message is consumed, and what is made of it "
    "produced, once. While shards agree, a message to be deleted is in flight for everybody "
    "else.</p><p>What is sent is not visible at one instant in all queues; the answer comes once "
    "it is there.</p>"
)


def sdk_model() -> dict[str, Any]:
    """The model, as `service-2.json` has it."""
    shapes: dict[str, dict[str, Any]] = {}
    for kind in (TransactMessagesRequest, TransactMessagesResult, CancellationReason):
        _shape(kind, shapes)
    asked = shapes[TransactMessagesRequest.__name__]
    asked["members"]["ClientRequestToken"]["idempotencyToken"] = True
    for shape in shapes.values():
        members = shape.get("members", {})
        shape |= {"required": sorted(needed)} if (needed := _REQUIRED.intersection(members)) else {}
    reasons = {"type": "list", "member": {"shape": CancellationReason.__name__}}
    shapes["CancellationReasonList"] = reasons
    for name in _ERRORS:
        members = {"message": {"shape": "Str"}}
        shapes[name] = {"type": "structure", "exception": True, "members": members}
    shapes[_ERRORS[0]]["members"]["CancellationReasons"] = {"shape": "CancellationReasonList"}
    return {
        "version": "2.0",
        "metadata": {
            "apiVersion": API_VERSION,
            "endpointPrefix": "sqs",
            "jsonVersion": "1.0",
            "protocol": "json",
            "protocols": ["json"],
            "serviceFullName": "Holdfast",
            "serviceId": "Holdfast",
            "signatureVersion": "v4",
            "signingName": "sqs",
            "targetPrefix": TARGET_PREFIX,
            "uid": f"holdfast-{API_VERSION}",
        },
        "operations": {
            ACTION: {
                "name": ACTION,
                "http": {"method": "POST", "requestUri": "/"},
                "input": {"shape": TransactMessagesRequest.__name__},
                "output": {"shape": TransactMessagesResult.__name__},
                "errors": [{"shape": name} for name in _ERRORS],
                "idempotent": True,
                "documentation": _DOCUMENTATION,
            }
        },
        "shapes": shapes,
    }


def _shape(kind: Any, shapes: dict[str, dict[str, Any]]) -> str:
    """Add a type's shape and those in it; returns its name."""
    kind = _without_none(kind)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    name: str = kind.__name__
    if kind in _SCALARS:
        name = name.capitalize()
        shapes[name] = {"type": _SCALARS[kind]}
    elif origin is list:
        member = _shape(inner[0], shapes)
        name = f"{member}List"
        shapes[name] = {"type": "list", "member": {"shape": member}}
    elif origin is dict:
        key, value = _shape(inner[0], shapes), _shape(inner[1], shapes)
        name = f"{value}Map"
        shapes[name] = {"type": "map", "key": {"shape": key}, "value": {"shape": value}}
    else:
        hints = typing.get_type_hints(kind)
        members = {
            field.encode_name: {"shape": _shape(hints[field.name], shapes)}
            for field in msgspec.structs.fields(kind)
        }
        shapes[name] = {"type": "structure", "members": members}
    return name


def _without_none(kind: Any) -> Any:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        (kind,) = (each for each in typing.get_args(kind) if each is not type(None))
    return kind
