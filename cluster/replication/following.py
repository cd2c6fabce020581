"""Follower: a replica that follows: it promises, takes Entries, and answers who asks.

It does so in every role. `Replica` adds the way to lead. Its other roles (`Asking`, `Adopting`,
`Leading`) know this file only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from typing_extensions import override

from cluster.replication import replica_messages
from cluster.replication.replica_core import ReplicaCore
from cluster.replication.voters import VoterSet
from storage import log as storage_log
from storage.log import Diverged, Position


class Follower(ReplicaCore):
    """Belongs to the event loop's thread."""

    @override
    def _reactions(self) -> dict[type, Callable[[str, Any], None]]:
        return {
            replica_messages.Ask: self._on_ask,
            replica_messages.Promise: self._on_promise,
            replica_messages.Append: self._on_append,
            replica_messages.Heartbeat: self._on_heartbeat,
            replica_messages.Fetch: self._on_fetch,
            replica_messages.Behind: self._on_behind,
            replica_messages.HandOver: self._on_hand_over,
        }

    # -- messages ----------------------------------------------------------------------------------

    def receive(self, sender: str, message: replica_messages.Message) -> None:
        """Take a message of a peer."""
        if self._recovery is not None:
            return
        handler = self._handlers.get(type(message))
        if handler is not None:
            self.guarded(handler, sender, message)
        elif self.part is not None:
            self.guarded(self.part.receive, sender, message)

    def _refuse(self, sender: str) -> None:
        promise, last = self.journal.promise, self.log.last
        refused = replica_messages.Refused(
            promise.term, promise.leader, self.replica_id, last, self.committed
        )
        self.send(sender, refused)

    def _on_ask(self, sender: str, message: replica_messages.Ask) -> None:
        promise, last, log = self.journal.promise, self.journal.synced, self.log
        is_longer = last.index > message.last.index
        self.send(
            sender,
            replica_messages.Standing(
                message.attempt,
                self.replica_id,
                log.log_id,
                log.start.index,
                last,
                log.bytes_above(message.last.index) if is_longer else 0,
                promise.term,
                promise.voters,
                promise.old_voters,
                self.times.wall_s(),
            ),
        )

    def _on_hand_over(self, sender: str, message: replica_messages.HandOver) -> None:
        """The leader of this term gave up the key for this replica."""
        if message.term == self.journal.promise.term and self.part is None:
            self.key.invite()

    # -- promises ----------------------------------------------------------------------------------

    def give(self, voters: VoterSet, leader: str, given: Callable[[], None]) -> bool:
        """Promise the term, durably, then call `given`; False if another promise stands."""
        promise = storage_log.Promise(
            self.replica_id, voters.term, leader, voters.voters, voters.old_voters
        )
        return self.journal.give(promise, partial(self._given, given))

    def _given(self, given: Callable[[], None]) -> None:
        self._verified = self._told_commit = 0
        self.conflict = ""  # the new leader's log may be another
        self.guarded(given)

    def _on_promise(self, sender: str, message: replica_messages.Promise) -> None:
        if message.log_id != self.log.log_id:
            return
        standing = self.journal.standing
        if (message.term, message.leader) == (standing.term, standing.leader):
            if standing is self.journal.promise:
                self._promised(sender, message)
            return
        voters = VoterSet(message.term, message.voters, message.old_voters)
        if not self.give(voters, message.leader, partial(self._promised, sender, message)):
            self._refuse(sender)

    def _promised(self, sender: str, message: replica_messages.Promise) -> None:
        if self.part is not None:
            self.step_down()
        self._leader = sender
        self.heard_at = self.now()
        self.send(
            sender, replica_messages.Promised(message.term, self.replica_id, self.journal.synced)
        )

    # -- a leader's Entries ------------------------------------------------------------------------

    def _follows(self, sender: str, term: int, leader: str) -> bool:
        """True if the sender leads in the term that is promised; else it is refused."""
        promise = self.journal.promise
        if (promise.term, promise.leader) != (term, leader):
            self._refuse(sender)
            return False
        self._leader = sender
        self.heard_at = self.now()
        return True

    def _on_append(self, sender: str, message: replica_messages.Append) -> None:
        if not self._follows(sender, message.term, message.leader):
            return
        placed = self.log.place(message.previous, message.records)
        if placed is None:
            if not self.conflict:  # else it would be sent all there is, again and again
                self._refuse(sender)
        elif isinstance(placed, Diverged):
            self.forget_after(placed.behind, partial(self.receive, sender, message))
        else:
            self._verified = max(self._verified, placed)
            self._told_commit = max(self._told_commit, message.commit)
            if self.log.synced_index < self._verified:
                self.journal.sync()
            else:
                self._acknowledge()

    @override
    def _synced(self) -> None:
        if self.part is not None:
            self.guarded(self.part.synced)
        elif self._leader:
            self._acknowledge()
        self.owner.on_synced()

    def _acknowledge(self) -> None:
        """Tell the leader how much of its log is durable here."""
        index = min(self._verified, self.log.synced_index)
        if index:
            self.needs_checkpoint = False
            if not self.damage:
                term = self.journal.promise.term
                self.send(self._leader, replica_messages.Appended(term, self.replica_id, index))
            self.commit_to(min(self._told_commit, index))

    def _on_heartbeat(self, sender: str, message: replica_messages.Heartbeat) -> None:
        if not self._follows(sender, message.term, message.leader):
            return
        is_own, has = message.receiver == self.replica_id, self.log.synced_index
        if is_own and message.acknowledged > has:
            self.lose(f"it acknowledged Entry {message.acknowledged} and has {has}: an older copy")
            return
        wall_s, has_space = self.times.wall_s(), self.has_space()
        alive = replica_messages.Alive(
            message.term, self.replica_id, message.round, wall_s, has_space
        )
        self.send(sender, alive)
        self._told_commit = max(self._told_commit, message.commit)
        committed = message.committed
        if committed.index and self.log.position_at(committed.index) == committed:
            self._verified = max(self._verified, committed.index)
        self.commit_to(min(self._told_commit, self._verified, self.log.synced_index))

    def _on_behind(self, sender: str, message: replica_messages.Behind) -> None:
        # A log that lost committed Entries while it ran ends before what is known to be committed.
        reached = min(self.commit, self.log.last_index)
        if message.term != self.journal.promise.term or message.start <= reached:
            return
        if not self.needs_checkpoint:
            self.logger.warning("needs_checkpoint", start=message.start, index=self.log.last_index)
        self.needs_checkpoint = True
        self.step_down()
        self.owner.on_behind(sender)

    # -- shipping ----------------------------------------------------------------------------------

    def ship_after(self, last: Position, committed: Position) -> Position | None:
        """The Entry behind which a peer needs this log; None if it no longer reaches back there."""
        for position in (last, committed):
            if self.log.position_at(position.index) == position:
                return position
        # The peer may have the Entry before this log, or it forgets all from there on.
        return self.log.start if last.index >= self.log.start.index else None

    def _on_fetch(self, sender: str, message: replica_messages.Fetch) -> None:
        if message.term != self.journal.promise.term:
            self._refuse(sender)
            return
        previous = self.ship_after(message.last, message.committed)
        if previous is None:
            self.send(sender, replica_messages.Behind(message.term, self.log.start.index))
            return

        def got(records: list[bytes]) -> None:
            if records:
                self.send(sender, replica_messages.Fetched(message.term, previous, records))
            elif self.journal.is_open and self.log.holds(previous.index + 1):
                self.fail(f"cannot read Entry {previous.index + 1}")

        records = self.log.recent(previous.index + 1, self.timing.batch_bytes)
        if records:
            got(records)
        else:
            self.log.read(previous.index + 1, self.timing.batch_bytes, got)
