"""The policy of internal retries: which failed requests may be tried again, as a table.

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

from enum import StrEnum

from cluster.peers.peer_outcomes import Failure, NotSent, Reason, Refused, Unknown


class Refusal(StrEnum):
    """Reasons of a host that was asked to decide a request."""

    NOT_LEADER = "not_leader"
    """The detail is the leader that it knows, or empty."""
    LEADERSHIP_LOST = "leadership_lost"
    """While the request was under way: it may have happened."""
    DEFINITION_UNKNOWN = "definition_unknown"
    """The hosts know different versions of a queue."""
    UNREADABLE = "unreadable"


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
