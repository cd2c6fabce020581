"""Promising: a replica's answers to those that want to lead: where it is, its promise, its Entries.

The other side of `candidacy.py`. It answers in every role.
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
from storage.log import Position


class Promising(ReplicaCore):
    """The answers that a replica gives in every role."""

    @override
    def _reactions(self) -> dict[type, Callable[[str, Any], None]]:
        return {
            replica_messages.Ask: self._on_ask,
            replica_messages.Promise: self._on_promise,
            replica_messages.Fetch: self._on_fetch,
            replica_messages.HandOver: self._on_hand_over,
        }

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
                log.entries.bytes_above(message.last.index) if is_longer else 0,
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
            self.replica_id, voters.term, leader, voters.voters, voters.old_voters, self._kept
        )
        return self.journal.give(promise, partial(self._given, given))

    def _given(self, given: Callable[[], None]) -> None:
        self._verified = self._told_commit = 0
        self._has_diverged = False  # the new leader's log may be another
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

    # -- Entries -----------------------------------------------------------------------------------

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

        records = self.log.entries.recent(previous.index + 1, self.timing.batch_bytes)
        if records:
            got(records)
        else:
            self.log.read(previous.index + 1, self.timing.batch_bytes, got)
