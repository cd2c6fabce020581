"""The table of internal retries."""

from __future__ import annotations

from cluster.peers.peer_outcomes import (
    Failure,
    NotSent,
    Reason,
    Refusal,
    Refused,
    Unknown,
    may_have_happened,
    may_retry,
)

DID_NOT_HAPPEN: list[Failure] = [
    NotSent(Reason.NOT_CONNECTED),
    NotSent(Reason.FULL),
    NotSent(Reason.BREAKER_OPEN),
    NotSent(Reason.DEADLINE),
    Refused(Refusal.NOT_LEADER, "b"),
    Refused(Refusal.DEFINITION_UNKNOWN),
    Refused(Reason.BUSY),
    Refused(Reason.CLOSING),
]
MAY_HAVE_HAPPENED: list[Failure] = [
    Unknown(Reason.LOST),
    Unknown(Reason.SILENT),
    Unknown(Reason.DEADLINE),
    Refused(Refusal.LEADERSHIP_LOST),
    Refused(Reason.FULL),
]
FINAL: list[Failure] = [
    NotSent(Reason.TOO_LARGE),
    Refused(Reason.FAILED),
    Refused(Reason.TOO_LARGE),
    Refused(Refusal.UNREADABLE),
    Refused(Refusal.NOT_ALLOWED),
    Refused("a reason of a later version"),
]


def test_the_table() -> None:
    assert all(map(may_retry, DID_NOT_HAPPEN + MAY_HAVE_HAPPENED))
    assert not any(map(may_retry, FINAL))


def test_only_what_may_have_happened_is_a_retry() -> None:
    assert all(map(may_have_happened, MAY_HAVE_HAPPENED))
    assert not any(map(may_have_happened, DID_NOT_HAPPEN + FINAL))


def test_every_reason_is_in_the_table() -> None:
    listed = {outcome.reason for outcome in DID_NOT_HAPPEN + MAY_HAVE_HAPPENED + FINAL}

    assert set(Refusal) <= listed
