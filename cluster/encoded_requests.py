"""Requests and answers as bytes, so that one host can have another decide a request.

Errors are values. A definition is sent as its id and version: every host has the definitions in its
view, and one with another version of a queue must notice before it decides. Within a
host, a request reaches its shard unencoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from struct import Struct
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from auth.auth_errors import AuthError
from auth.caller import Caller
from visibility.contract.errors import InternalError, QueueError
from visibility.contract.model import Content, QueueDefinition, Receipt, Request
from visibility.contract.operations import DeleteMessage, Operation, ReceiveMessage, SendMessage
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


class _SentInBundle(msgspec.Struct, Generic[T], frozen=True, array_like=True, gc=False):
    """A request whose operation its context has; its only part is as it is."""

    request_id: str
    parts: tuple[T]


class _SentAnswer(msgspec.Struct, Generic[T], frozen=True, array_like=True, gc=False):
    answer: T
    duplicates: int = -1
    """Number for a deduplicated send, else -1."""


class _SentError(msgspec.Struct, frozen=True, array_like=True, gc=False):
    name: str
    text: str


class _Known(NamedTuple):
    """A context, and the decoder of what follows it."""

    context: _SentContext[Any]
    decode: Callable[[bytes], _SentRequest[Any]]


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
_IN_COMMON = frozenset({SendMessage, ReceiveMessage, DeleteMessage})
"""Operations that are often the same, as the leader needs them."""
PART_IN_BUNDLE: Mapping[type, type] = {SendMessage: Content, DeleteMessage: Receipt}
"""The operations that may be one of several, each with the kind of its only part."""
_decode_bundle: Mapping[type, Callable[[bytes], list[_SentInBundle[Any]]]] = {
    kind: msgspec.msgpack.Decoder(list[_SentInBundle[part]]).decode  # type: ignore[valid-type]
    for kind, part in PART_IN_BUNDLE.items()
}
_CONTEXT = Struct(">I")
"""Length of the context."""
CONTEXTS_MAX = 1_000
CONTEXT_BYTES_MAX = 1_000
_contexts: dict[bytes, _Known] = {}
"""Those that came lately."""
_encoded: dict[tuple[int, type], tuple[tuple[object, ...], bytes]] = {}
"""The last context of each queue and operation that was encoded: what it was made of, and its
bytes with their length."""


# -- requests --------------------------------------------------------------------------------------


def encode_request(request: Request, operation: Operation | None = None) -> bytes:
    """A request for another host, with `operation` in the place of its own if one is given."""
    operation = operation or request.operation
    return encode_context(request, operation) + _encode(_sent(request, operation))


def encode_requests(context: bytes, requests: Sequence[Request]) -> bytes:
    """Several requests with this context, each with a part as `PART_IN_BUNDLE` has it."""
    return context + _encode([(each.request_id, each.parts) for each in requests])


def _sent(request: Request, operation: Operation) -> tuple[str, tuple[Any, ...], Operation | None]:
    """The part behind the context, as a _SentRequest is encoded."""
    parts: tuple[Any, ...] = request.parts
    if len(parts) != 1 or type(parts[0]) is not Content:
        parts = tuple([part if type(part) is Content else _sent_part(part) for part in parts])
    return request.request_id, parts, None if type(operation) in _IN_COMMON else operation


def encode_context(request: Request, operation: Operation) -> bytes:
    """The part that a request has in common with others, with its length."""
    queue, caller, dead_letter_queue = request.queue, request.caller, request.dead_letter_queue
    destination, targets, kind = request.destination, request.targets, type(operation)
    common = operation if kind in _IN_COMMON else None
    made_of = queue, caller, dead_letter_queue, destination, targets, common
    key = queue.queue_id, kind
    known = _encoded.get(key)
    if known is None or known[0] != made_of:
        context = _HEADS[kind] + _encode(
            _SentContext(
                _reference(queue),
                caller,
                None if dead_letter_queue is None else _reference(dead_letter_queue),
                None if destination is None else _reference(destination),
                targets,
                common,
            )
        )
        known = made_of, _CONTEXT.pack(len(context)) + context
        if len(known[1]) <= CONTEXT_BYTES_MAX:
            if len(_encoded) >= CONTEXTS_MAX:
                _encoded.clear()
            _encoded[key] = known
    return known[1]


def decode_request(message: bytes, find: Find, at: int = 0) -> Request:
    """The request that begins there, with the definitions of this host. Raises DefinitionUnknown,
    MessageUnreadable."""
    (context, decode), end = _known_context(message, at)
    sent = _read(decode, message[end:], "request")
    operation = context.operation or sent.operation
    if operation is None:
        raise MessageUnreadable("there is no operation")
    parts: tuple[Any, ...] = sent.parts
    if len(parts) != 1 or type(parts[0]) is not Content:
        parts = tuple([part if type(part) is Content else _part(part) for part in parts])
    queue, dead_letters, destination = _definitions(context, find)
    return Request(
        operation,
        queue,
        context.caller,
        sent.request_id,
        parts,
        dead_letters,
        destination,
        context.targets,
    )


def decode_requests(message: bytes, find: Find, at: int) -> list[Request]:
    """The same for several requests with one context."""
    (context, _), end = _known_context(message, at)
    operation, caller, targets = context.operation, context.caller, context.targets
    decode = _decode_bundle.get(type(operation))
    if operation is None or decode is None:
        raise MessageUnreadable(f"{type(operation).__name__} comes by itself")
    sent = _read(decode, message[end:], "requests")
    if not sent:
        raise MessageUnreadable("there are no requests")
    queue, dead_letters, destination = _definitions(context, find)
    return [
        Request(
            operation,
            queue,
            caller,
            each.request_id,
            each.parts,
            dead_letters,
            destination,
            targets,
        )
        for each in sent
    ]


def _definitions(
    context: _SentContext[Any], find: Find
) -> tuple[QueueDefinition, QueueDefinition | None, QueueDefinition | None]:
    """The queue, its dead-letter queue and the destination."""
    dead_letter_queue, destination = context.dead_letter_queue, context.destination
    return (
        _found(context.queue, find),
        None if dead_letter_queue is None else _found(dead_letter_queue, find),
        None if destination is None else _found(destination, find),
    )


def _known_context(message: bytes, at: int) -> tuple[_Known, int]:
    """The context that begins there, and its end. Raises MessageUnreadable."""
    begin = at + _CONTEXT.size
    if len(message) < begin:
        raise MessageUnreadable("there is no operation")
    end = begin + _CONTEXT.unpack_from(message, at)[0]
    content = message[begin:end]
    known = _contexts.get(content)
    return (_new_context(content) if known is None else known), end


def _new_context(content: bytes) -> _Known:
    """A context that did not come lately. Raises MessageUnreadable."""
    kind, context = _decoded(content, _OPERATIONS, _SentContext)
    found = _Known(context, _decoder(_SentRequest, kind))
    if len(content) <= CONTEXT_BYTES_MAX:
        if len(_contexts) >= CONTEXTS_MAX:
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


def encode_alike(answers: Sequence[Answer | QueueError]) -> bytes | None:
    """Several answers, None unless all are plain ones of one kind."""
    kinds = set(map(type, answers))
    kind = kinds.pop()
    if kinds or kind not in _PLAIN:
        return None
    return _HEADS[kind] + _encode(answers)


def decode_alike(message: bytes, at: int) -> list[Answer]:
    """Several answers of one kind. Raises MessageUnreadable."""
    answers: list[Answer] = _decoded(message, _ANSWERS, list, at)[1]
    return answers


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
    return kind, _read(_decoder(sent, kind), message[begin:], kind.__name__.lstrip("_"))


@cache
def _decoder(sent: Any, kind: type) -> Callable[[bytes], Any]:
    """Decodes `sent` of a type. To make one costs more than to decode with it."""
    return msgspec.msgpack.Decoder(sent[kind]).decode


def _read(decode: Callable[[bytes], Any], encoded: bytes, what: str) -> Any:
    try:
        return decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MessageUnreadable(f"no {what}: {error}") from error
