"""ROUTES: the operators' API, and the action that a policy must allow for each route.

Paths are relative to /_holdfast/api/; `{queue}` is a queue's name. A queue of another account is
named with ?account=. A new route needs a row here and an answer in `api.ANSWERS`; `openapi.py`
documents both.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from sqs_api.admin.admin_actions import (
    DRAIN_HOST,
    READ_CLUSTER,
    RESERVED,
    RESTORE_QUEUE,
    AdminPage,
    page_of,
)
from sqs_api.http.http_limits import BODY_BYTES_MAX

API = RESERVED + "api/"
LIST_QUEUES = "holdfast:ListQueues"
GET_QUEUE = "holdfast:GetQueue"
BROWSE_MESSAGES = "holdfast:BrowseMessages"
READ_BODIES = "holdfast:ReadMessageBodies"
DELETE_MESSAGES = "holdfast:DeleteMessages"
REDRIVE_MESSAGES = "holdfast:RedriveMessages"
HOLD_MESSAGES = "holdfast:HoldMessages"
QUEUE_ACTIONS = frozenset(
    {
        LIST_QUEUES,
        GET_QUEUE,
        BROWSE_MESSAGES,
        READ_BODIES,
        DELETE_MESSAGES,
        REDRIVE_MESSAGES,
        HOLD_MESSAGES,
    }
)
"""Actions that policies allow on queues."""
READ_AUDIT = "holdfast:ReadAudit"
READ_USERS = "holdfast:ReadUsers"
MANAGE_USERS = "holdfast:ManageUsers"
SERVICE_ACTIONS = frozenset({READ_AUDIT, READ_USERS, MANAGE_USERS})
"""Actions on the service as a whole, which belongs to the configured account."""
SEND = "sqs:SendMessage"
PURGE = "sqs:PurgeQueue"
SET_ATTRIBUTES, TAG, UNTAG = "sqs:SetQueueAttributes", "sqs:TagQueue", "sqs:UntagQueue"

_SMALL_BYTES = 64 << 10
PARTS = {
    "{queue}": r"([A-Za-z0-9_-]{1,80}(?:\.fifo)?)",
    "{sequence}": r"([0-9]{1,18})",
    "{place}": r"([0-9]{1,17}\.[0-9a-zA-Z_-]{1,80}\.[0-9]{1,9}\.[0-9]{1,18})",
}
_POLICY_BYTES = 512 << 10
"""A policy's 64 Ki characters, each escaped."""


class Route(NamedTuple):
    """A route. `action` is checked on the queue of the path, if there is one, or on the service if
    it is one of SERVICE_ACTIONS; None: any signer."""

    name: str
    method: str
    path: str
    action: str | None
    body_bytes_max: int = _SMALL_BYTES
    page: AdminPage | None = None
    """The administrative page of the service as a whole, which the caller must be admitted to."""
    root_only: bool = False
    """Refuse users, even if their policies allow the action."""
    renamed: str = ""
    """The new name of a route that answers under its old one until the next release."""

    @property
    def only_reads(self) -> bool:
        """True if the route changes nothing."""
        return self.method == "GET"

    @property
    def event(self) -> str:
        """The name in the audit log, such as holdfast:StartRedrive."""
        return "holdfast:" + (self.renamed or self.name).title().replace(" ", "")


ROUTES = (
    Route("show caller", "GET", "caller", None),
    Route("list queues", "GET", "queues", LIST_QUEUES),
    Route("list dead letters", "GET", "dead-letters", LIST_QUEUES),
    Route("list depths", "GET", "depths", LIST_QUEUES),
    Route("show queue", "GET", "queues/{queue}", GET_QUEUE),
    Route("purge queue", "POST", "queues/{queue}/purge", PURGE),
    Route("restore queue", "POST", "deleted-queues/restore", None, page=page_of(RESTORE_QUEUE)),
    Route("set attributes", "POST", "queues/{queue}/attributes", SET_ATTRIBUTES),
    Route("tag queue", "POST", "queues/{queue}/tags", TAG),
    Route("untag queue", "POST", "queues/{queue}/tags/remove", UNTAG),
    Route("show history", "GET", "queues/{queue}/history", GET_QUEUE),
    Route("browse messages", "GET", "queues/{queue}/messages", BROWSE_MESSAGES),
    Route("show groups", "GET", "queues/{queue}/groups", BROWSE_MESSAGES),
    Route("show message", "GET", "queues/{queue}/messages/{sequence}", BROWSE_MESSAGES),
    Route("send message", "POST", "queues/{queue}/messages", SEND, BODY_BYTES_MAX),
    Route("delete messages", "POST", "queues/{queue}/messages/delete", DELETE_MESSAGES),
    Route("undelete messages", "POST", "queues/{queue}/messages/undelete", DELETE_MESSAGES),
    Route("hold messages", "POST", "queues/{queue}/messages/hold", HOLD_MESSAGES),
    Route(
        "quarantine messages",
        "POST",
        "queues/{queue}/messages/quarantine",
        HOLD_MESSAGES,
        renamed="hold messages",
    ),
    Route("release messages", "POST", "queues/{queue}/messages/release", HOLD_MESSAGES),
    Route(
        "resend message",
        "POST",
        "queues/{queue}/messages/{sequence}/resend",
        BROWSE_MESSAGES,
        BODY_BYTES_MAX,
    ),
    Route("plan redrive", "POST", "queues/{queue}/redrives/plan", REDRIVE_MESSAGES),
    Route("start redrive", "POST", "queues/{queue}/redrives", REDRIVE_MESSAGES),
    Route("list redrives", "GET", "queues/{queue}/redrives", GET_QUEUE),
    Route("pause redrive", "POST", "queues/{queue}/redrives/pause", REDRIVE_MESSAGES),
    Route("resume redrive", "POST", "queues/{queue}/redrives/resume", REDRIVE_MESSAGES),
    Route("undo redrive", "POST", "queues/{queue}/redrives/undo", REDRIVE_MESSAGES),
    Route("cancel redrive", "POST", "queues/{queue}/redrives/cancel", REDRIVE_MESSAGES),
    Route("search archive", "GET", "archive/{queue}/messages", BROWSE_MESSAGES),
    Route("show archived message", "GET", "archive/{queue}/messages/{place}", BROWSE_MESSAGES),
    Route("plan replay", "POST", "archive/{queue}/replays/plan", REDRIVE_MESSAGES),
    Route("replay archive", "POST", "archive/{queue}/replays", REDRIVE_MESSAGES),
    Route("read audit", "GET", "audit", READ_AUDIT),
    Route("list users", "GET", "users", READ_USERS),
    Route("show user", "GET", "users/show", READ_USERS),
    Route("check permission", "GET", "users/check", READ_USERS),
    Route("add user", "POST", "users", MANAGE_USERS, root_only=True),
    Route("remove user", "POST", "users/remove", MANAGE_USERS, root_only=True),
    Route("put policy", "POST", "users/policies", MANAGE_USERS, _POLICY_BYTES, root_only=True),
    Route("remove policy", "POST", "users/policies/remove", MANAGE_USERS, root_only=True),
    Route("add key", "POST", "access-keys", MANAGE_USERS, root_only=True),
    Route("rotate key", "POST", "access-keys/rotate", MANAGE_USERS, root_only=True),
    Route("enable key", "POST", "access-keys/enable", MANAGE_USERS, root_only=True),
    Route("remove key", "POST", "access-keys/remove", MANAGE_USERS, root_only=True),
    Route("show cluster", "GET", "cluster", None, page=page_of(READ_CLUSTER)),
    Route("drain host", "POST", "cluster/drain", None, page=page_of(DRAIN_HOST)),
)


def _pattern(path: str) -> re.Pattern[str]:
    for name, pattern in PARTS.items():
        path = path.replace(name, pattern)
    return re.compile(re.escape(API) + path)


_PATTERNS = [(_pattern(route.path), route) for route in ROUTES]


def routes_at(path: str) -> dict[str, tuple[Route, tuple[str, ...]]]:
    """The routes of a path by method, with the matched parts."""
    return {
        route.method: (route, found.groups())
        for pattern, route in _PATTERNS
        if (found := pattern.fullmatch(path)) is not None
    }
