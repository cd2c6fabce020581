"""The outcomes of a message to another host, as values.

NotSent   not a byte left this host: it did not happen
Refused   the other host read the request and did not do it
Unknown   it was sent, and there is no answer: it may have happened

Failed requests that may be tried again:

    outcome                                              try again
    not sent, for a reason that passes                   yes
    not sent: too large                                  no
    refused: not leader, busy, closing,
      definition unknown (it was not decided)            yes
    refused: leadership lost, or no room for the answer  yes, as a retry
    unknown                                              yes, as a retry
    refused otherwise                                    no

A retry may have been decided already, and says so: then the leader answers it from its memory
(`visibility/rules/retries.py`), also if it leads only since then. So nothing is sent twice, and no
receive counts twice.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import msgspec


class Reason(StrEnum):
    """Reasons that the connections themselves give; who serves a channel adds reasons of its
    own."""

    # not sent
    NOT_CONNECTED = "not_connected"
    FULL = "full"
    TOO_LARGE = "too_large"
    BREAKER_OPEN = "breaker_open"
    # not sent, or unknown
    DEADLINE = "deadline"
    # unknown, and the end of a connection
    LOST = "lost"
    SILENT = "silent"
    REPLACED = "replaced"
    STOPPED = "stopped"
    BAD_FRAME = "bad_frame"
    # refused
    BUSY = "busy"
    CLOSING = "closing"
    FAILED = "failed"
    # refused in the handshake
    NO_HANDSHAKE = "no_handshake"
    NO_COMMON_VERSION = "no_common_version"
    OTHER_CLUSTER = "other_cluster"
    OTHER_HOST = "other_host"
    SAME_HOST = "same_host"
    NOT_A_MEMBER = "not_a_member"
    WRONG_CERTIFICATE = "wrong_certificate"
    UNKNOWN_CHANNEL = "unknown_channel"
    NOT_ALLOWED = "not_allowed"
    """A process of this role may not ask for it, see `roles.py`."""
    OTHER_LOG = "other_log"


class Refusal(StrEnum):
    """Reasons of a host that was asked to decide a request."""

    NOT_LEADER = "not_leader"
    """The detail is the leader that it knows, or empty."""
    LEADERSHIP_LOST = "leadership_lost"
    """While the request was under way: it may have happened."""
    NOT_ALLOWED = "operation_not_allowed"
    """From a process of this role, see `roles.py`."""
    DEFINITION_UNKNOWN = "definition_unknown"
    """The hosts know different versions of a queue."""
    UNREADABLE = "unreadable"


class NotSent(msgspec.Struct, frozen=True, gc=False):
    """Nothing left this host."""

    reason: str


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """It was sent, and the answer is missing."""

    reason: str


class Refused(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The other host did not do it. `detail` is for people, unless the reason says otherwise."""

    reason: str
    detail: str = ""


Failure = NotSent | Unknown | Refused
Outcome = bytes | Failure
"""The answer's bytes, or the reason why a request got none."""
OnOutcome = Callable[[Outcome], None]
_NOT_DECIDED = frozenset(
    (Refusal.NOT_LEADER, Refusal.DEFINITION_UNKNOWN, Reason.BUSY, Reason.CLOSING)
)
_PERHAPS_DECIDED = frozenset((Refusal.LEADERSHIP_LOST, Reason.FULL))


def may_retry(outcome: Failure) -> bool:
    """True if trying again may help."""
    if isinstance(outcome, NotSent):
        return outcome.reason != Reason.TOO_LARGE
    return may_have_happened(outcome) or outcome.reason in _NOT_DECIDED


def may_have_happened(outcome: Failure) -> bool:
    """True if the next try must say that it is a retry."""
    if isinstance(outcome, Refused):
        return outcome.reason in _PERHAPS_DECIDED
    return isinstance(outcome, Unknown)
