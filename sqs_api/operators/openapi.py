"""The OpenAPI document of the operators' API, at /_holdfast/api/openapi.json.

Made from ROUTES and the annotations of ANSWERS, by which requests are read, too, and from
COMMAND_PAGES. The pages that need no right on the service are a table here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from importlib import metadata
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

import msgspec

from sqs_api.admin.admin_actions import RESERVED
from sqs_api.admin.owner_metrics import QUEUE_METRICS
from sqs_api.operators.api import ANSWERS
from sqs_api.operators.command_pages import COMMAND_PAGES, QUEUE_ID, CommandPage
from sqs_api.operators.described import given_by, taken_by
from sqs_api.operators.remembered import AGE, KEY
from sqs_api.operators.routes import API, PARTS, ROUTES, SERVICE_ACTIONS, Route
from visibility.contract.tags import OWN_TAGS

DOCUMENT = API + "openapi.json"
_SCHEMAS = "#/components/schemas/"
_SIGNATURE = "signature"
_ABOUT = (
    "Queues, messages, redrives, hosts and the audit log of a Holdfast service, for the console "
    "and the `holdfast` commands. Messages are shown without being received."
)
_SIGNING = (
    "AWS Signature Version 4 in the Authorization header, for the service `sqs`, such as by "
    "`curl --aws-sigv4 aws:amz:REGION:sqs`. A request that changes something is accepted once. In "
    "open mode requests from this machine need no signature."
)
_REFUSALS = {
    "400": "The request is wrong, or the service refuses it; `code` is that of SQS.",
    "403": "The signature is missing or wrong, or the caller may not do this.",
    "404": "There is no such queue, message or redrive.",
    "409": "The service, or its present state, does not allow it.",
    "413": "The body is too long.",
    "415": "The content type is not application/json, or there is a Content-Encoding.",
    "503": "No host, or not the lake, can answer at present: try again.",
}
_OF_BODIES = ("413", "415")
_OF_COMMANDS = ("400", "403", "404", "409", "503")


class Refusal(msgspec.Struct):
    """An answer other than 200."""

    error: str
    code: str | msgspec.UnsetType = msgspec.UNSET


class _Page(NamedTuple):
    """A page beside the API."""

    path: str
    name: str
    summary: str
    media_type: str
    statuses: dict[str, str]
    is_signed: bool = False


_PAGES = (
    _Page(DOCUMENT, "show document", "This document.", "application/json", {"200": "OpenAPI 3.1."}),
    _Page(
        RESERVED + "metrics",
        "read metrics",
        "Metrics of the service, for programs on its machine unless it runs with --metrics anyone.",
        "text/plain",
        {"200": "Prometheus' text format.", "403": "The request comes from elsewhere."},
    ),
    _Page(
        QUEUE_METRICS,
        "read queue metrics",
        "Metrics of the queues of the signer's account. Needs `holdfast:ReadMetrics` on them.",
        "text/plain",
        {"200": "Prometheus' text format.", "403": _REFUSALS["403"]},
        is_signed=True,
    ),
    _Page("/healthz", "check health", "The process answers.", "text/plain", {"200": "ok"}),
    _Page(
        "/readyz",
        "check readiness",
        "The service takes requests.",
        "text/plain",
        {"200": "ready", "503": "It starts, stops, or has no leader for a shard."},
    ),
)


def document() -> dict[str, Any]:
    """The document, as JSON."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(API + route.path, {})[route.method.lower()] = _operation(route)
    for command in COMMAND_PAGES:
        paths.setdefault(command.path, {})[command.page.method.lower()] = _command(command)
    for page in _PAGES:
        paths[page.path] = {"get": _page_operation(page)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast's admin API",
            "version": metadata.version("holdfast"),
            "description": f"{_ABOUT}\n\n{_own_tags()}",
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": _components(),
            "parameters": {"account": _ACCOUNT, **_REPEATED},
            "responses": {status: _refusal(text) for status, text in _REFUSALS.items()},
            "securitySchemes": {
                _SIGNATURE: {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": _SIGNING,
                }
            },
        },
    }


def _own_tags() -> str:
    lines = [f"- `{row.key}` ({row.values}): {row.meaning}" for row in OWN_TAGS.values()]
    return "\n".join(["Tags of queues with a meaning for the service:", "", *lines])


# -- operations ------------------------------------------------------------------------------------


def _operation(route: Route) -> dict[str, Any]:
    answer = ANSWERS[route.name]
    summary, _, more = (inspect.getdoc(answer) or "").partition("\n\n")
    action = route.action or (route.page and route.page.action)
    needs = f"Needs `{action}`." if action else "Needs a valid signature only."
    operation = _signed(route.name, summary, given_by(answer), _refusals(route)) | {
        "tags": [route.path.partition("/")[0]],
        "description": f"{more} {needs}".strip(),
        "parameters": _parameters(route),
        **({"deprecated": True} if route.renamed else {}),
    }
    if route.only_reads:
        return operation
    operation["parameters"] += [{"$ref": f"#/components/parameters/{name}"} for name in _REPEATED]
    return operation | _body(taken_by(answer))


def _command(command: CommandPage) -> dict[str, Any]:
    page, taken = command.page, command.taken
    action = page.action.partition(":")[2]
    name = re.sub("(?<!^)([A-Z])", r" \1", action).lower() + " command"
    needs = "Only the root of the service's account may." if page.root_only else ""
    operation = _signed(name, command.summary, command.given, _OF_COMMANDS) | {
        "tags": ["commands"],
        "description": f"Needs `{page.action}`. {needs}".strip(),
        "parameters": _path_parameters(command.path, dict([QUEUE_ID])),
    }
    if page.only_reads and taken is not None:
        operation["parameters"] += _query(taken)
    return operation if page.only_reads else operation | _body(taken)


def _signed(name: str, summary: str, given: Any, refusals: Iterable[str]) -> dict[str, Any]:
    """The part that all operations with a signature have in common."""
    return {
        "operationId": _operation_id(name),
        "summary": " ".join(summary.split()),
        "security": [{_SIGNATURE: []}],
        "responses": {
            "200": {"description": "Done.", "content": _json(_schema(given))},
            **{status: {"$ref": f"#/components/responses/{status}"} for status in refusals},
        },
    }


def _body(taken: type[msgspec.Struct] | None) -> dict[str, Any]:
    if taken is None:
        return {}
    return {"requestBody": {"required": True, "content": _json(_schema(taken))}}


def _operation_id(name: str) -> str:
    first, *others = name.split()
    return first + "".join(map(str.title, others))


def _refusals(route: Route) -> list[str]:
    without = ("409", *_OF_BODIES) if route.only_reads else ()
    return [status for status in _REFUSALS if status not in without]


def _page_operation(page: _Page) -> dict[str, Any]:
    content = {page.media_type: {"schema": {} if page.path == DOCUMENT else {"type": "string"}}}
    return {
        "operationId": _operation_id(page.name),
        "tags": ["service"],
        "summary": page.summary,
        "security": [{_SIGNATURE: []}] if page.is_signed else [],
        "responses": {
            status: {
                "description": text,
                "content": _json(_schema(Refusal)) if status == "403" else content,
            }
            for status, text in page.statuses.items()
        },
    }


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _refusal(text: str) -> dict[str, Any]:
    return {"description": text, "content": _json(_schema(Refusal))}


# -- parameters ------------------------------------------------------------------------------------

_ACCOUNT = {
    "name": "account",
    "in": "query",
    "description": "The account that owns the queues, by default the signer's.",
    "schema": {"type": "string"},
}
_REPEATED = {
    KEY: {
        "name": KEY,
        "in": "header",
        "description": "A change with a key is made once: a repetition with the same key, path and "
        "body gets the first one's answer for ten minutes. Another body is refused with the code "
        "IdempotentParameterMismatch.",
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
    },
    AGE: {
        "name": AGE,
        "in": "header",
        "description": "Of a repetition: milliseconds since it was sent first. One whose first "
        "answer may be forgotten is refused with the code OutcomeUnknown, instead of done again.",
        "schema": {"type": "integer", "minimum": 0},
    },
}


def _parameters(route: Route) -> list[dict[str, Any]]:
    found = _path_parameters(route.path, PARTS)
    if route.action is not None and route.action not in SERVICE_ACTIONS:
        found.append({"$ref": "#/components/parameters/account"})
    taken = taken_by(ANSWERS[route.name])
    if taken is not None and route.only_reads:
        found += _query(taken)
    return found


def _path_parameters(path: str, parts: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {
            "name": part.strip("{}"),
            "in": "path",
            "required": True,
            "schema": {"type": "string", "pattern": f"^{pattern}$"},
        }
        for part, pattern in parts.items()
        if part in path
    ]


def _query(taken: type[msgspec.Struct]) -> list[dict[str, Any]]:
    """The fields of a Struct as parameters. None is the absence of one, so it is in no schema."""
    _, components = msgspec.json.schema_components([taken], ref_template=_SCHEMAS + "{name}")
    return [
        {
            "name": name,
            "in": "query",
            **({"description": schema.pop("description")} if "description" in schema else {}),
            "schema": _without_null(schema),
        }
        for name, schema in components[taken.__name__]["properties"].items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in schema.items() if name != "anyOf" and value is not None}
    for each in schema.get("anyOf", ()):
        kept |= each if each != {"type": "null"} else {}
    return kept


# -- schemas ---------------------------------------------------------------------------------------


def _schema(of: Any) -> dict[str, Any]:
    """The schema of a type, which refers to the components."""
    if get_origin(of) in (Union, UnionType):
        return {"anyOf": [_schema(each) for each in get_args(of)]}
    (schema,), _ = msgspec.json.schema_components([of], ref_template=_SCHEMAS + "{name}")
    return dict(schema)


def _components() -> dict[str, Any]:
    """The schemas of all bodies and answers."""
    types: list[Any] = [Refusal, *(command.given for command in COMMAND_PAGES)]
    types += [each.taken for each in COMMAND_PAGES if each.taken and not each.page.only_reads]
    for route in ROUTES:
        answer = ANSWERS[route.name]
        given, taken = given_by(answer), taken_by(answer)
        types += get_args(given) if get_origin(given) in (Union, UnionType) else [given]
        types += [] if taken is None or route.only_reads else [taken]
    _, components = msgspec.json.schema_components(types, ref_template=_SCHEMAS + "{name}")
    return components
