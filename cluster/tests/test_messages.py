"""Every request and every answer comes out of its bytes as it went in."""

from __future__ import annotations

import inspect
import os
import typing
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auth import auth_errors
from auth.auth_errors import AuthError
from auth.caller import Caller
from cluster import encoded_requests
from cluster.encoded_requests import (
    DefinitionUnknown,
    MessageUnreadable,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)
from visibility.contract import errors, outcomes, results
from visibility.contract.errors import InternalError, QueueError, ServiceUnavailable
from visibility.contract.model import Content, QueueDefinition, Receipt, Request
from visibility.contract.operations import Operation, SendMessage
from visibility.contract.outcomes import Deduplicated
from visibility.rules import features
from visibility.tests import prepared

EXAMPLES = settings(max_examples=int(os.environ.get("MODEL_EXAMPLES", "15")), deadline=None)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBER = st.integers(-(2**63), 2**64 - 1)
_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: NUMBER,
    bool: st.booleans(),
    bytes: st.binary(max_size=8),
    type(None): st.none(),
}


@cache
def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type of the contract."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    arguments = typing.get_args(kind)
    origin = typing.get_origin(kind)
    if origin is list:
        return st.lists(values(arguments[0]), max_size=3)
    if origin is frozenset:
        return st.frozensets(values(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=3)
    if origin is tuple:
        return st.tuples(*map(values, arguments))
    if arguments:
        return st.one_of([values(each) for each in arguments])
    hints = typing.get_type_hints(kind)
    fields = {name: values(hints[name]) for name in kind.__struct_fields__}
    return st.fixed_dictionaries(fields).map(lambda given: kind(**given))


def classes_of(*modules: Any, base: type) -> list[type]:
    found = (each for module in modules for _, each in inspect.getmembers(module, inspect.isclass))
    return sorted({each for each in found if issubclass(each, base) and each is not base}, key=str)


FIXED = [kind for kind, row in features.OPERATIONS.items() if row.is_fixed]
OPERATIONS = [kind for kind, row in features.OPERATIONS.items() if not row.is_fixed]
ANSWERS = sorted({row.answer for row in features.OPERATIONS.values() if row.answer}, key=str)
ERRORS = classes_of(errors, base=QueueError) + classes_of(auth_errors, base=AuthError)
QUEUES = {each.queue_id: each for each in (prepared.queue_named(f"q{n}", n) for n in range(1, 4))}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, QueueError | AuthError):
        return type(one) is type(other) and one.message == other.message
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def test_no_answer_is_left_out() -> None:
    not_results = {kind for kind in ANSWERS if not issubclass(kind, results.Result)}
    listed = {results.Result, type(None), Deduplicated, *not_results}
    assert set(typing.get_args(outcomes.Answer)) == listed


queue = st.sampled_from(list(QUEUES.values()))
part = st.one_of(
    values(Content),
    values(Receipt),
    st.builds(
        lambda kind, text: kind(text), st.sampled_from(classes_of(errors, base=QueueError)), TEXT
    ),
)


@pytest.mark.parametrize("kind", OPERATIONS, ids=lambda kind: kind.__name__)
@EXAMPLES
@given(data=st.data())
def test_a_request(kind: type[Operation], data: st.DataObject) -> None:
    request = Request(
        data.draw(values(kind)),
        data.draw(queue),
        data.draw(values(Caller)),
        data.draw(TEXT),
        tuple(data.draw(st.lists(part, max_size=3))),
        data.draw(st.none() | queue),
        data.draw(st.none() | queue),
        data.draw(st.none() | st.lists(TEXT, max_size=2).map(tuple)),
    )

    found = decode_request(encode_request(request), QUEUES.get)

    for name in Request.__struct_fields__:
        assert same(getattr(request, name), getattr(found, name)), name


@pytest.mark.parametrize("kind", FIXED, ids=lambda kind: kind.__name__)
def test_an_operation_that_is_fixed_to_a_queue_never_crosses(kind: type[Operation]) -> None:
    """A leader that knows another queue would do it to that one: it destroyed messages."""
    request = prepared.prepared(next(iter(QUEUES.values())), kind())

    with pytest.raises(MessageUnreadable, match="no operation"):
        decode_request(encode_request(request), QUEUES.get)


@pytest.mark.parametrize("kind", ANSWERS, ids=lambda kind: kind.__name__)
@EXAMPLES
@given(data=st.data())
def test_an_answer(kind: type, data: st.DataObject) -> None:
    answer = data.draw(values(kind))

    assert same(answer, decode_answer(encode_answer(answer)))


@EXAMPLES
@given(
    values(results.SendMessageResult) | values(results.SendMessageBatchResult),
    st.integers(0, 10),
)
def test_a_deduplicated_send(result: Any, duplicates: int) -> None:
    answer = Deduplicated(result, duplicates)

    assert same(answer, decode_answer(encode_answer(answer)))


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_an_error_is_a_value(kind: type[QueueError]) -> None:
    for error in (kind(), kind("with \N{SNOWMAN} text")):
        assert same(error, decode_answer(encode_answer(error)))


def test_no_answer() -> None:
    assert decode_answer(encode_answer(None)) is None


def test_an_error_of_a_later_version_is_an_internal_error() -> None:
    class FromTheFuture(ServiceUnavailable):
        pass

    assert isinstance(decode_answer(encode_answer(FromTheFuture())), InternalError)


@pytest.mark.parametrize("place", ["queue", "dead_letter_queue", "destination"])
def test_a_definition_of_another_version_is_noticed(place: str) -> None:
    known = QUEUES[1]
    newer = msgspec.structs.replace(known, version=known.version + 1)
    request = msgspec.structs.replace(prepared.receive(known), **{place: newer})

    with pytest.raises(DefinitionUnknown) as unknown:
        decode_request(encode_request(request), QUEUES.get)

    assert (unknown.value.queue_id, unknown.value.version) == (1, newer.version)
    gone: dict[int, QueueDefinition] = {}
    with pytest.raises(DefinitionUnknown):
        decode_request(encode_request(prepared.receive(known)), gone.get)


def test_what_is_kept_of_earlier_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[bytes, object] = {}
    monkeypatch.setattr(encoded_requests, "_contexts", kept)
    send = prepared.send(QUEUES[1], "x")
    long = "x" * encoded_requests.CONTEXT_BYTES_MAX
    callers = [Caller("1", "eu-1", str(n)) for n in range(encoded_requests.CONTEXTS_MAX + 10)]

    for caller in (Caller("1", "eu-1", long), *callers, *callers[-3:]):
        request = msgspec.structs.replace(send, caller=caller, operation=SendMessage())
        assert decode_request(encode_request(request), QUEUES.get) == request

    assert len(kept) == 10


@EXAMPLES
@given(st.binary(max_size=40))
def test_other_bytes_are_refused(message: bytes) -> None:
    with pytest.raises(MessageUnreadable):
        decode_request(message, QUEUES.get)
    with pytest.raises(MessageUnreadable):
        decode_answer(message)


def test_a_definition_is_not_sent() -> None:
    send = prepared.send(QUEUES[1], "x")

    assert QUEUES[1].receipt_key not in encode_request(send)
    assert len(encode_request(send)) < 300
