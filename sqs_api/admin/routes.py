"""Route: a row of the admin API's table, and the actions that policies allow for its routes.

A feature's file exports its rows as ROUTES; `operators/api.py` adds them up, serves and audits
them, and `operators/openapi.py` documents them. So a new route is a row and a function.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from visibility.contract.tags import LIFT_PROTECTION, SET_LOSSY_POLICY

RESERVED = "/_holdfast/"
API = RESERVED + "api/"

# -- actions on a queue ----------------------------------------------------------------------------

LIST_QUEUES = "holdfast:ListQueues"
GET_QUEUE = "holdfast:GetQueue"
BROWSE_MESSAGES = "holdfast:BrowseMessages"
READ_BODIES = "holdfast:ReadMessageBodies"
DELETE_MESSAGES = "holdfast:DeleteMessages"
REDRIVE_MESSAGES = "holdfast:RedriveMessages"
HOLD_MESSAGES = "holdfast:HoldMessages"
CHANGE_PARTS = "holdfast:ChangeQueueParts"
QUEUE_ACTIONS = frozenset(
    {
        LIST_QUEUES,
        GET_QUEUE,
        BROWSE_MESSAGES,
        READ_BODIES,
        DELETE_MESSAGES,
        REDRIVE_MESSAGES,
        HOLD_MESSAGES,
        CHANGE_PARTS,
        SET_LOSSY_POLICY,
        LIFT_PROTECTION,
    }
)
"""Actions that policies allow on queues."""
SEND = "sqs:SendMessage"
CREATE, DELETE = "sqs:CreateQueue", "sqs:DeleteQueue"
PURGE = "sqs:PurgeQueue"
SET_ATTRIBUTES, TAG, UNTAG = "sqs:SetQueueAttributes", "sqs:TagQueue", "sqs:UntagQueue"
READ_METRICS = "holdfast:ReadMetrics"
"""The right to read a queue's metrics."""

# -- actions on the service ------------------------------------------------------------------------

BACKUP = "holdfast:Backup"
READ_ARCHIVE = "holdfast:ReadArchive"
SEAL_ARCHIVE = "holdfast:SealArchive"
ACKNOWLEDGE_ARCHIVE = "holdfast:AcknowledgeArchive"
LIST_DELETED_QUEUES = "holdfast:ListDeletedQueues"
RESTORE_QUEUE = "holdfast:RestoreQueue"
DELETE_QUEUE = "holdfast:DeleteQueue"
PURGE_QUEUE = "holdfast:PurgeQueue"
READ_USAGE = "holdfast:ReadUsage"
READ_CLUSTER = "holdfast:ReadCluster"
READ_FLEET = "holdfast:ReadFleet"
DRAIN_HOST = "holdfast:DrainHost"
REMOVE_HOST = "holdfast:RemoveHost"
RAISE_FORMATS = "holdfast:RaiseFormats"
ADD_CLUSTER = "holdfast:AddCluster"
CHANGE_FLEET = "holdfast:ChangeFleet"
READ_AUDIT = "holdfast:ReadAudit"
READ_USERS = "holdfast:ReadUsers"
MANAGE_USERS = "holdfast:ManageUsers"
ADD_MARK = "holdfast:AddMark"
SERVICE_ACTIONS = frozenset(
    {
        BACKUP,
        READ_ARCHIVE,
        SEAL_ARCHIVE,
        ACKNOWLEDGE_ARCHIVE,
        LIST_DELETED_QUEUES,
        RESTORE_QUEUE,
        DELETE_QUEUE,
        PURGE_QUEUE,
        READ_USAGE,
        READ_CLUSTER,
        READ_FLEET,
        DRAIN_HOST,
        REMOVE_HOST,
        RAISE_FORMATS,
        ADD_CLUSTER,
        CHANGE_FLEET,
        READ_AUDIT,
        READ_USERS,
        MANAGE_USERS,
        ADD_MARK,
    }
)
"""Actions on the service as a whole, which belongs to the configured account."""

# -- rows ------------------------------------------------------------------------------------------

SMALL_BYTES = 64 << 10
PARTS = {
    "{queue}": r"([A-Za-z0-9_-]{1,80}(?:\.fifo)?)",
    "{sequence}": r"([0-9]{1,18})",
    "{place}": r"([0-9]{1,17}\.[0-9a-zA-Z_-]{1,80}\.[0-9]{1,9}\.[0-9]{1,18})",
    "{queue_id}": r"([0-9]{1,18})",
}
"""Parts of a path, and their patterns."""
QUEUE = "api/queues/{queue}"
MESSAGES, REDRIVES = QUEUE + "/messages", QUEUE + "/redrives"
"""Beginnings of paths."""

Answer = Callable[..., Coroutine[Any, Any, Any]]
"""Answers a route with an object, from a part of the service, an Asked, and what the route takes,
if anything: a msgspec.Struct of the body, or of the parameters of a GET. The annotations name the
part, and are the schemas in the OpenAPI document. Raises QueueError, AuthError, Refused."""
Parts = Mapping[type, Any]
"""The parts of the service that answers work with, by their types."""
Leads = Callable[[int], str | None]
"""The host that leads a shard, None if none does."""
Merge = Callable[[Mapping[str, Any], Leads], Any]
"""Merges the answers of hosts, by host."""


class Refused(Exception):
    """An answer other than 200, as its status and a text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, eq=False)
class Route:
    """A route. Below api/, the console's own pages may ask, too; all others are for commands and
    jobs, and refuse browsers."""

    method: str
    path: str
    """Relative to RESERVED. `{queue}` is a queue's name; one of another account is named with
    ?account=."""
    action: str | None
    """Checked on the queue of the path, or on the service if it is one of SERVICE_ACTIONS; None:
    any signer."""
    answer: Answer
    command: str = ""
    """The command that asks, without `holdfast`; empty if none does."""
    body_bytes_max: int = SMALL_BYTES
    is_open: bool = False
    """Answer anyone, without a signature."""
    root_only: bool = False
    """Refuse users, even if their policies allow the action."""
    renamed: str = ""
    """The new name of a route that answers under its old one until the next release."""
    merge: Merge | None = None
    """In a cluster the leaders of all shards answer, and this merges what they say."""
    of_shard: bool = False
    """In a cluster the leader of the shard that the body names answers."""
    wait_s: float = 5.0
    """Time for another host's answer."""

    @property
    def only_reads(self) -> bool:
        """True if the route changes nothing."""
        return self.method == "GET"

    @property
    def is_of_console(self) -> bool:
        """True if the console's pages may ask."""
        return (RESERVED + self.path).startswith(API)

    @property
    def is_of_service(self) -> bool:
        """True if the action is one on the service, not on a queue."""
        return self.action in SERVICE_ACTIONS

    @property
    def name(self) -> str:
        """The name in the OpenAPI document, such as "start redrive" or "backup command"."""
        if self.action is None or self.is_of_console:
            return self.answer.__name__.replace("_", " ")
        words = re.sub("(?<!^)([A-Z])", r" \1", self.action.partition(":")[2])
        return f"{words.lower()} command"

    @property
    def event(self) -> str:
        """The name in the audit log, such as holdfast:StartRedrive."""
        if self.action is not None and not self.is_of_console:
            return self.action
        return "holdfast:" + (self.renamed or self.name).title().replace(" ", "")

    @cached_property
    def _types(self) -> list[Any]:
        hints = get_type_hints(self.answer, include_extras=True)
        return [hints[name] for name in inspect.signature(self.answer).parameters]

    @cached_property
    def part(self) -> type:
        """The type of the part that answers; the answer gets None where the service has none."""
        part = self._types[0]
        found: type = next(each for each in get_args(part) or [part] if each is not type(None))
        return found

    @cached_property
    def taken(self) -> type[msgspec.Struct] | None:
        """The type of the body, or of a GET's parameters; None if the route takes nothing."""
        return self._types[2] if len(self._types) > 2 else None

    @cached_property
    def given(self) -> tuple[Any, ...]:
        """The types of the answer."""
        given = get_type_hints(self.answer, include_extras=True)["return"]
        return get_args(given) if get_origin(given) in (Union, UnionType) else (given,)
