"""Checks of requests and answers against the OpenAPI document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from jsonschema import Draft202012Validator

from sqs_api.operators.openapi import document

_SCHEMAS = "#/components/schemas/"


_document = cache(document)


class Operation(NamedTuple):
    """A method of a path."""

    method: str
    path: str
    pattern: re.Pattern[str]
    described: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.described["operationId"])

    def has(self, method: str, path: str) -> bool:
        return self.method == method and self.pattern.fullmatch(path) is not None


@cache
def operations() -> list[Operation]:
    return list(_operations())


def _operations() -> Iterator[Operation]:
    for path, methods in _document()["paths"].items():
        for method, described in methods.items():
            pattern = re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path)))
            yield Operation(method.upper(), path, pattern, described)


def operation_of(method: str, target: str) -> Operation:
    """The documented operation of a request. Raises LookupError."""
    path = target.partition("?")[0]
    found = [each for each in operations() if each.has(method, path)]
    if not found:
        raise LookupError(f"{method} {path} is not in the OpenAPI document")
    exact = [each for each in found if each.path == path]
    return (exact or found)[0]


def check_answer(method: str, target: str, status: int, answer: Any) -> None:
    """Raise ValidationError unless the document describes the answer, with each field of it."""
    operation = operation_of(method, target)
    responses = operation.described["responses"]
    assert str(status) in responses, f"{operation.name} has no answer {status}: {answer}"
    _validator(_content(responses[str(status)])).validate(answer)


def check_request(method: str, target: str, body: Any) -> None:
    """Raise ValidationError or AssertionError unless the document describes the request."""
    described = operation_of(method, target).described
    parameters = {each.get("name", "account") for each in described["parameters"]}
    given = {name for name, _ in parse_qsl(target.partition("?")[2])}
    assert given <= parameters, f"not described: {given - parameters}"
    if "requestBody" in described:
        _validator(_content(described["requestBody"])).validate(body)


def _content(described: dict[str, Any]) -> str:
    """The reference to the schema, or the whole of it, as text for the cache."""
    if "$ref" in described:
        described = _document()["components"]["responses"][described["$ref"].rpartition("/")[2]]
    return json.dumps(described["content"]["application/json"]["schema"])


@cache
def _validator(schema: str) -> Draft202012Validator:
    return Draft202012Validator({**json.loads(schema), "components": {"schemas": _strict()}})


@cache
def _strict() -> dict[str, Any]:
    """The schemas, with objects that have no other fields than the described ones."""
    schemas: dict[str, Any] = _document()["components"]["schemas"]
    for schema in schemas.values():
        if "properties" in schema:
            schema["additionalProperties"] = False
    return schemas
