"""Follower: a replica in every role. It promises, takes Entries, and answers who asks.

`Replica` adds the way to lead. Its other roles (`Asking`, `Adopting`, `Leading`) know this file
only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import structlog

from cluster.replication import replica_messages
from cluster.replication.clocks import Clocks
from cluster.replication.contract import Network, ReplicaOwner, Role, Times, Timing
from cluster.replication.journal import Journal
from cluster.replication.leader_key import LeaderKey
from cluster.replication.leadership import Leadership
from cluster.replication.voters import VoterSet
from storage import log as storage_log
from storage.log import Diverged, LogFailed, LogFull, NotNext, Position, ReplicaLog


def _spacious() -> bool:
    """The default: the disk is never short."""
    return True


def _eager() -> float:
    """The default: the key is taken at once."""
    return 0.0


class Part:
    """The work of a replica besides following, while it wants the key or has it."""

    role: Role

    def begin(self) -> None:
        """It is the replica's part from now on."""

    def end(self) -> None:
        """The replica steps down."""

    def receive(self, sender: str, message: Any) -> None:
        """Take the answer of a peer."""

    def synced(self) -> None:
        """More of the own log is durable."""

    def tick(self) -> None:
        """Do what is due."""


class Follower:
    """See above. Belongs to the event loop's thread."""

    def __init__(
        self,
        name: str,
        peers: Sequence[str],
        *,
        journal: Journal,
        network: Network,
        leadership: Leadership,
        owner: ReplicaOwner,
        times: Times,
        timing: Timing | None = None,
        has_space: Callable[[], bool] = _spacious,
        reluctance_s: Callable[[], float] = _eager,
    ) -> None:
        """`journal` is open. `peers` are the names of the other members. `reluctance_s`: seconds
        for which a free key is left to others."""
        self.name = name
        self.peers = peers
        self.journal = journal
        self.network = network
        self.leadership = leadership
        self.owner = owner
        self.times = times
        self.timing = timing = timing or Timing()
        self.key = LeaderKey(leadership, times, timing, reluctance_s)
        self.part: Part | None = None
        """None while it only follows."""
        self.commit = journal.committed
        """Entries up to here are committed."""
        self.attempts = 0
        """Attempts to lead, which number the questions to peers."""
        self.needs_checkpoint = False
        """True if no log reaches back to this one."""
        self.damage = ""
        """The damage in the rows, empty if none is known. Until it is healed, which opens the store
        anew, this replica neither leads nor counts; its log is sound, so that it promises."""
        self.heard_at = self.now()
        """When a leader was last heard of."""
        self.has_space = has_space
        """False while this host's disk is short: others should lead."""
        self.logger = structlog.get_logger("replica").bind(replica=name)
        self.clocks = Clocks(timing.clock_s, self.logger)
        self._leader = ""
        """The host to which the promise was given in this life."""
        self._verified = 0
        """Up to here the log is the leader's; known in this term only."""
        self._told_commit = 0
        self._recovery: Callable[[], None] | None = None
        """Opens the files anew; None unless they are to be."""
        self._retry_at: float | None = None
        self._instead: Callable[[], None] | None = None
        """Called at the end of a recovery in place of what it was begun for."""
        self._handlers: dict[type, Callable[[str, Any], None]] = {
            replica_messages.Ask: self._on_ask,
            replica_messages.Promise: self._on_promise,
            replica_messages.Append: self._on_append,
            replica_messages.Heartbeat: self._on_heartbeat,
            replica_messages.Fetch: self._on_fetch,
            replica_messages.Behind: self._on_behind,
            replica_messages.HandOver: self._on_hand_over,
        }
        journal.report_to(on_synced=self._synced, on_failed=self.fail)

    # -- what it is --------------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        """See the table in `replica.py`."""
        if self._recovery is not None:
            return Role.RECOVERING
        return self.part.role if self.part is not None else Role.FOLLOWER

    @property
    def is_whole(self) -> bool:
        """False while rows of another host are needed."""
        return not self.needs_checkpoint and not self.damage

    @property
    def replica_id(self) -> str:
        """Its id, by which voters are counted."""
        return self.journal.promise.replica_id

    @property
    def log(self) -> ReplicaLog:
        """Its log, unless it is recovering."""
        return self.journal.log

    @property
    def committed(self) -> Position:
        """The last Entry that is committed, or one before it whose position is known."""
        return self.log.position_at(self.commit) or self.log.start

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return self.times.monotonic_s()

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

    def guarded(self, work: Callable[..., None], *given: object) -> None:
        """Do what may append to the log."""
        try:
            work(*given)
        except LogFailed as error:
            self.fail(str(error))
        except (LogFull, NotNext) as error:  # the sender tries again
            self.logger.warning("entries_not_taken", error=str(error))

    def send(self, to: str, message: replica_messages.Message) -> None:
        """Send to one peer."""
        self.network.send(to, message)

    def send_all(self, message: replica_messages.Message) -> None:
        """Send to all peers."""
        for peer in self.peers:
            self.network.send(peer, message)

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

    def commit_to(self, index: int) -> None:
        """Entries up to here are committed."""
        if index > self.commit:
            self.commit = index
            self.owner.on_committed(index)

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

    # -- roles -------------------------------------------------------------------------------------

    def play(self, part: Part) -> None:
        """Go on with this part, in the place of the one before."""
        self.part = part
        part.begin()

    def step_down(self, *, rest_s: float = 0.0) -> None:
        """Follow, release the key if it is held, and do not try again before `rest_s`."""
        part, self.part = self.part, None
        self.key.give_up(rest_s)
        if part is not None:
            self.logger.info("steps_down", role=part.role)
            part.end()

    def stop(self, stopped: Callable[[], None]) -> None:
        """Take part no longer: release the key, let go of the files, then call `stopped`.

        Neither `tick` nor `receive` may be called afterwards.
        """
        self.step_down()
        if self._recovery is not None and self._retry_at is None:
            self._instead = partial(self.journal.close, stopped)
        else:
            self.journal.close(stopped)

    # -- files that are opened anew ----------------------------------------------------------------

    def forget_after(self, index: int, then: Callable[[], None]) -> None:
        """Forget the Entries behind this one, which were never committed; then go on."""
        assert index >= self.commit, "committed Entries would be forgotten"
        self._recover(then, keep=index)

    def fail(self, reason: str) -> None:
        """The disk refused something: lead no longer, and open the files anew."""
        if self._recovery is not None:
            return
        self.logger.error("log_failed", error=reason)
        self._recover()
        self.step_down(rest_s=self.timing.silence_s)

    def install(self, installed: Callable[[], None] | None = None) -> None:
        """The rows were replaced by a checkpoint; `installed` is called once the log is open over
        them, unless that shows damage.

        What this replica acknowledged stays counted: either the checkpoint holds it, or the log
        keeps it. See `Journal.open`.
        """
        self.step_down()
        self.needs_checkpoint = False
        install = partial(self._recover, installed, rows_replaced=True)
        if self._recovery is not None:  # those files may have been opened over the rows before
            self._instead = install
        else:
            install()

    def _recover(
        self,
        then: Callable[[], None] | None = None,
        *,
        keep: int | None = None,
        rows_replaced: bool = False,
    ) -> None:
        opened = partial(self._recovered, then)
        self._recovery = partial(
            self.journal.reopen,
            opened,
            lambda: self.owner.flushed,
            keep,
            rows_replaced=rows_replaced,
        )
        self._recovery()

    def _recovered(self, then: Callable[[], None] | None, error: Exception | None) -> None:
        instead, self._instead = self._instead, None
        if instead is not None:
            instead()
            return
        if error is not None:
            self.logger.error("log_not_opened", error=str(error))
            self._retry_at = self.now() + self.timing.ask_s
            return
        self._recovery = None
        if self.journal.damage:
            self.logger.error("replica_damaged", reason=self.journal.damage)
            self.step_down()
            then = None
        self._verified = self._told_commit = 0
        self.commit_to(self.journal.committed)
        if then is not None:
            then()

    def _retry(self) -> None:
        """Open the files once more when it is time."""
        if self._recovery is not None and self._retry_at is not None:
            if self.now() >= self._retry_at:
                self._retry_at = None
                self._recovery()
