"""Following: promises to leaders, the Entries they send, and answers to those who ask.

Every role does this: a leader that promises a higher term follows from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from cluster.replication.journal import Diverged, Misfit
from cluster.replication.replica_core import ReplicaCore
from cluster.replication.replica_messages import (
    Alive,
    Append,
    Appended,
    Ask,
    Behind,
    Fetch,
    Fetched,
    Heartbeat,
    Message,
    Promise,
    Promised,
    Refused,
    Standing,
)
from cluster.replication.voters import VoterSet
from storage import log as storage_log


class Following:
    """See above."""

    def __init__(self, replica: ReplicaCore) -> None:
        self.heard_at = replica.now()
        """When a leader was last heard of."""
        self._replica = replica
        self._leader = ""
        """The host to which the promise was given in this life."""
        self._verified = 0
        """Up to here the log is the leader's; known in this term only."""
        self._told_commit = 0
        self._pending: storage_log.Promise | None = None
        """A promise on its way to the disk."""
        self._handlers: dict[type, Callable[[str, Message], None]] = {
            Ask: self._on_ask,
            Promise: self._on_promise,
            Append: self._on_append,
            Heartbeat: self._on_heartbeat,
            Fetch: self._on_fetch,
            Behind: self._on_behind,
        }

    def handler(self, message: Message) -> Callable[[str, Message], None] | None:
        """The handler of messages of this kind; None for answers."""
        return self._handlers.get(type(message))

    def reopened(self) -> None:
        """The files were opened anew: what was on its way is not, or is another promise."""
        self._pending = None
        self._verified = self._told_commit = 0

    def _refuse(self, sender: str) -> None:
        replica = self._replica
        promise = replica.journal.promise
        last, committed = replica.log.last, replica.committed
        replica.send(
            sender,
            Refused(promise.term, promise.leader, replica.replica_id, last, committed),
        )

    def _on_ask(self, sender: str, message: Message) -> None:
        assert isinstance(message, Ask)
        replica = self._replica
        promise, last = replica.journal.promise, replica.journal.synced
        is_longer = last.index > message.last.index
        replica.send(
            sender,
            Standing(
                message.attempt,
                replica.replica_id,
                replica.log.log_id,
                replica.log.start.index,
                last,
                replica.log.bytes_above(message.last.index) if is_longer else 0,
                promise.term,
                promise.voters,
                promise.old_voters,
                replica.times.wall_s(),
            ),
        )

    # -- promises ----------------------------------------------------------------------------------

    def give(self, voters: VoterSet, leader: str, given: Callable[[], None]) -> bool:
        """Promise the term, durably, then call `given`; False if another promise stands."""
        replica = self._replica
        standing = self._pending or replica.journal.promise
        if voters.term <= standing.term:
            return False
        promise = storage_log.Promise(
            replica.replica_id, voters.term, leader, voters.voters, voters.old_voters
        )
        replica.journal.give(promise, partial(self._given, promise, given))
        self._pending = promise
        return True

    def _given(self, promise: storage_log.Promise, given: Callable[[], None]) -> None:
        if self._pending is promise:
            self._pending = None
        self._verified = self._told_commit = 0
        self._replica.guarded(given)

    def _on_promise(self, sender: str, message: Message) -> None:
        assert isinstance(message, Promise)
        replica = self._replica
        if message.log_id != replica.log.log_id:
            return
        standing = self._pending or replica.journal.promise
        if (message.term, message.leader) == (standing.term, standing.leader):
            if self._pending is None:
                self._promised(sender, message)
            return
        voters = VoterSet(message.term, message.voters, message.old_voters)
        if not self.give(voters, message.leader, partial(self._promised, sender, message)):
            self._refuse(sender)

    def _promised(self, sender: str, message: Promise) -> None:
        replica = self._replica
        if replica.has_part:
            replica.step_down()
        self._leader = sender
        self.heard_at = replica.now()
        replica.send(sender, Promised(message.term, replica.replica_id, replica.journal.synced))

    def _follows(self, sender: str, term: int, leader: str) -> bool:
        """True if the sender leads in the term that is promised; else it is refused."""
        replica = self._replica
        promise = replica.journal.promise
        if (promise.term, promise.leader) != (term, leader):
            self._refuse(sender)
            return False
        self._leader = sender
        self.heard_at = replica.now()
        return True

    # -- following ---------------------------------------------------------------------------------

    def _on_append(self, sender: str, message: Message) -> None:
        assert isinstance(message, Append)
        replica = self._replica
        if not self._follows(sender, message.term, message.leader):
            return
        placed = replica.journal.place(message.previous, message.records)
        if isinstance(placed, Misfit):
            self._refuse(sender)
        elif isinstance(placed, Diverged):
            replica.forget_after(placed.behind, partial(replica.receive, sender, message))
        else:
            self._verified = max(self._verified, placed.up_to)
            self._told_commit = max(self._told_commit, message.commit)
            if replica.log.synced_index < self._verified:
                replica.journal.sync()
            else:
                self._acknowledge()

    def synced(self) -> None:
        """More of the log is durable."""
        if self._leader:
            self._acknowledge()

    def _acknowledge(self) -> None:
        """Tell the leader how much of its log is durable here."""
        replica = self._replica
        index = min(self._verified, replica.log.synced_index)
        if index:
            replica.needs_checkpoint = False
            if not replica.damage:
                term = replica.journal.promise.term
                replica.send(self._leader, Appended(term, replica.replica_id, index))
            replica.commit_to(min(self._told_commit, index))

    def _on_heartbeat(self, sender: str, message: Message) -> None:
        assert isinstance(message, Heartbeat)
        replica = self._replica
        if self._follows(sender, message.term, message.leader):
            alive = Alive(
                message.term,
                replica.replica_id,
                message.round,
                replica.times.wall_s(),
                replica.has_space(),
            )
            replica.send(sender, alive)
            self._told_commit = max(self._told_commit, message.commit)
            committed = message.committed
            if committed.index and replica.log.position_at(committed.index) == committed:
                self._verified = max(self._verified, committed.index)
            replica.commit_to(min(self._told_commit, self._verified, replica.log.synced_index))

    def _on_behind(self, sender: str, message: Message) -> None:
        assert isinstance(message, Behind)
        replica = self._replica
        # A log that lost committed Entries while it ran ends before what is known to be committed.
        reached = min(replica.commit, replica.log.last_index)
        if message.term != replica.journal.promise.term or message.start <= reached:
            return
        if not replica.needs_checkpoint:
            replica.logger.warning(
                "needs_checkpoint", start=message.start, index=replica.log.last_index
            )
        replica.needs_checkpoint = True
        replica.step_down()
        replica.owner.on_behind(sender)

    # -- shipping to a candidate -------------------------------------------------------------------

    def _on_fetch(self, sender: str, message: Message) -> None:
        assert isinstance(message, Fetch)
        replica = self._replica
        if message.term != replica.journal.promise.term:
            self._refuse(sender)
            return
        previous = replica.ship_after(message.last, message.committed)
        if previous is None:
            replica.send(sender, Behind(message.term, replica.log.start.index))
            return

        def got(records: list[bytes]) -> None:
            if records:
                replica.send(sender, Fetched(message.term, previous, records))
            elif replica.journal.is_open and replica.log.holds(previous.index + 1):
                replica.fail(f"cannot read Entry {previous.index + 1}")

        records = replica.log.recent(previous.index + 1, replica.timing.batch_bytes)
        if records:
            got(records)
        else:
            replica.log.read(previous.index + 1, replica.timing.batch_bytes, got)
