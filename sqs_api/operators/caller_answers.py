"""The answer about the signer of a request, and what it may do to the service as a whole."""

from __future__ import annotations

from typing import TypedDict

from sqs_api.admin.admin_actions import DRAIN_HOST, READ_CLUSTER, RESTORE_QUEUE, page_of
from sqs_api.operators.asked import Asked
from sqs_api.operators.desk import Desk
from sqs_api.operators.routes import LIST_QUEUES, MANAGE_USERS, READ_AUDIT, READ_USERS

_OF_ROOT = frozenset({MANAGE_USERS})
_PAGES = tuple(page_of(action) for action in (READ_CLUSTER, DRAIN_HOST, RESTORE_QUEUE))


class ShownCaller(TypedDict):
    """The signer of a request; `is_trusted` in open mode and for local commands. It `may` do these
    actions to the service."""

    account: str
    region: str
    user: str | None
    is_trusted: bool
    may: list[str]
    has_archive: bool


async def show_caller(desk: Desk, asked: Asked) -> ShownCaller:
    """The signer of the request, and what it may do to the service as a whole."""
    services = {action: action in _OF_ROOT for action in (READ_AUDIT, READ_USERS, MANAGE_USERS)}
    services |= {page.action: page.root_only for page in _PAGES}
    may = [
        action
        for action, root_only in services.items()
        if asked.may_administer(action, desk.account, root_only=root_only)
    ]
    return {
        "account": asked.caller.account,
        "region": asked.caller.region,
        "user": asked.caller.user,
        "is_trusted": asked.is_trusted,
        "may": [LIST_QUEUES, *may] if asked.may(LIST_QUEUES, "*") else may,
        "has_archive": desk.archive.has_lake,
    }
