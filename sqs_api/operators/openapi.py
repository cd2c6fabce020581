"""The OpenAPI document of the admin API, at /_holdfast/api/openapi.json.

Made from ROUTES and the annotations of their answers, by which requests are read, too. The pages
that need no right on the service are a table here. The document holds no data, so it needs no
signature.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import msgspec
from aiohttp import web
from aiohttp.web_request import BaseRequest

from auth.auth_errors import AccessDenied
from sqs_api.admin.admin_access import AdminAccess, AdminRequest
from sqs_api.admin.admin_pages import error_page
from sqs_api.admin.owner_metrics import QUEUE_METRICS
from sqs_api.admin.remembered import AGE, KEY
from sqs_api.admin.routes import API, PARTS, RESERVED, Route
from sqs_api.operators.api import ROUTES
from sqs_api.settings.config import installed_version
from visibility.contract.tags import OWN_TAGS

DOCUMENT = API + "openapi.json"
_SCHEMAS = "#/components/schemas/"
_SIGNATURE = "signature"
_ABOUT = (
    "Queues, messages, redrives, hosts and the audit log of a Holdfast service, for the console "
    "and the `holdfast` commands. Messages are shown without being received."
)
_COOKIE = "session"
_SESSION = (
    "The cookie that `signIn` sets, for the console's own pages. Its name ends with the port of "
    "the address, such as `holdfast-9324`, and begins with `__Host-` behind TLS. The request has "
    "the header X-Holdfast-Console, too. SQS and the routes of commands do not take it."
)
_SIGNING = (
    "AWS Signature Version 4 in the Authorization header, for the service `sqs`, such as by "
    "`curl --aws-sigv4 aws:amz:REGION:sqs`. A request that changes something is accepted once. In "
    "open mode requests from this machine need no signature."
)
_REFUSALS = {
    "400": "The request is wrong, or the service refuses it; `code` is that of SQS.",
    "403": "The signature or session is missing, wrong or over, or the caller may not do this.",
    "404": "There is no such queue, message or redrive.",
    "409": "The service, or its present state, does not allow it.",
    "413": "The body is too long.",
    "415": "The content type is not application/json, or there is a Content-Encoding.",
    "503": "No host, or not the lake, can answer at present, or a search found no turn (then there "
    "is a Retry-After header): try again.",
}


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
        paths.setdefault(RESERVED + route.path, {})[route.method.lower()] = _operation(route)
    for page in _PAGES:
        paths[page.path] = {"get": _page_operation(page)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast's admin API",
            "version": installed_version(),
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
                },
                _COOKIE: {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "__Host-holdfast",
                    "description": _SESSION,
                },
            },
        },
    }


def _own_tags() -> str:
    lines = [f"- `{row.key}` ({row.values}): {row.meaning}" for row in OWN_TAGS.values()]
    return "\n".join(["Tags of queues with a meaning for the service:", "", *lines])


# -- operations ------------------------------------------------------------------------------------


def _operation(route: Route) -> dict[str, Any]:
    summary, _, more = (inspect.getdoc(route.answer) or "").partition("\n\n")
    operation = {
        "operationId": _operation_id(route.name),
        "tags": [route.path.split("/")[1] if route.is_of_console else "commands"],
        "summary": " ".join(summary.split()),
        "description": " ".join(filter(None, (more, *_needs(route)))),
        "security": _security(route),
        "parameters": _parameters(route),
        "responses": {
            "200": {"description": "Done.", "content": _json(_schema_of_any(route.given))},
            **{status: {"$ref": f"#/components/responses/{status}"} for status in _refusals(route)},
        },
        **({"deprecated": True} if route.renamed else {}),
    }
    if route.only_reads or route.taken is None:
        return operation
    return operation | {"requestBody": {"required": True, "content": _json(_schema(route.taken))}}


def _security(route: Route) -> list[dict[str, list[str]]]:
    """Any of these is enough."""
    names = [] if route.is_open else [_SIGNATURE, *([_COOKIE] if route.is_of_console else [])]
    return [{name: []} for name in names]


def _needs(route: Route) -> Iterator[str]:
    if route.is_open:
        yield "Needs no signature."
    else:
        yield f"Needs `{route.action}`." if route.action else "Needs a valid signature only."
    if route.root_only:
        yield "Only the root of the service's account may."
    if route.command:
        yield f"The command is `holdfast {route.command}`."


def _operation_id(name: str) -> str:
    first, *others = name.split()
    return first + "".join(map(str.title, others))


def _refusals(route: Route) -> list[str]:
    """Statuses; only the console's reads have no conflict, and only its changes a content type."""
    without = {"413", "415"} if route.only_reads else set()
    if route.only_reads and route.is_of_console:
        without.add("409")
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
    found: list[dict[str, Any]] = [
        {
            "name": part.strip("{}"),
            "in": "path",
            "required": True,
            "schema": {"type": "string", "pattern": f"^{pattern}$"},
        }
        for part, pattern in PARTS.items()
        if part in route.path
    ]
    if route.action is not None and not route.is_of_service:
        found.append({"$ref": "#/components/parameters/account"})
    if not route.only_reads:
        return found + [{"$ref": f"#/components/parameters/{name}"} for name in _REPEATED]
    return found if route.taken is None else found + _query(route.taken)


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


def _schema_of_any(types: tuple[Any, ...]) -> dict[str, Any]:
    schemas = [_schema(each) for each in types]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _schema(of: Any) -> dict[str, Any]:
    """The schema of a type, which refers to the components."""
    (schema,), _ = msgspec.json.schema_components([of], ref_template=_SCHEMAS + "{name}")
    return dict(schema)


def _components() -> dict[str, Any]:
    """The schemas of all bodies and answers."""
    types: list[Any] = [Refusal]
    for route in ROUTES:
        types += route.given
        types += [] if route.taken is None or route.only_reads else [route.taken]
    _, components = msgspec.json.schema_components(types, ref_template=_SCHEMAS + "{name}")
    return components


# -- the page --------------------------------------------------------------------------------------


class DocumentPage:
    """Answers at DOCUMENT."""

    def __init__(self, access: AdminAccess) -> None:
        self._access = access

    async def __call__(self, request: BaseRequest, sent: AdminRequest) -> web.Response:
        """The document."""
        try:
            self._access.check_host(sent)
        except AccessDenied as refusal:
            return error_page(403, refusal.message)
        if request.raw_path.partition("?")[0] != DOCUMENT:
            return error_page(404, "There is no such route.")
        if request.method != "GET":
            return web.Response(status=405, headers={"Allow": "GET"})
        return web.Response(body=_encoded(), content_type="application/json")


@cache
def _encoded() -> bytes:
    return msgspec.json.encode(document())
