"""Shipping: the Entries of a leader's term, to its disk and its peers, until a majority has them.

Only Entries of the leader's own term are counted; older ones are committed with them. The leader
has each Entry durable itself before it counts, so one whose disk hangs commits nothing and gives
up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cluster.replication import replica_messages
from cluster.replication.contract import NotServing, ReplicaRole
from cluster.replication.following import Follower
from cluster.replication.leadership import Taken
from cluster.replication.replica_core import Part
from cluster.replication.voters import reached_by_majority
from storage.log import LogFailed, Position

MESSAGES_MAX = 8
"""Messages with Entries on their way to one peer."""
MESSAGES_BYTES = 32 << 20


@dataclass(slots=True)
class Peer:
    """A host as its leader sees it."""

    name: str
    replica_id: str = ""
    """Empty until it has promised the term."""
    next: int = 0
    """The index to send next; 0 while it is not known where the logs agree."""
    matched: int = 0
    """Up to here its log is ours, and durable."""
    acknowledged: dict[str, int] = field(default_factory=dict)
    """The same for the replicas that it was before in this term, and for this one before it
    promised the term once more: it may have been put back from an older copy."""
    goal: int = 0
    """The commit index when it joined: with this it may become a voter."""
    in_flight: deque[tuple[int, int]] = field(default_factory=deque)
    """Last index and bytes of messages that were not answered."""
    heard_at: float = 0.0
    alive_at: float = 0.0
    """When it last answered; 0 if it never did."""
    is_reading: bool = False
    refused: tuple[Position, Position] | None = None
    """The state of its log when it last refused Entries; None once it took some."""
    refused_at: float = 0.0
    round: int = 0
    """The last heartbeat that it answered."""
    ahead_s: float | None = None
    """Seconds by which its clock is ahead of ours."""
    has_space: bool = True
    """False if it said that its disk is short."""

    def leave(self) -> None:
        """It is another replica now, or forgot what it promised."""
        if self.replica_id:
            self.acknowledged[self.replica_id] = self.owed
            self.replica_id = ""

    def lack(self, synced: int) -> None:
        """It has no more than this of what it acknowledged; where the logs agree is not known."""
        self.acknowledged[self.replica_id] = self.owed
        self.next, self.matched = 0, synced
        self.in_flight.clear()

    @property
    def owed(self) -> int:
        """The index up to which it acknowledged in this term, and has all, unless it lost some."""
        return max(self.matched, self.acknowledged.get(self.replica_id, 0))

    def join(self, replica_id: str, goal: int, now: float) -> None:
        """It promised the term as this replica; where the logs agree is not known yet."""
        self.leave()
        self.replica_id, self.goal, self.heard_at = replica_id, goal, now
        self.next = self.matched = self.round = 0
        self.refused = self.ahead_s = None
        self.in_flight.clear()


class Shipping(Part):
    """The part of a leader that each Entry passes; `Leading` adds the rest."""

    role = ReplicaRole.LEADER

    def __init__(
        self, replica: Follower, taken: Taken, waiting: Sequence[Callable[[bool], None]]
    ) -> None:
        """`waiting` are called with the term's confirmation."""
        self.taken = taken
        self.term = taken.holder.term
        self.is_serving = False
        self._is_leaving = False
        """True while the shard is handed over: no more Entries are taken."""
        self._replica = replica
        self._first = replica.log.last_index + 1
        """The first Entry of the term: from here on Entries are counted."""
        self._sizes: deque[tuple[int, int]] = deque()
        """Index and bytes of Entries under way."""
        self._peers = {name: Peer(name) for name in replica.peers}
        self._waiting = deque((1, done) for done in waiting)
        """Callbacks that wait for a heartbeat to be confirmed, with its number."""
        self._moved_at = replica.now()
        """When something was committed or confirmed, or began to wait for that."""
        self._handlers: dict[type, Callable[[Peer, Any], None]] = {
            replica_messages.Appended: self._on_appended
        }

    # -- Entries -----------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """False before the term's first Entry is committed, while as much is under way as may be,
        and once the shard is handed over."""
        timing, size = self._replica.timing, sum(size for _, size in self._sizes)
        is_short = len(self._sizes) < timing.under_way_max and size < timing.under_way_bytes
        return self.is_serving and is_short and not self._is_leaving

    def propose(self, body: bytes, queue_ids: Sequence[int] = ()) -> int:
        """Append an Entry and ship it; returns its index. Raises NotServing, LogFull, LogFailed."""
        if not self.has_room:
            raise NotServing
        try:
            return self._append(body, queue_ids)
        except LogFailed as error:
            self._replica.fail(str(error))
            raise

    def _append(self, body: bytes, queue_ids: Sequence[int]) -> int:
        """Append an Entry, sync it and ship it meanwhile. Raises as `Log.append` does."""
        replica = self._replica
        if not self._sizes and not self._waiting:
            self._moved_at = replica.now()
        journal = replica.journal
        log = journal.log
        record = log.append_own(
            body,
            queue_ids,
            term=self.term,
            committed=replica.commit,
            written_as=journal.written_as(),
        )
        index = log.last_index
        self._sizes.append((index, len(record)))
        journal.sync()
        for peer in self._peers.values():
            self._ship(peer)
        return index

    def synced(self) -> None:
        """More of the own log is durable."""
        self._count()

    def _count(self) -> None:
        """Commit what a majority has."""
        replica = self._replica
        own = replica.log.synced_index
        reached = {peer.replica_id: peer.matched for peer in self._peers.values()}
        reached[replica.replica_id] = own
        index = min(own, reached_by_majority(reached, self.taken.voters.voters))
        if index <= replica.commit or index < self._first:
            return
        while self._sizes and self._sizes[0][0] <= index:
            self._sizes.popleft()
        self._moved_at = replica.now()
        replica.commit_to(index)
        if not self.is_serving and replica.part is self:
            self.is_serving = True
            replica.owner.on_serving(self.term)

    # -- to the peers ------------------------------------------------------------------------------

    def _ship(self, peer: Peer) -> None:
        """Send what the peer lacks, as far as messages may be on their way."""
        log, batch_bytes = self._replica.log, self._replica.timing.batch_bytes
        if not peer.replica_id or peer.is_reading:
            return
        if not peer.next:
            if not peer.in_flight:  # the answer says where the logs agree
                self._send(peer, log.last, [])
            return
        while peer.next and peer.next <= log.last_index and self._may_send(peer):
            records = log.entries.recent(peer.next, batch_bytes)
            if not records:
                peer.is_reading = True
                log.read(peer.next, batch_bytes, partial(self._read, peer, peer.next))
                return
            self._send_next(peer, records)

    def _may_send(self, peer: Peer) -> bool:
        size = sum(size for _, size in peer.in_flight)
        return len(peer.in_flight) < MESSAGES_MAX and size < MESSAGES_BYTES

    def _read(self, peer: Peer, first: int, records: list[bytes]) -> None:
        peer.is_reading = False
        replica = self._replica
        if replica.part is not self or peer.next != first:
            return
        if records:
            self._send_next(peer, records)
            self._ship(peer)
        elif replica.log.holds(first):
            replica.fail(f"cannot read Entry {first}")
        else:  # it was released meanwhile
            peer.next = 0

    def _send_next(self, peer: Peer, records: list[bytes]) -> None:
        previous = self._replica.log.position_at(peer.next - 1)
        if previous is None:  # it was released meanwhile
            peer.next = 0
            return
        peer.next += len(records)
        self._send(peer, previous, records)

    def _send(self, peer: Peer, previous: Position, records: list[bytes]) -> None:
        replica = self._replica
        if not peer.in_flight:
            peer.heard_at = replica.now()
        peer.in_flight.append((previous.index + len(records), sum(map(len, records))))
        replica.send(
            peer.name,
            replica_messages.Append(
                self.term, replica.replica_id, previous, records, replica.commit
            ),
        )

    def receive(self, sender: str, message: replica_messages.Message) -> None:
        """Take the answer of a peer."""
        peer, handler = self._peers.get(sender), self._handlers.get(type(message))
        if peer is not None:
            peer.alive_at = self._replica.now()
            if handler is not None:
                handler(peer, message)

    def _on_appended(self, peer: Peer, message: replica_messages.Appended) -> None:
        if message.term != self.term or message.replica_id != peer.replica_id:
            return
        peer.heard_at = self._replica.now()
        peer.refused = None
        peer.matched = max(peer.matched, message.index)
        peer.next = max(peer.next, message.index + 1)
        while peer.in_flight and peer.in_flight[0][0] <= message.index:
            peer.in_flight.popleft()
        self._ship(peer)
        self._count()
