"""OperatorApi: the routes below /_holdfast/api/, from the request to its JSON answer.

    always       the Host header names this service; no page of another origin sent the request
    auth sigv4   signed, as the other pages are; the caller's policies allow the route's action on
                 the queue's ARN. Local commands may do everything
    auth open    from loopback

What a route changes is in the audit log, and so is every read of message bodies. A change with an
Idempotency-Key is made once, see `remembered.py`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.web_request import BaseRequest

from auth.auth_errors import AuthError
from cluster.catalog.queue_view import QueueView
from sqs_api.admin.admin_access import AdminAccess, AdminRequest
from sqs_api.admin.admin_pages import read_body
from sqs_api.gateway.access import Access
from sqs_api.gateway.audit import AuditLog
from sqs_api.operators import (
    archive_answers,
    audit_answers,
    caller_answers,
    group_answers,
    history_answers,
    hold_answers,
    host_answers,
    message_answers,
    queue_answers,
    queue_changes,
    redrive_answers,
    redrive_controls,
    replay_answers,
    user_answers,
    user_changes,
)
from sqs_api.operators.asked import Asked
from sqs_api.operators.described import taken_by
from sqs_api.operators.desk import AnswerRoute, Desk
from sqs_api.operators.remembered import (
    OutcomeUnknown,
    RememberedAnswers,
    Said,
    read_repeatable,
)
from sqs_api.operators.routes import READ_BODIES, SERVICE_ACTIONS, Route, routes_at
from visibility.contract.errors import (
    KmsAccessDenied,
    QueueDoesNotExist,
    QueueError,
    ResourceNotFound,
    ServiceUnavailable,
)

ANSWERS: dict[str, AnswerRoute] = {
    "show caller": caller_answers.show_caller,
    "list queues": queue_answers.list_queues,
    "list dead letters": queue_answers.list_dead_letters,
    "list depths": history_answers.list_depths,
    "show queue": queue_answers.show_queue,
    "purge queue": queue_answers.purge_queue,
    "restore queue": queue_answers.restore_queue,
    "set attributes": queue_changes.set_attributes,
    "tag queue": queue_changes.tag_queue,
    "untag queue": queue_changes.untag_queue,
    "show history": history_answers.show_history,
    "browse messages": message_answers.browse_messages,
    "show groups": group_answers.show_groups,
    "show message": message_answers.show_message,
    "send message": message_answers.send_message,
    "delete messages": hold_answers.delete_messages,
    "undelete messages": hold_answers.undelete_messages,
    "hold messages": hold_answers.hold_messages,
    "quarantine messages": hold_answers.quarantine_messages,
    "release messages": hold_answers.release_messages,
    "resend message": message_answers.resend_message,
    "plan redrive": redrive_answers.plan_redrive,
    "start redrive": redrive_answers.start_redrive,
    "list redrives": redrive_answers.list_redrives,
    "pause redrive": redrive_controls.pause_redrive,
    "resume redrive": redrive_controls.resume_redrive,
    "undo redrive": redrive_controls.undo_redrive,
    "cancel redrive": redrive_controls.cancel_redrive,
    "search archive": archive_answers.search_archive,
    "show archived message": archive_answers.show_archived_message,
    "plan replay": replay_answers.plan_replay,
    "replay archive": replay_answers.replay_archive,
    "read audit": audit_answers.read_audit,
    "list users": user_answers.list_users,
    "show user": user_answers.show_user,
    "check permission": user_answers.check_permission,
    "add user": user_changes.add_user,
    "remove user": user_changes.remove_user,
    "put policy": user_changes.put_policy,
    "remove policy": user_changes.remove_policy,
    "add key": user_changes.add_key,
    "rotate key": user_changes.rotate_key,
    "enable key": user_changes.enable_key,
    "remove key": user_changes.remove_key,
    "show cluster": host_answers.show_cluster,
    "drain host": host_answers.drain_host,
}
_TAKES = {name: taken_by(answer) for name, answer in ANSWERS.items()}
STATUSES: dict[type[Exception], int] = {
    QueueDoesNotExist: 404,
    ResourceNotFound: 404,
    ServiceUnavailable: 503,
    KmsAccessDenied: 403,
    OutcomeUnknown: 409,
}
"""Status by error; AccessDenied and unsigned requests get 403, all others 400."""


class OperatorApi:
    """Belongs to the event loop's thread."""

    def __init__(
        self,
        desk: Desk,
        admin: AdminAccess,
        access: Access,
        queues: QueueView,
        audit: AuditLog | None,
        now_s: Callable[[], float],
    ) -> None:
        """`now_s` is a monotonic clock."""
        self._desk = desk
        self._admin = admin
        self._access = access
        self._queues = queues
        self._audit = audit
        self._remembered = RememberedAnswers(now_s, desk.router.age_s_max)

    async def __call__(self, request: BaseRequest, sent: AdminRequest) -> web.Response:
        """The answer to a request whose body is not read yet."""
        routes = routes_at(request.raw_path.partition("?")[0])
        if request.method not in routes:
            if not routes:
                return _page(_refusal(404, "There is no such route."))
            return web.Response(status=405, headers={"Allow": ", ".join(routes)})
        route, parts = routes[request.method]
        if not route.only_reads and request.content_type != "application/json":
            return _page(_refusal(415, "The content type must be application/json."))
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            return _page(_refusal(415, "Content-Encoding is not supported."))
        body = await read_body(request, route.body_bytes_max + 1)
        if len(body) > route.body_bytes_max:
            return _page(_refusal(413, f"Send at most {route.body_bytes_max} bytes."))
        return _page(await self._answer(route, sent._replace(body=body, parts=parts)))

    async def _answer(self, route: Route, sent: AdminRequest) -> Said:
        asked: Asked | None = None
        try:
            asked = Asked(sent, self._admin.operator(sent), self._access, self._queues)
            self._admit(route, sent, asked)
            repeatable = None if route.only_reads else read_repeatable(sent.headers)
            decide = partial(self._decided, route, sent, asked)
            if repeatable is None:
                return await decide()
            asked.repeatable = repeatable
            caller = f"{asked.caller.arn} {asked.caller.region}"
            digest = hashlib.sha256(b"\0".join((sent.target, sent.body))).digest()
            return await self._remembered.answer(caller, repeatable, digest, decide)
        except AuthError as refusal:
            return self._denied(route, sent, asked, refusal)
        except QueueError as refusal:
            return _refusal(STATUSES.get(type(refusal), 400), refusal.message, refusal.code)

    def _admit(self, route: Route, sent: AdminRequest, asked: Asked) -> None:
        """Check that the caller may use the route. Raises AuthError."""
        if route.page is not None:
            self._admin.check_use(route.page, sent, asked.caller)
        if route.action in SERVICE_ACTIONS:
            asked.administer(route.action, self._desk.account, root_only=route.root_only)
        elif route.action is not None:
            asked.check(route.action, sent.parts[0] if sent.parts else "*")

    async def _decided(self, route: Route, sent: AdminRequest, asked: Asked) -> Said:
        """Do what is asked for, and note it."""
        try:
            if not route.only_reads:
                self._admin.accept_once(sent)
            answer = await self._handle(route, asked)
        except asyncio.CancelledError:
            self._note(route, sent, asked, "the client hung up")
            raise
        except AuthError as refusal:
            return self._denied(route, sent, asked, refusal)
        except QueueError as refusal:
            self._note(route, sent, asked, refusal.code)
            return _refusal(STATUSES.get(type(refusal), 400), refusal.message, refusal.code)
        self._note(route, sent, asked, "ok")
        return Said(200, msgspec.json.encode(answer))

    async def _handle(self, route: Route, asked: Asked) -> Any:
        answer, takes = ANSWERS[route.name], _TAKES[route.name]
        if route.renamed:
            asked.warn_of_old_name(route.name, route.renamed)
        if takes is None:
            return await answer(self._desk, asked)
        given = asked.parameters(takes) if route.only_reads else asked.content(takes)
        return await answer(self._desk, asked, given)

    def _denied(
        self, route: Route, sent: AdminRequest, asked: Asked | None, refusal: AuthError
    ) -> Said:
        if self._audit is not None:
            caller = None if asked is None else asked.caller
            action = route.action if route.page is None else route.page.action
            self._audit.denied(action or route.event, caller, sent.source_ip, None, refusal.code)
        return _refusal(403, refusal.message, refusal.code)

    def _note(self, route: Route, sent: AdminRequest, asked: Asked, outcome: str) -> None:
        """Record a change, or that bodies were read."""
        if self._audit is None:
            return
        reads = READ_BODIES if asked.bodies_read or "search" in asked.noted else None
        event = reads if route.only_reads else route.event
        if event is None:
            return
        self._audit.note(
            event,
            account=asked.caller.account,
            user=asked.caller.user,
            access_key_id=asked.caller.access_key_id,
            login=self._admin.login(sent, asked.caller),
            source_ip=sent.source_ip,
            queue=asked.arn(sent.parts[0]) if sent.parts else None,
            messages_read=asked.bodies_read or None,
            outcome=outcome,
            **asked.noted,
        )


def _refusal(status: int, text: str, code: str | None = None) -> Said:
    return Said(status, msgspec.json.encode({"error": text, **({"code": code} if code else {})}))


def _page(said: Said) -> web.Response:
    return web.Response(
        status=said.status,
        body=said.body,
        content_type="application/json",
        charset="utf-8",
        headers={"Cache-Control": "no-store"},
    )
