"""Leadership: the part of coordination that replication needs. Nothing of ours votes.

Two records for each shard: the *holder*, a key with a lease, and the *term record*, which stays.
Both are written by one transaction that fails if either has changed since it was read. A lease
says who may try; the term, which a majority of replicas has promised, says who succeeds.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

from cluster.coordination.coordination import Conflict, Done, Unavailable, Unknown
from cluster.replication import replica_messages
from cluster.replication.voters import Voters, VoterSet


class Holder(msgspec.Struct, frozen=True):
    """The holder of the key."""

    name: str
    replica_id: str
    term: int


class TermRecord(msgspec.Struct, frozen=True):
    """The latest term and who counts in it."""

    term: int
    log_id: bytes
    voters: Voters
    old_voters: tuple[str, ...] = ()


def record_of(voters: VoterSet, log_id: bytes) -> TermRecord:
    """The record of these voters' term."""
    return TermRecord(voters.term, log_id, voters.voters, voters.old_voters)


class Seen(msgspec.Struct, frozen=True):
    """Both records as of a revision."""

    revision: int
    """The revision of the later change of the two."""
    holder: Holder | None
    record: TermRecord | None


class Taken(NamedTuple):
    """A term that this replica took the key with."""

    holder: Holder
    voters: VoterSet
    revision: int
    """The revision of the key and the term record."""

    def question(self, log_id: bytes) -> replica_messages.Promise:
        """The question to a peer for its promise."""
        holder, voters = self.holder, self.voters
        return replica_messages.Promise(
            holder.term, holder.replica_id, log_id, voters.voters, voters.old_voters
        )

    def is_spent(self, refused: replica_messages.Refused) -> bool:
        """True if a peer has promised a higher term, or this one to another replica.

        Coordination that was restored to an older state may give a term twice.
        """
        holder = self.holder
        is_given_twice = refused.term == holder.term and refused.leader != holder.replica_id
        return refused.term > holder.term or is_given_twice


class Renewal(StrEnum):
    """The outcome of renewing a lease."""

    KEPT = "kept"
    LOST = "lost"
    """The lease or the key is gone."""
    UNAVAILABLE = "unavailable"


class Leadership(Protocol):
    """The key of one shard, for one host. Each `done` is called once, later, on the event loop."""

    @property
    def renewal_s(self) -> float:
        """Interval at which a holder is to call `renew`."""

    def read(self, done: Callable[[Seen | Unavailable], None]) -> None:
        """Both records, as they were after the call."""

    def take(
        self,
        seen: Seen,
        holder: Holder,
        record: TermRecord,
        done: Callable[[Done | Conflict | Unknown | Unavailable], None],
    ) -> None:
        """Write both, provided that nothing has changed since they were seen.

        The key gets a new lease, or keeps it if `seen` names the same replica as holder.
        """

    def renew(self, holder: Holder, done: Callable[[Renewal], None]) -> None:
        """Extend the lease, if the key still bears this holder."""

    def release(self, holder: Holder) -> None:
        """Delete the key if it bears this holder; tried at least once."""
