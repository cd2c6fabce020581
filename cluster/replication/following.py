"""Follower: a replica takes the Entries of the leader that it promised, and acknowledges them.

It does so in every role. `Replica` adds the way to lead. Its other roles (`Asking`, `Adopting`,
`Leading`) know this class only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from typing_extensions import override

from cluster.replication import replica_messages
from cluster.replication.promising import Promising
from storage.log import Diverged


class Follower(Promising):
    """A replica in every role."""

    @override
    def _reactions(self) -> dict[type, Callable[[str, Any], None]]:
        return super()._reactions() | {
            replica_messages.Append: self._on_append,
            replica_messages.Heartbeat: self._on_heartbeat,
            replica_messages.Behind: self._on_behind,
        }

    def receive(self, sender: str, message: replica_messages.Message) -> None:
        """Take a message of a peer."""
        if self._recovery is not None:
            return
        handler = self._handlers.get(type(message))
        if handler is not None:
            self.guarded(handler, sender, message)
        elif self.part is not None:
            self.guarded(self.part.receive, sender, message)

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
            if not self._has_diverged:  # else it would be sent all there is, again and again
                self._refuse(sender)
        elif isinstance(placed, Diverged):
            self.forget_after(placed.behind, partial(self.receive, sender, message))
        else:
            self._verified = max(self._verified, placed)
            if self._kept and self._verified >= self._kept:
                self.keep_no_longer()
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
        has = self.log.synced_index
        if message.receiver == self.replica_id and message.lost > has:
            self.lose(f"it acknowledged Entry {message.lost} and has {has}: an older copy")
            return
        wall_s, has_space = self.times.wall_s(), self.has_space()
        alive = replica_messages.Alive(
            message.term, self.replica_id, message.round, wall_s, has_space, has
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
        if message.term != self.journal.promise.term or message.start <= reached or self._kept:
            return
        if not self.needs_checkpoint:
            self.logger.warning("needs_checkpoint", start=message.start, index=self.log.last_index)
        self.needs_checkpoint = True
        self.step_down()
        self.owner.on_behind(sender)
