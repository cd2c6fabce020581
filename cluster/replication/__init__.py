"""Replication of one shard's log: `Replica` is one host's part of it."""

from cluster.replication.contract import (
    Network,
    NotServing,
    ReplicaOwner,
    ReplicaRole,
    Times,
    Timing,
)
from cluster.replication.journal import Journal
from cluster.replication.journal_files import OtherLog
from cluster.replication.leadership import Holder, Leadership, Seen, TermRecord
from cluster.replication.replica import Replica

__all__ = [
    "Holder",
    "Journal",
    "Leadership",
    "Network",
    "NotServing",
    "OtherLog",
    "Replica",
    "ReplicaOwner",
    "ReplicaRole",
    "Seen",
    "TermRecord",
    "Times",
    "Timing",
]
