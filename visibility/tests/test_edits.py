"""Edits of bodies by a JSON merge patch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from visibility.content.content import unpack, with_body
from visibility.content.edits import (
    EDIT_BYTES_MAX,
    NO_OBJECT,
    TOO_LONG,
    edit_of,
    edited,
    edited_body,
)
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.stored_message import StoredMessage

# The examples of RFC 7396, as far as they patch an object with an object.
RFC = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("body", "patch", "expected"), RFC)
def test_a_merge_patch_does_what_its_standard_says(
    body: dict[str, Any], patch: dict[str, Any], expected: dict[str, Any]
) -> None:
    after = edited_body(json.dumps(body), edit_of(patch))

    assert after is not None
    assert json.loads(after) == expected


def test_what_a_patch_does_not_name_keeps_its_text() -> None:
    body = '{"price": 1.10, "id": 12345678901234567890123, "a": {"x": 1e400, "y": [ 1 ]}, "b": 1}'

    after = edited_body(body, edit_of({"b": 2, "a": {"z": "é"}}))

    assert after == (
        '{"price":1.10,"id":12345678901234567890123,"a":{"x":1e400,"y":[ 1 ],"z":"é"},"b":2}'
    )


@pytest.mark.parametrize("body", ["", "text", "[1]", "1", '{"a": 1', "[" * 100_000, '{"a":1} {}'])
def test_a_body_that_is_no_object_is_not_edited(body: str) -> None:
    assert edited_body(body, edit_of({"a": 1})) is None


def test_a_deep_body_is_not_edited() -> None:
    assert edited_body('{"a":' * 100_000 + "1" + "}" * 100_000, edit_of({"b": 1})) is None


def nested(levels: int) -> dict[str, Any]:
    patch: dict[str, Any] = {}
    for _ in range(levels):
        patch = {"a": patch}
    return patch


@pytest.mark.parametrize(
    "patch",
    [{}, {"a": "x" * EDIT_BYTES_MAX}, nested(33), nested(5_000), {"a": "\ufffe"}, {"a": "\ud800"}],
)
def test_a_patch_is_bounded(patch: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterValue):
        edit_of(patch)


def stored(body: str) -> StoredMessage:
    empty = b"\0" * 20 + b"\x91\xa6sender"
    return StoredMessage("id", 1, len(body.encode()), with_body(empty, body))


def test_an_edited_message_has_another_digest_and_size() -> None:
    message = stored('{"name": "é", "n": 1}')

    after = edited(message, message.data, edit_of({"n": 12}), 1024)

    assert isinstance(after, StoredMessage)
    assert unpack(after.data)[:2] == ("bcf455ff6dc24d759e4a981b02cc5013", '{"name":"é","n":12}')
    assert unpack(after.data)[2].sender == "sender"
    assert after.size == len('{"name":"é","n":12}'.encode())


def test_no_message_grows_beyond_what_its_queue_takes() -> None:
    small, large = stored('{"n":1}'), stored('{"n":1, "x":"' + "x" * 2_000 + '"}')
    edit = edit_of({"y": "y" * 1_500})

    assert edited(small, small.data, edit, 1_024) == TOO_LONG
    assert edited(large, large.data, edit, 1_024) == TOO_LONG
    assert isinstance(edited(large, large.data, edit_of({"x": "y"}), 1_024), StoredMessage)
    assert isinstance(edited(large, large.data, edit_of({"n": 2}), 1_024), StoredMessage)
    other = stored("text")
    assert edited(other, other.data, edit, 1_024) == NO_OBJECT
