"""Requests and answers as bytes, so that one host can have another decide a request.

Errors are values. A definition is sent as its id and version: every host has the definitions in its
view, and one with another version of a queue must notice before it decides. Within a
host, a request reaches its shard unencoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, Generic, TypeVar

import msgspec

from auth.auth_errors import AuthError
from auth.caller import Caller
from visibility.contract.errors import InternalError, QueueError
from visibility.contract.model import Content, QueueDefinition, Receipt, Request
from visibility.contract.operations import (
    Operation,
    ReceiveMessage,
    SendMessage,
)
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


class _SentContext(msgspec.Struct, Generic[T], frozen=True, array_like=True, gc=False):
    """The part of a request that many have in common."""

    queue: _Reference
    caller: Caller
    dead_letter_queue: _Reference | None
    destination: _Reference | None
    targets: tuple[str, ...] | None
    operation: T | None
    """None if it stands in `_SentRequest`."""


class _SentRequest(msgspec.Struct, Generic[T], frozen=True, array_like=True, gc=False):
    request_id: str
    parts: tuple[_SentPart, ...]
    operation: T | None = None


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
_PLAIN = frozenset(_ANSWERS.values()) - {_SentError}
_HEADS = {kind: _head(kind) for kind in (*OPERATIONS, *_ANSWERS.values())}
_decoders: dict[type, Callable[[bytes], Any]] = {}
"""Of contexts by their operation's type and of answers by theirs; a decoder costs more than to
decode with it."""
_request_decoders: dict[type, Callable[[bytes], Any]] = {}
"""Of what follows a context, by the operation's type."""
_IN_COMMON = frozenset({SendMessage, ReceiveMessage})
"""Operations that are often the same, as the leader needs them."""
_CONTEXT = Struct(">I")
"""Length of the context."""
_CONTEXTS_MAX = 1_000
_CONTEXT_BYTES_MAX = 1_000
_contexts: dict[bytes, tuple[_SentContext[Any], Callable[[bytes], _SentRequest[Any]]]] = {}
"""Those that came lately, and the decoders of what follows them."""


# -- requests --------------------------------------------------------------------------------------


def encode_request(request: Request, operation: Operation | None = None) -> bytes:
    """A request for another host, with `operation` in the place of its own if one is given."""
    queue, operation = request.queue, operation or request.operation
    kind = type(operation)
    dead_letter_queue, destination = request.dead_letter_queue, request.destination
    is_common = kind in _IN_COMMON
    context = _HEADS[kind] + _encode(
        _SentContext(
            (queue.queue_id, queue.version),
            request.caller,
            None if dead_letter_queue is None else _reference(dead_letter_queue),
            None if destination is None else _reference(destination),
            request.targets,
            operation if is_common else None,
        )
    )
    parts: tuple[Any, ...] = request.parts
    if len(parts) != 1 or type(parts[0]) is not Content:
        parts = tuple([part if type(part) is Content else _sent_part(part) for part in parts])
    sent = _SentRequest(request.request_id, parts, None if is_common else operation)
    return _CONTEXT.pack(len(context)) + context + _encode(sent)


def decode_request(message: bytes, find: Find, at: int = 0) -> Request:
    """The request that begins there, with the definitions of this host. Raises DefinitionUnknown,
    MessageUnreadable."""
    begin = at + _CONTEXT.size
    if len(message) < begin:
        raise MessageUnreadable("there is no operation")
    end = begin + _CONTEXT.unpack_from(message, at)[0]
    content = message[begin:end]
    known = _contexts.get(content)
    context, decode = known if known is not None else _context(content)
    try:
        sent = decode(message[end:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MessageUnreadable(f"no request: {error}") from error
    operation = context.operation or sent.operation
    if operation is None:
        raise MessageUnreadable("there is no operation")
    parts: tuple[Any, ...] = sent.parts
    if len(parts) != 1 or type(parts[0]) is not Content:
        parts = tuple([part if type(part) is Content else _part(part) for part in parts])
    dead_letter_queue, destination = context.dead_letter_queue, context.destination
    return Request(
        operation,
        _found(context.queue, find),
        context.caller,
        sent.request_id,
        parts,
        None if dead_letter_queue is None else _found(dead_letter_queue, find),
        None if destination is None else _found(destination, find),
        context.targets,
    )


def _context(content: bytes) -> tuple[_SentContext[Any], Callable[[bytes], _SentRequest[Any]]]:
    """A context that did not come lately. Raises MessageUnreadable."""
    kind, context = _decoded(content, _OPERATIONS, _SentContext)
    decode = _request_decoders.get(kind)
    if decode is None:
        sent: Any = _SentRequest
        decode = _request_decoders[kind] = msgspec.msgpack.Decoder(sent[kind]).decode
    found = context, decode
    if len(content) <= _CONTEXT_BYTES_MAX:
        if len(_contexts) >= _CONTEXTS_MAX:
            _contexts.clear()
        _contexts[content] = found
    return found


def _reference(queue: QueueDefinition) -> _Reference:
    return queue.queue_id, queue.version


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
    kind = type(answer)
    if kind in _PLAIN:
        return _HEADS[kind] + _encode(_SentAnswer(answer))
    duplicates = -1
    value: Any = answer
    if isinstance(answer, Deduplicated):
        value, duplicates = answer.result, answer.duplicates
    elif isinstance(answer, QueueError | AuthError):
        value = _SentError(kind.__name__, answer.message)
    return _HEADS[type(value)] + _encode(_SentAnswer(value, duplicates))


def decode_answer(message: bytes, at: int = 0) -> Answer | QueueError | AuthError:
    """The answer or the refusal that begins there. Raises MessageUnreadable."""
    sent = _decoded(message, _ANSWERS, _SentAnswer, at)[1]
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


def _decoded(
    message: bytes, kinds: Mapping[bytes, type], sent: Any, at: int = 0
) -> tuple[type, Any]:
    """The type whose name stands there, and the value after it, as `sent` of that type."""
    begin = at + 1 + message[at] if len(message) > at else at
    kind = kinds.get(message[at:begin])
    if kind is None:
        raise MessageUnreadable(f"there is no operation or answer {message[at + 1 : begin]!r}")
    decode = _decoders.get(kind)
    if decode is None:
        decode = _decoders[kind] = msgspec.msgpack.Decoder(sent[kind]).decode
    try:
        return kind, decode(message[begin:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MessageUnreadable(f"no {kind.__name__.lstrip('_')}: {error}") from error
