"""Requests and answers as bytes, so that one host can have another decide a request.

Errors are values. A definition is sent as its id and version: every host has the definitions in its
view, and one with another version of a queue must notice before it decides. Within a
host, a request reaches its shard unencoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from auth.auth_errors import AuthError
from auth.caller import Caller
from visibility.contract.errors import InternalError, QueueError
from visibility.contract.model import Content, QueueDefinition, Receipt, Request
from visibility.contract.operations import Operation
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


_Reference = tuple[int, int]
"""A definition's id and version."""
_SentPart = Content | tuple[int | str, int | str]
"""A Receipt as its two numbers, an error as its name and text."""


class _SentRequest(msgspec.Struct, Generic[T], frozen=True, array_like=True, gc=False):
    operation: T
    queue: _Reference
    caller: Caller
    request_id: str
    parts: Sequence[_SentPart]
    dead_letter_queue: _Reference | None
    destination: _Reference | None
    targets: tuple[str, ...] | None


class _SentAnswer(msgspec.Struct, Generic[T], frozen=True, array_like=True, gc=False):
    answer: T
    duplicates: int = -1
    """Number for a deduplicated send, else -1."""


class _SentError(msgspec.Struct, frozen=True, array_like=True, gc=False):
    name: str
    text: str


def _named(base: type[T]) -> dict[str, type[T]]:
    """A class's subclasses of every depth, by name."""
    found: dict[str, type[T]] = {}
    for kind in base.__subclasses__():
        found |= {kind.__name__: kind, **_named(kind)}
    return found


def _head(kind: type) -> bytes:
    """The name of a type, which stands before what is encoded: it can then be decoded in one go."""
    name = kind.__name__.encode()
    return bytes([len(name)]) + name


_OPERATIONS = {_head(kind): kind for kind, row in OPERATIONS.items() if not row.is_fixed}
"""Those that may cross: one that is fixed to a queue must not reach a leader that knows another."""
_ERRORS: dict[str, type[QueueError] | type[AuthError]] = {**_named(QueueError), **_named(AuthError)}
_ANSWERS: dict[bytes, type] = {
    _head(kind): kind
    for kind in (_SentError, type(None), *(row.answer for row in OPERATIONS.values()))
    if kind is not None
}
_HEADS = {kind: _head(kind) for kind in (*OPERATIONS, *_ANSWERS.values())}
_decoders: dict[type, Callable[[bytes], Any]] = {}
"""By the type of the operation or answer; a decoder costs more than to decode with it."""


# -- requests --------------------------------------------------------------------------------------


def encode_request(request: Request) -> bytes:
    """A request for another host."""
    operation, queue = request.operation, request.queue
    sent = _SentRequest(
        operation,
        (queue.queue_id, queue.version),
        request.caller,
        request.request_id,
        [part if type(part) is Content else _sent_part(part) for part in request.parts],
        _reference(request.dead_letter_queue),
        _reference(request.destination),
        request.targets,
    )
    return _HEADS[type(operation)] + _encode(sent)


def decode_request(message: bytes, find: Find) -> Request:
    """The request, with the definitions of this host. Raises DefinitionUnknown,
    MessageUnreadable."""
    sent: _SentRequest[Operation] = _decoded(message, _OPERATIONS, _SentRequest)
    dead_letter_queue, destination = sent.dead_letter_queue, sent.destination
    return Request(
        sent.operation,
        _found(sent.queue, find),
        sent.caller,
        sent.request_id,
        tuple([part if type(part) is Content else _part(part) for part in sent.parts]),
        None if dead_letter_queue is None else _found(dead_letter_queue, find),
        None if destination is None else _found(destination, find),
        sent.targets,
    )


def _reference(queue: QueueDefinition | None) -> _Reference | None:
    return None if queue is None else (queue.queue_id, queue.version)


def _found(reference: _Reference, find: Find) -> QueueDefinition:
    queue_id, version = reference
    queue = find(queue_id)
    if queue is None or queue.version != version:
        raise DefinitionUnknown(queue_id, version)
    return queue


def _sent_part(part: Content | Receipt | QueueError) -> _SentPart:
    if isinstance(part, Receipt):
        return part.sequence, part.delivery
    assert isinstance(part, QueueError)
    return type(part).__name__, part.message


def _part(sent: _SentPart) -> Content | Receipt | QueueError:
    assert isinstance(sent, tuple)
    one, other = sent
    if isinstance(one, int) and isinstance(other, int):
        return Receipt(one, other)
    error = _error(str(one), str(other))
    if not isinstance(error, QueueError):
        raise MessageUnreadable(f"{one} is no part of a request")
    return error


# -- answers ---------------------------------------------------------------------------------------


def encode_answer(answer: Answer | QueueError | AuthError) -> bytes:
    """An answer for the host that asked."""
    duplicates = -1
    value: Any = answer
    if isinstance(answer, Deduplicated):
        value, duplicates = answer.result, answer.duplicates
    elif isinstance(answer, QueueError | AuthError):
        value = _SentError(type(answer).__name__, answer.message)
    return _HEADS[type(value)] + _encode(_SentAnswer(value, duplicates))


def decode_answer(message: bytes) -> Answer | QueueError | AuthError:
    """The answer or the refusal. Raises MessageUnreadable."""
    sent: _SentAnswer[Any] = _decoded(message, _ANSWERS, _SentAnswer)
    answer = sent.answer
    if type(answer) is _SentError:
        return _error(answer.name, answer.text)
    if sent.duplicates >= 0:
        return Deduplicated(answer, sent.duplicates)
    return answer  # type: ignore[no-any-return]


def _error(name: str, text: str) -> QueueError | AuthError:
    """The error; a host of a later version may refuse with one that is unknown here."""
    kind = _ERRORS.get(name)
    return InternalError() if kind is None else kind(text)


def _decoded(message: bytes, kinds: Mapping[bytes, type], sent: Any) -> Any:
    """The value after the name of one of these types, as `sent` of that type."""
    end = 1 + message[0] if message else 0
    kind = kinds.get(message[:end])
    if kind is None:
        raise MessageUnreadable(f"there is no operation or answer {message[1:end]!r}")
    decode = _decoders.get(kind)
    if decode is None:
        decode = _decoders[kind] = msgspec.msgpack.Decoder(sent[kind]).decode
    try:
        return decode(message[end:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MessageUnreadable(f"no {kind.__name__.lstrip('_')}: {error}") from error
