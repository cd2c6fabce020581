"""The report of a replica, for the status of a cluster and for metrics. Frozen plain data."""

from __future__ import annotations

import msgspec

from storage.engines.store_options import Replication


class PeerReport(msgspec.Struct, frozen=True):
    """A peer as its leader sees it."""

    name: str
    replica_id: str
    """Empty until it has promised the leader's term."""
    matched: int
    """Up to this index its log is the leader's, and durable."""
    is_voter: bool
    heard_s: float | None
    """Seconds since it last answered, None if it has not in this term."""
    ahead_s: float | None = None
    """Seconds by which its wall clock is ahead of the leader's; None before its first answer."""


class ReplicaReport(msgspec.Struct, frozen=True):
    """One host's replica of one shard."""

    role: str
    replica_id: str
    term: int
    """The term that it has promised."""
    leader_id: str
    """The replica that leads in this term."""
    is_voter: bool
    commit: int
    applied: int
    """The last Entry that its rows have."""
    last_index: int
    needs_checkpoint: bool
    damage: str
    """The damage in its rows, for which it neither leads nor counts; empty if none is known."""
    has_no_good_copy: bool
    """True if the rows of all hosts were found to be damaged: damage is quarantined."""
    peers: list[PeerReport]
    """Only the leader knows them."""
    replication: str = Replication.SYNC
    """The way in which this host answers while it leads."""
    is_changing_voters: bool = False
    """A leader that is writing another set of voters."""
