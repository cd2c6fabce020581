"""AdminApi: the routes below /_holdfast/, from the request to its JSON answer.

ROUTES is the sum of the features' lists; each row says who may ask, and `openapi.py` documents it.

    always       the Host header names this service; no page of another origin sent the request, and
                 below api/ only the console's own may
    auth sigv4   signed; the caller's policies allow the route's action on the queue's ARN, or on
                 the service. Local commands may do everything
    auth open    from loopback

What a route changes is in the audit log, and so is every read of message bodies. A change with an
Idempotency-Key is made once, see `remembered.py`.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import msgspec
from aiohttp import web
from aiohttp.web_request import BaseRequest

from auth.auth_errors import AuthError, MissingAuthenticationToken, SessionEnded
from auth.caller import Caller, anonymous
from cluster.catalog.queue_view import QueueView
from sqs_api.admin import backup_page, cluster_pages, fleet_pages, usage_page
from sqs_api.admin.admin_access import AdminAccess, AdminRequest, Operator
from sqs_api.admin.admin_pages import read_body
from sqs_api.admin.asked import Asked
from sqs_api.admin.remembered import OutcomeUnknown, RememberedAnswers, Said, read_repeatable
from sqs_api.admin.routes import PARTS, READ_BODIES, RESERVED, Parts, Refused, Route
from sqs_api.admin.shared_routes import SharedRoutes
from sqs_api.archiving import archive_pages
from sqs_api.console.console_pages import files_hash
from sqs_api.gateway.access import Access
from sqs_api.gateway.audit import AuditLog
from sqs_api.gateway.recheck_refusal import RecheckRefusal
from sqs_api.operators import (
    abandon_answers,
    archive_answers,
    audit_answers,
    dead_letter_answers,
    deleted_queue_answers,
    emptying_answers,
    failure_answers,
    find_answers,
    history_answers,
    hold_answers,
    mark_answers,
    matching_answers,
    message_answers,
    part_answers,
    plan_answers,
    queue_answers,
    queue_changes,
    queue_tags,
    redrive_answers,
    redrive_controls,
    redrive_history,
    replay_answers,
    role_policies,
    schedule_answers,
    session_answers,
    tail_answers,
    timeline_answers,
    user_answers,
    user_changes,
)
from sqs_api.operators.audit_lines import time_of
from sqs_api.operators.operator_context import OperatorContext
from sqs_api.operators.scan_turns import NoTurn
from sqs_api.operators.step_lines import StepLines
from visibility.contract.errors import (
    KmsAccessDenied,
    QueueDoesNotExist,
    QueueError,
    ResourceNotFound,
    ServiceUnavailable,
)

ROUTES: tuple[Route, ...] = (
    *queue_answers.ROUTES,
    *queue_tags.ROUTES,
    *dead_letter_answers.ROUTES,
    *queue_changes.ROUTES,
    *part_answers.ROUTES,
    *history_answers.ROUTES,
    *message_answers.ROUTES,
    *timeline_answers.ROUTES,
    *hold_answers.ROUTES,
    *matching_answers.ROUTES,
    *mark_answers.ROUTES,
    *schedule_answers.ROUTES,
    *find_answers.ROUTES,
    *failure_answers.ROUTES,
    *redrive_answers.ROUTES,
    *redrive_controls.ROUTES,
    *redrive_history.ROUTES,
    *archive_answers.ROUTES,
    *replay_answers.ROUTES,
    *audit_answers.ROUTES,
    *role_policies.ROUTES,
    *session_answers.ROUTES,
    *tail_answers.ROUTES,
    *user_answers.ROUTES,
    *user_changes.ROUTES,
    *deleted_queue_answers.ROUTES,
    *cluster_pages.ROUTES,
    *fleet_pages.ROUTES,
    *plan_answers.ROUTES,
    *emptying_answers.ROUTES,
    *abandon_answers.ROUTES,
    *archive_pages.ROUTES,
    *backup_page.ROUTES,
    *usage_page.ROUTES,
)
STATUSES: dict[type[Exception], int] = {
    QueueDoesNotExist: 404,
    ResourceNotFound: 404,
    ServiceUnavailable: 503,
    NoTurn: 503,
    KmsAccessDenied: 403,
    OutcomeUnknown: 409,
    queue_changes.ChangedMeanwhile: 409,
}
"""Status by error; AccessDenied and unsigned requests get 403, all others 400."""
_NO_TURN_S = 1
"""Time after which a scan without a turn may be tried again; it has waited for one already."""
_HOST = Operator(Caller("", "", "host"), is_trusted=True)
"""Another host of the cluster, which has checked that its caller may ask."""


class _Audited(NamedTuple):
    """The audit log of a service that has one."""

    log: AuditLog
    steps: StepLines


class AdminApi:
    """Answers the requests."""

    def __init__(
        self,
        parts: Parts,
        admin: AdminAccess,
        access: Access,
        queues: QueueView,
        audit: AuditLog | None,
        now_s: Callable[[], float],
        recheck: RecheckRefusal,
    ) -> None:
        """`parts` has a OperatorContext; `now_s` is a monotonic clock."""
        self._recheck = recheck
        self._parts = parts
        self._context: OperatorContext = parts[OperatorContext]
        self._shared: SharedRoutes | None = parts.get(SharedRoutes)
        self._admin = admin
        self._access = access
        self._queues = queues
        self._audited = None if audit is None else _Audited(audit, StepLines(audit))
        self._remembered = RememberedAnswers(now_s, self._context.router.age_s_max)
        if self._shared is not None:
            self._shared.serve(ROUTES, self._answer_here)

    async def __call__(self, request: BaseRequest, sent: AdminRequest) -> web.Response:
        """The answer to a request whose body is not read yet."""
        routes = routes_at(request.raw_path.partition("?")[0])
        if request.method not in routes:
            if not routes:
                return _page(_refusal(404, "There is no such route."))
            return web.Response(status=405, headers={"Allow": ", ".join(routes)})
        route, parts = routes[request.method]
        changes_for_pages = route.is_of_console and not route.only_reads
        if changes_for_pages and request.content_type != "application/json":
            return _page(_refusal(415, "The content type must be application/json."))
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            return _page(_refusal(415, "Content-Encoding is not supported."))
        body = await read_body(request, route.body_bytes_max + 1)
        if len(body) > route.body_bytes_max:
            return _page(_refusal(413, f"Send at most {route.body_bytes_max} bytes."))
        return _page(await self._answer(route, sent._replace(body=body, parts=parts)))

    async def _answer(self, route: Route, sent: AdminRequest) -> Said:
        caller: Caller | None = None
        try:
            caller, operator = await self._asking(route, sent)
            asked = Asked(sent, operator, self._access, self._queues)
            self._admit(route, asked)
            repeatable = None if route.only_reads else read_repeatable(sent.headers)
            decide = partial(self._decided, route, asked)
            if repeatable is None:
                return await decide()
            asked.repeatable = repeatable
            key = f"{caller.arn} {caller.region}"
            digest = hashlib.sha256(b"\0".join((sent.target, sent.body))).digest()
            return await self._remembered.answer(key, repeatable, digest, decide)
        except AuthError as refusal:
            return self._denied(route, sent, caller, refusal)
        except QueueError as refusal:
            return _refusal_of(route, refusal)

    async def _asking(self, route: Route, sent: AdminRequest) -> tuple[Caller, Operator]:
        """The caller; a session may have begun at another host. Raises AuthError, QueueError."""
        if route.is_open:
            self._admin.check_page(sent)
            caller = anonymous("")
            return caller, Operator(caller, is_trusted=False)
        signer = partial(self._admin.signer, sent, may_be_page=route.is_of_console)
        try:
            caller = signer()
        except SessionEnded as refusal:
            if not self._recheck.may_lift(refusal):
                raise
            await self._recheck.hear(refusal)
            caller = signer()
        return caller, self._admin.operator(sent, caller)

    def _admit(self, route: Route, asked: Asked) -> None:
        """Check that the caller may use the route. Raises AuthError."""
        if route.action is None:
            return
        if route.is_of_service:
            asked.administer(route.action, self._context.account, root_only=route.root_only)
        else:
            asked.check(route.action, asked.parts[0] if asked.parts else "*")

    async def _decided(self, route: Route, asked: Asked) -> Said:
        """Do what is asked for, and note it."""
        try:
            if not route.only_reads:
                self._admin.accept_once(asked.sent)
            answer = await self._handle(route, asked)
        except asyncio.CancelledError:
            self._note(route, asked, "the client hung up")
            raise
        except AuthError as refusal:
            return self._denied(route, asked.sent, asked.caller, refusal)
        except QueueError as refusal:
            self._note(route, asked, refusal.code if route.is_of_console else refusal.message)
            return _refusal_of(route, refusal)
        except Refused as refusal:
            self._note(route, asked, str(refusal))
            return _refusal(refusal.status, str(refusal))
        self._note(route, asked, "ok", answer)
        return Said(200, msgspec.json.encode(answer), asked.cookie)

    async def _handle(self, route: Route, asked: Asked) -> Any:
        if route.renamed:
            asked.warn_of_old_name(route.name, route.renamed)
        if self._shared is not None and (route.merge is not None or route.of_shard):
            return await self._shared.ask(route, asked.sent)
        return await self._own(route, asked)

    async def _own(self, route: Route, asked: Asked) -> Any:
        """The answer of this host."""
        part, taken = self._parts.get(route.part), route.taken
        if taken is None:
            return await route.answer(part, asked)
        given = asked.parameters(taken) if route.only_reads else asked.content(taken)
        return await route.answer(part, asked, given)

    async def _answer_here(self, route: Route, sent: AdminRequest) -> Any:
        """The answer of this host, for another one. Raises Refused."""
        try:
            return await self._own(route, Asked(sent, _HOST, self._access, self._queues))
        except QueueError as refusal:
            raise Refused(STATUSES.get(type(refusal), 400), refusal.message) from refusal

    def _denied(
        self, route: Route, sent: AdminRequest, caller: Caller | None, refusal: AuthError
    ) -> Said:
        """Refuse a request, with a line in the audit log. Without one for the question who is
        signed in, which each page asks as it opens: "not signed in" is its answer."""
        asks_who = route.only_reads and route.action is None
        is_nobody = asks_who and isinstance(refusal, MissingAuthenticationToken)
        if self._audited is not None and not is_nobody:
            action = route.action or route.event
            self._audited.log.denied(action, caller, sent.source_ip, None, refusal.code)
        return _refusal(403, refusal.message, refusal.code if route.is_of_console else None)

    def _note(self, route: Route, asked: Asked, outcome: str, answer: object = None) -> None:
        """Record a change, or that bodies were read."""
        reads = READ_BODIES if asked.bodies_read or "search" in asked.noted else None
        event = reads if route.only_reads else route.event
        audited = self._audited
        if audited is None or event is None:
            return
        sent, caller = asked.sent, asked.caller
        if route.is_of_console:
            queue = asked.arn(asked.parts[0]) if asked.parts else None
            about: dict[str, Any] = {"queue": queue, "messages_read": asked.bodies_read or None}
        else:
            path = sent.target.decode("latin-1")
            about = {"path": path, "asked": _object(sent.body) or None, "answer": answer}
        fields: dict[str, Any] = {
            "account": caller.account,
            "user": caller.user,
            "access_key_id": caller.access_key_id,
            "login": self._admin.login(sent, caller),
            "source_ip": sent.source_ip,
            "outcome": outcome,
            **about,
            "session": self._session_id(sent),
            **asked.noted,
        }
        if asked.step is not None and outcome == "ok":
            audited.steps.note(event, asked.step, time_of(self._context.now_ms), fields)
        else:
            audited.log.note(event, **fields)

    def close(self) -> None:
        """Note what is not whole yet."""
        if self._audited is not None:
            self._audited.steps.close()

    def _session_id(self, sent: AdminRequest) -> str | None:
        sessions = self._context.sessions
        return None if sessions is None else sessions.id_of(sent)


def _pattern(path: str) -> re.Pattern[str]:
    for name, pattern in PARTS.items():
        path = path.replace(name, pattern)
    return re.compile(re.escape(RESERVED) + path)


@cache
def _patterns() -> list[tuple[re.Pattern[str], Route]]:
    """They are made for the first request of an operator: a start does not wait for them."""
    return [(_pattern(route.path), route) for route in ROUTES]


def routes_at(path: str) -> dict[str, tuple[Route, tuple[str, ...]]]:
    """The routes of a path by method, with the matched parts."""
    return {
        route.method: (route, found.groups())
        for pattern, route in _patterns()
        if (found := pattern.fullmatch(path)) is not None
    }


def _object(content: bytes) -> dict[str, Any]:
    """The JSON object in a body; empty if there is none."""
    try:
        said = msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _refusal_of(route: Route, refusal: QueueError) -> Said:
    code = refusal.code if route.is_of_console else None
    said = _refusal(STATUSES.get(type(refusal), 400), refusal.message, code)
    return said._replace(retry_after_s=_NO_TURN_S) if isinstance(refusal, NoTurn) else said


def _refusal(status: int, text: str, code: str | None = None) -> Said:
    return Said(status, msgspec.json.encode({"error": text, **({"code": code} if code else {})}))


def _page(said: Said) -> web.Response:
    return web.Response(
        status=said.status,
        body=said.body,
        content_type="application/json",
        charset="utf-8",
        headers={
            "Cache-Control": "no-store",
            "X-Holdfast-Console-Files": files_hash(),
            **({} if said.cookie is None else {"Set-Cookie": said.cookie}),
            **({} if said.retry_after_s is None else {"Retry-After": str(said.retry_after_s)}),
        },
    )
