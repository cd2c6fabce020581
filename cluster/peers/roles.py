"""Roles of the processes of a fleet, and what each may send on which channel.

A host trusts the hosts of its own cluster: they keep the same shards. Another cluster's may pass
requests on and bring messages of their outboxes; a gateway, which stands closer to clients, passes
on what clients ask for. Who a process is, its certificate says: besides its name it bears a mark.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from cluster.peers.peer_settings import Address, Channel
from visibility.contract.operations import Operation
from visibility.rules import (
    acknowledge,
    archive_batches,
    at_most_once,
    closing_parts,
    departures,
    earlier_parts,
    failure_notes,
    kept_queues,
    noted_parts,
    on_delete,
    prepared_deletes,
    queues,
    shared_moves,
    transactions,
)
from visibility.rules.features import OPERATIONS


class PeerRole(StrEnum):
    """A process as a host sees it."""

    MEMBER = "member"
    """A host of the same cluster."""
    NEIGHBOUR = "neighbour"
    """A host of another cluster of the fleet."""
    GATEWAY = "gateway"


MARKS = "holdfast:"
"""Marks are URIs in the alternative names of a certificate."""
GATEWAY_MARK = f"{MARKS}gateway"


def cluster_mark(number: int) -> str:
    """The mark of the hosts of a cluster, by its number in the fleet."""
    return f"{MARKS}cluster/{number}"


FIRST_MARK = cluster_mark(1)
"""A certificate without a mark counts as one of the first cluster."""


class Place(NamedTuple):
    """A process's place in the fleet, which its handshake and its certificate must show."""

    cluster: str
    """The id of its cluster; GATEWAYS of a gateway."""
    role: PeerRole = PeerRole.MEMBER
    mark: str = FIRST_MARK


GATEWAYS = "gateway"


class Neighbour(NamedTuple):
    """A process of the fleet outside of one's own cluster."""

    address: Address | None
    """None of a gateway: nobody connects to one."""
    place: Place


CHANNELS: dict[PeerRole, frozenset[Channel]] = {
    PeerRole.MEMBER: frozenset(Channel),
    PeerRole.NEIGHBOUR: frozenset(
        {Channel.REQUESTS, Channel.CATALOG, Channel.STATUS, Channel.PAGES, Channel.COUNTS},
    ),
    PeerRole.GATEWAY: frozenset({Channel.REQUESTS, Channel.CATALOG, Channel.COUNTS}),
}
"""Channels that each may open here."""

_OF_THE_CLUSTER = {
    departures.ReadOutbox,
    departures.ClearOutbox,
    queues.CloseQueue,
    queues.QueueChanged,
    closing_parts.PartsAdded,
    noted_parts.NoteParts,
    earlier_parts.ReadLockedGroups,
    earlier_parts.UnlockGroups,
    shared_moves.AdvanceMoveTask,
    kept_queues.ContinueQueue,
    kept_queues.RestoreMessages,
    kept_queues.DropQueue,
    on_delete.MoveDeleted,
    archive_batches.SealArchive,
    archive_batches.AcknowledgeArchive,
    failure_notes.ReadFailureNotes,
    failure_notes.NoteFailures,
    failure_notes.ForgetFailures,
}
_FOR_CLIENTS = {
    acknowledge.ReturnMessages,
    acknowledge.UndoReceive,
    at_most_once.RemoveTaken,
    queues.ReadCounters,
    queues.ReadQueues,
    closing_parts.FindMessages,
    earlier_parts.FindIds,
    earlier_parts.FindAttempt,
    transactions.TransactMessages,
    transactions.FindTransaction,
    transactions.PrepareDeletes,
    prepared_deletes.AskPrepared,
}
"""Asked by a router to answer a client, besides the client's own operations."""

REQUESTS: dict[PeerRole, frozenset[type[Operation]]] = {
    PeerRole.MEMBER: frozenset(OPERATIONS),
    PeerRole.NEIGHBOUR: frozenset(OPERATIONS.keys() - _OF_THE_CLUSTER),
    PeerRole.GATEWAY: frozenset(
        {each for each in OPERATIONS if each.__module__ == Operation.__module__} | _FOR_CLIENTS
    ),
}
"""Operations that each may have decided here."""
