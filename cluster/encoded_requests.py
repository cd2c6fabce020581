"""Requests and answers as bytes, so that one host can have another decide a request.

Errors are values. A definition is sent as its id and version: every host has the definitions in its
view, and one with another version of a queue must notice before it decides. Within a
host, a request reaches its shard unencoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from auth.auth_errors import AuthError
from auth.caller import Caller
from visibility.contract.errors import InternalError, QueueError
from visibility.contract.model import Content, QueueDefinition, Receipt, Request
from visibility.contract.outcomes import Answer, Deduplicated
from visibility.rules.features import OPERATIONS

Find = Callable[[int], QueueDefinition | None]
"""Finds this host's definition of a queue by its id."""
T = TypeVar("T")
_encode = msgspec.msgpack.Encoder().encode


class DefinitionUnknown(Exception):
    """A request was made with another version of a queue than this host has."""

    def __init__(self, queue_id: int, version: int) -> None:
        super().__init__(f"queue {queue_id} is not known in version {version}")
        self.queue_id = queue_id
        self.version = version


class MessageUnreadable(Exception):
    """The bytes are not a request or answer of this version; the text gives the reason in one
    line."""


class _QueueReference(msgspec.Struct, frozen=True, array_like=True):
    queue_id: int
    version: int


class _SentError(msgspec.Struct, frozen=True, array_like=True, tag="error"):
    name: str
    text: str


class _SentContent(msgspec.Struct, frozen=True, array_like=True, tag="content"):
    content: Content


class _SentReceipt(msgspec.Struct, frozen=True, array_like=True, tag="receipt"):
    receipt: Receipt


_SentPart = _SentContent | _SentReceipt | _SentError


class _SentRequest(msgspec.Struct, frozen=True, array_like=True):
    name: str
    operation: msgspec.Raw
    queue: _QueueReference
    caller: Caller
    request_id: str
    parts: list[_SentPart]
    dead_letter_queue: _QueueReference | None
    destination: _QueueReference | None
    targets: tuple[str, ...] | None


class _SentAnswer(msgspec.Struct, frozen=True, array_like=True):
    name: str
    """The type of the answer, empty for none."""
    answer: msgspec.Raw
    duplicates: int = -1
    """Number for a deduplicated send, else -1."""


def _named(base: type[T]) -> dict[str, type[T]]:
    """A class's subclasses of every depth, by name."""
    found: dict[str, type[T]] = {}
    for kind in base.__subclasses__():
        found |= {kind.__name__: kind, **_named(kind)}
    return found


_OPERATIONS = {kind.__name__: kind for kind, row in OPERATIONS.items() if not row.is_fixed}
"""Those that may cross: one that is fixed to a queue must not reach a leader that knows another."""
_decoders: dict[Any, Callable[[bytes | msgspec.Raw], Any]] = {}
"""By type: to look for one costs more than to decode a request with it."""
_ERRORS: dict[str, type[QueueError] | type[AuthError]] = {**_named(QueueError), **_named(AuthError)}
_ANSWERS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (_SentError, *(row.answer for row in OPERATIONS.values()))
    if kind is not None
}


# -- requests --------------------------------------------------------------------------------------


def encode_request(request: Request) -> bytes:
    """A request for another host."""
    operation = request.operation
    return _encode(
        _SentRequest(
            type(operation).__name__,
            msgspec.Raw(_encode(operation)),
            _reference(request.queue),
            request.caller,
            request.request_id,
            [_sent_part(part) for part in request.parts],
            _reference_or_none(request.dead_letter_queue),
            _reference_or_none(request.destination),
            request.targets,
        )
    )


def decode_request(message: bytes, find: Find) -> Request:
    """The request, with the definitions of this host. Raises DefinitionUnknown,
    MessageUnreadable."""
    sent = _decoded(message, _SentRequest)
    kind = _OPERATIONS.get(sent.name)
    if kind is None:
        raise MessageUnreadable(f"there is no operation {sent.name}")
    return Request(
        _decoded(sent.operation, kind),
        _found(sent.queue, find),
        sent.caller,
        sent.request_id,
        tuple(_part(part) for part in sent.parts),
        None if sent.dead_letter_queue is None else _found(sent.dead_letter_queue, find),
        None if sent.destination is None else _found(sent.destination, find),
        sent.targets,
    )


def _reference(queue: QueueDefinition) -> _QueueReference:
    return _QueueReference(queue.queue_id, queue.version)


def _reference_or_none(queue: QueueDefinition | None) -> _QueueReference | None:
    return None if queue is None else _reference(queue)


def _found(reference: _QueueReference, find: Find) -> QueueDefinition:
    queue = find(reference.queue_id)
    if queue is None or queue.version != reference.version:
        raise DefinitionUnknown(*msgspec.structs.astuple(reference))
    return queue


def _sent_part(part: Content | Receipt | QueueError) -> _SentPart:
    if isinstance(part, Content):
        return _SentContent(part)
    return _SentReceipt(part) if isinstance(part, Receipt) else _sent_error(part)


def _part(sent: _SentPart) -> Content | Receipt | QueueError:
    if isinstance(sent, _SentContent):
        return sent.content
    if isinstance(sent, _SentReceipt):
        return sent.receipt
    error = _error(sent)
    assert isinstance(error, QueueError)
    return error


# -- answers ---------------------------------------------------------------------------------------


def encode_answer(answer: Answer | QueueError | AuthError) -> bytes:
    """An answer for the host that asked."""
    duplicates = -1
    value: Any = answer
    if isinstance(answer, Deduplicated):
        value, duplicates = answer.result, answer.duplicates
    elif isinstance(answer, QueueError | AuthError):
        value = _sent_error(answer)
    name = "" if value is None else type(value).__name__
    return _encode(_SentAnswer(name, msgspec.Raw(_encode(value)), duplicates))


def decode_answer(message: bytes) -> Answer | QueueError | AuthError:
    """The answer or the refusal. Raises MessageUnreadable."""
    sent = _decoded(message, _SentAnswer)
    if not sent.name:
        return None
    kind = _ANSWERS.get(sent.name)
    if kind is None:
        raise MessageUnreadable(f"there is no answer {sent.name}")
    answer = _decoded(sent.answer, kind)
    if isinstance(answer, _SentError):
        return _error(answer)
    if sent.duplicates >= 0:
        return Deduplicated(answer, sent.duplicates)
    return answer  # type: ignore[no-any-return]


def _sent_error(error: QueueError | AuthError) -> _SentError:
    return _SentError(type(error).__name__, error.message)


def _error(sent: _SentError) -> QueueError | AuthError:
    """The error; a host of a later version may refuse with one that is unknown here."""
    kind = _ERRORS.get(sent.name)
    return InternalError() if kind is None else kind(sent.text)


def _decoded(message: bytes | msgspec.Raw, kind: type[T]) -> T:
    decode = _decoders.get(kind)
    if decode is None:
        decode = _decoders[kind] = msgspec.msgpack.Decoder(kind).decode
    try:
        found: T = decode(message)
        return found
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MessageUnreadable(f"no {kind.__name__.lstrip('_')}: {error}") from error
