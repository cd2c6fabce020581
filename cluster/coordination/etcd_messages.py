"""Requests and answers of etcd's JSON gateway, as far as they are used here.

Keys and values are Base64. The gateway writes 64-bit numbers as strings and leaves out fields that
are zero, false or empty; `decode` accepts both.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from typing_extensions import override

RANGE, TXN, PUT = "/v3/kv/range", "/v3/kv/txn", "/v3/kv/put"
GRANT, RENEW, REVOKE = "/v3/lease/grant", "/v3/lease/keepalive", "/v3/lease/revoke"
WATCH = "/v3/watch"
AUTHENTICATE = "/v3/auth/authenticate"
STATUS, ALARMS = "/v3/maintenance/status", "/v3/maintenance/alarm"
METRICS = "/metrics"

T = TypeVar("T")


class AnswerUnreadable(Exception):
    """An answer that is no JSON of the expected form."""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """Part of a request or an answer."""


class Header(Message, frozen=True):
    """The member that answered, and the state it answered from."""

    cluster_id: int = 0
    member_id: int = 0
    revision: int = 0
    raft_term: int = 0


class Answer(Message, frozen=True):
    """Any answer. An error has a code of gRPC instead; older versions name its text `error`."""

    header: Header = Header()
    code: int = 0
    message: str = ""
    error: str = ""

    @property
    def origin(self) -> Header:
        """The header, wherever the gateway puts it."""
        return self.header


# -- records ---------------------------------------------------------------------------------------


class KeyValue(Message, frozen=True):
    """A key as etcd keeps it."""

    key: bytes
    value: bytes = b""
    mod_revision: int = 0


class Range(Message, frozen=True):
    """Read a key, or the keys up to `range_end`; linearizable."""

    key: bytes
    range_end: bytes = b""
    limit: int = 0
    revision: int = 0


class RangeAnswer(Answer, frozen=True):
    """Keys in order."""

    kvs: list[KeyValue] = []
    more: bool = False


class Put(Message, frozen=True):
    """Write a key."""

    key: bytes
    value: bytes
    lease: int = 0


class Delete(Message, frozen=True):
    """Remove a key."""

    key: bytes


class Compare(Message, frozen=True):
    """The condition that a key was written last at a revision, 0 for a key that does not exist."""

    key: bytes
    mod_revision: int
    target: str


class Step(Message, frozen=True):
    """One operation of a transaction; exactly one field is set."""

    request_put: Put | None = None
    request_delete_range: Delete | None = None
    request_range: Range | None = None


class Txn(Message, frozen=True):
    """Operations that happen together, depending on conditions."""

    compare: list[Compare]
    success: list[Step]
    failure: list[Step]


class StepAnswer(Message, frozen=True):
    """The answer to one operation; only those to ranges are read."""

    response_range: RangeAnswer | None = None


class TxnAnswer(Answer, frozen=True):
    """The branch that was taken, and its answers."""

    succeeded: bool = False
    responses: list[StepAnswer] = []


# -- leases ----------------------------------------------------------------------------------------


class Grant(Message, frozen=True):
    """Make a lease with an id that the client chose."""

    ID: int
    TTL: int


class LeaseNamed(Message, frozen=True):
    """Renew or revoke a lease."""

    ID: int


class LeaseAnswer(Answer, frozen=True):
    """The lease's time to live in seconds; without it the lease is gone."""

    TTL: int = 0


class Renewed(Answer, frozen=True):
    """The gateway's envelope of a renewal's answer."""

    result: LeaseAnswer = LeaseAnswer()

    @property
    @override
    def origin(self) -> Header:
        return self.result.header


# -- watches ---------------------------------------------------------------------------------------


class WatchFrom(Message, frozen=True):
    """Which keys to watch, from which revision on."""

    key: bytes
    range_end: bytes
    start_revision: int
    progress_notify: bool


class Watch(Message, frozen=True):
    """Begin a watch."""

    create_request: WatchFrom


class Event(Message, frozen=True):
    """A key was written or removed."""

    kv: KeyValue
    type: str = "PUT"


class WatchAnswer(Message, frozen=True):
    """A line of a watch: that it began or ended, its progress, or events."""

    header: Header = Header()
    created: bool = False
    canceled: bool = False
    cancel_reason: str = ""
    compact_revision: int = 0
    events: list[Event] = []


class StreamError(Message, frozen=True):
    """The error that ends a stream; older versions write `grpc_code`."""

    code: int = 0
    grpc_code: int = 0
    message: str = ""


class WatchLine(Message, frozen=True):
    """The gateway's envelope of a watch's line. An error at the beginning is a bare text."""

    result: WatchAnswer | None = None
    error: StreamError | str = ""
    message: str = ""
    code: int = 0


# -- users, state of members -----------------------------------------------------------------------


class Authenticate(Message, frozen=True):
    """Ask for a token."""

    name: str
    password: str


class Authenticated(Answer, frozen=True):
    """A token for the header `Authorization`."""

    token: str = ""


class Empty(Message, frozen=True):
    """A request without fields."""


class StatusAnswer(Answer, frozen=True):
    """State of one member."""

    version: str = ""
    dbSize: int = 0  # noqa: N815  etcd's name
    dbSizeQuota: int = 0  # noqa: N815  etcd's name
    leader: int = 0


class Alarm(Message, frozen=True):
    """NOSPACE (a full quota) or CORRUPT."""

    alarm: str = "NONE"
    memberID: int = 0  # noqa: N815  etcd's name


class AlarmsAnswer(Answer, frozen=True):
    """The alarms that are raised."""

    alarms: list[Alarm] = []


# -- bytes -----------------------------------------------------------------------------------------


def encode(message: Message) -> bytes:
    """The body of a request."""
    return msgspec.json.encode(message)


def decode(kind: type[T], body: bytes) -> T:
    """An answer or a line. Raises AnswerUnreadable."""
    try:
        return msgspec.json.decode(body, type=kind, strict=False)
    except msgspec.MsgspecError as error:
        raise AnswerUnreadable(f"{error}: {body[:200]!r}") from error


def prefix_end(prefix: bytes) -> bytes:
    """The first key behind all keys that begin with this one."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
