"""ReplicaCore: what a replica has in every role: its files, its commit index, its part, the key.

It opens the files anew after a failure, and to forget Entries that the leader's log has not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import structlog

from cluster.replication import replica_messages
from cluster.replication.clocks import Clocks
from cluster.replication.contract import Network, ReplicaOwner, ReplicaRole, Times, Timing
from cluster.replication.journal import Journal
from cluster.replication.leader_key import LeaderKey
from cluster.replication.leadership import Leadership
from storage.log import LogFailed, LogFull, NotNext, Position, ReplicaLog


class Part:
    """The work of a replica besides following, while it wants the key or has it."""

    role: ReplicaRole

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


class ReplicaCore:
    """The base of `Replica`."""

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
        timing: Timing,
        has_space: Callable[[], bool],
        reluctance_s: Callable[[], float],
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
        self.timing = timing
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
        self._kept = 0
        """The last Entry of this log, if some are committed and not in the leaders'; else 0. Then
        it follows no further, until a leader has them all. The promise says so, too."""
        self._has_diverged = False
        """True once this term's leader was found to lack what is kept."""
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
        self._handlers = self._reactions()
        journal.report_to(on_synced=self._synced, on_failed=self.fail)
        if journal.promise.kept:
            self._keep(journal.promise.kept)

    def _reactions(self) -> dict[type, Callable[[str, Any], None]]:
        """Handlers of the messages that are taken in every role, by type."""
        return {}

    def _synced(self) -> None:
        """More of the log is durable."""

    # -- what it is --------------------------------------------------------------------------------

    @property
    def role(self) -> ReplicaRole:
        """See the table in `replica.py`."""
        if self._recovery is not None:
            return ReplicaRole.RECOVERING
        return self.part.role if self.part is not None else ReplicaRole.FOLLOWER

    @property
    def is_whole(self) -> bool:
        """False while rows of another host are needed."""
        return not self.needs_checkpoint and not self.damage

    @property
    def conflict(self) -> str:
        """The Entries of which some are committed here and not in the leader's log: what was
        acknowledged is lost there. Empty if there are none."""
        return f"up to {self._kept}" if self._kept else ""

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

    def commit_to(self, index: int) -> None:
        """Entries up to here are committed."""
        if index > self.commit:
            self.commit = index
            self.owner.on_committed(index)

    # -- out ---------------------------------------------------------------------------------------

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
        """Forget the Entries behind this one, which were never committed; then go on. Committed
        ones are never forgotten, nor what follows them: an operator has to choose."""
        if index >= self.commit and not self._kept:
            self._recover(then, keep=index)
            return
        self._has_diverged = True
        if not self._kept:
            self._keep(self.log.last_index)
            self.journal.keep(self._kept)

    def _keep(self, index: int) -> None:
        self._kept = index
        self.logger.error(
            "acknowledged_entries_lost",
            entries=self.conflict,
            means="the other hosts lost some of these Entries, which were acknowledged: the "
            "folder of one was replaced by an older copy. Only this host has them, and it "
            "follows and counts no more",
            action="keep a copy of this folder (for its messages see `Losing a majority` in the "
            "runbook), then start this host with an empty one",
        )

    def keep_no_longer(self) -> None:
        """A leader has them."""
        self._kept = 0
        self.journal.keep(0)
        if self.damage:
            self.owner.on_behind(self._leader)

    def fail(self, reason: str) -> None:
        """The disk refused something: lead no longer, and open the files anew."""
        if self._recovery is not None:
            return
        self.logger.error("log_failed", error=reason)
        self._recover()
        self.step_down(rest_s=self.timing.silence_s)

    def lose(self, what: str) -> None:
        """Be another replica, a learner: this one lacks what it acknowledged."""
        self._recover(lost=what)
        self.step_down()

    def _recover(
        self,
        then: Callable[[], None] | None = None,
        *,
        keep: int | None = None,
        lost: str = "",
    ) -> None:
        opened = partial(self._recovered, then)
        self._recovery = partial(
            self.journal.reopen, opened, lambda: self.owner.flushed, keep, lost=lost
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
        if self.journal.promise.kept != self._kept:  # its write failed
            self.journal.keep(self._kept)
        if then is not None:
            then()

    def _retry(self) -> None:
        """Open the files once more when it is time."""
        if self._recovery is not None and self._retry_at is not None:
            if self.now() >= self._retry_at:
                self._retry_at = None
                self._recovery()
