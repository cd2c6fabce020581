"""Replica: one host's part of the replication of one shard.

    role        does                                             until
    FOLLOWER    takes Entries from the leader it promised        silence, and no holder of the key
    ASKING      asks its peers where they are                    a majority answers, or 1 s
    TAKING      takes the key with the next term                 the transaction's outcome
    ADOPTING    collects promises, fetches the best log          a majority and its log, or 2 s
    LEADER      appends and ships; serves once an Entry of       a higher term, a lost lease, a
                its own term is committed                        failed disk, 2 s without a commit
    RECOVERING  opens its files anew: after a failure, or to     they are open
                forget Entries that the leader's log has not

    message     in role      what is done with it
    Ask         every        answer Standing
    Promise     every        promise a higher term durably, follow, answer Promised; or Refused
    Append      every        take a leader's Entries, answer Appended once durable; or Refused
    Heartbeat   every        commit, answer Alive; or Refused
    Fetch       every        answer Fetched, or Behind if the log does not reach back so far
    Behind      every        a checkpoint is needed: follow until it is there
    HandOver    FOLLOWER     look at the key at once
    Standing    ASKING       count; with a majority take the key
    Promised    ADOPTING     count; with a majority fetch the best log
                LEADER       a peer joins: ship to it
    Fetched     ADOPTING     take the Entries; lead with the last one
    Refused     ADOPTING     a higher term is promised: follow
                LEADER       the same; or ship from where the logs agree
    Appended    LEADER       count, commit, ship more
    Alive       LEADER       count; with a majority the term is confirmed

Whatever else comes in a role is dropped, and everything while RECOVERING. A role that ends is
FOLLOWER again. A *learner* follows only: its id is not among the voters. All that happens is a
call: `receive`, `tick`, an outcome of disk or coordination. So a run can be repeated. The rules are
those of replicated state machines with a log (Raft, without its election): who may lead is decided
by coordination, who does lead by the promises of a majority.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from cluster.coordination.coordination import Conflict, Done, Unavailable, Unknown
from cluster.replication.candidacy import Adopting, Asking
from cluster.replication.contract import PeerReport
from cluster.replication.following import Follower
from cluster.replication.leadership import Holder, Seen, Taken, record_of
from cluster.replication.leading import Leading
from cluster.replication.voters import VoterSet


class Replica(Follower):
    """See above. `tick` is due ten times a second."""

    # -- what it is --------------------------------------------------------------------------------

    @property
    def leading(self) -> Leading | None:
        """Its part as a leader, which it has from the term's first Entry on; None without it."""
        return self.part if isinstance(self.part, Leading) and not self._recovery else None

    @property
    def serving(self) -> bool:
        """True while Entries can be proposed here."""
        return self.leading is not None and self.leading.is_serving

    @property
    def has_room(self) -> bool:
        """False while nothing can be proposed, or as much is under way as may be."""
        return self.leading is not None and self.leading.has_room

    @property
    def is_idle(self) -> bool:
        """True for a leader to whom nothing is under way."""
        return self.leading is not None and self.leading.is_idle

    @property
    def is_handing_over(self) -> bool:
        """True while this leader takes no more Entries."""
        return self.leading is not None and self.leading.is_handing_over

    @property
    def caught_up(self) -> list[str]:
        """Peers to which this leader could hand over."""
        return self.leading.caught_up() if self.leading is not None else []

    @property
    def is_changing_voters(self) -> bool:
        """True for a leader that is writing another set of voters."""
        return self.leading is not None and self.leading.is_changing

    def peer_reports(self) -> list[PeerReport]:
        """The peers as this replica sees them while it leads."""
        return self.part.peer_reports() if isinstance(self.part, Leading) else []

    # -- what a shard and its host do --------------------------------------------------------------

    def confirm(self, done: Callable[[bool], None]) -> None:
        """Call back once a majority has confirmed the term, with False if this host was deposed."""
        if self.leading is None or not self.leading.is_serving:
            done(False)
        else:
            self.leading.confirm(done)

    def hand_over(self, to: str) -> None:
        """Let this peer lead next, unless what is under way takes too long."""
        if self.leading is not None and self.leading.is_serving:
            self.leading.hand_over(to)

    def release(self, index: int) -> None:
        """The rows hold everything up to `index` durably.

        The log keeps what a lagging voter needs, up to a size; a follower keeps that size.
        """
        leading, retained = self.leading, self.timing.retained_bytes
        if leading is not None:
            index = leading.needed_by_peers(index, retained)
        else:
            index = min(index, self.log.entries.index_before(retained))
        self.log.release(index)

    def set_peers(self, peers: Sequence[str]) -> None:
        """Hosts came or went."""
        self.peers = peers
        if isinstance(self.part, Leading):
            self.part.set_peers(peers)

    # -- time --------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what is due."""
        if self._recovery is not None:
            self._retry()
            return
        self.journal.note()
        self.key.renew(self._lost)
        if self.part is not None:
            self.guarded(self.part.tick)
            if self.leading is not None and (voters := self.leading.wanted_voters()) is not None:
                self._change(self.leading, voters)
        elif self.key.is_due(self.heard_at):
            self.key.read(self._seen)

    def _seen(self, seen: Seen) -> None:
        """The key was read."""
        if self.part is not None or not self.journal.is_open:
            return
        if not self.key.is_wanted(seen, self.heard_at):
            return
        if seen.holder is not None:
            if seen.holder.name == self.name:
                self.key.delete(seen.holder)
        elif self.is_whole and not self.conflict and self.key.is_ours_to_take():
            self.play(Asking(self, seen))

    def _lost(self, held: Holder) -> None:
        """Coordination no longer has the key. While the voters change it may bear the next term of
        this leader: the outcome tells."""
        if not self.is_changing_voters:
            self.logger.warning(
                "lease_lost",
                term=held.term,
                means="etcd no longer names this host as leader: another one leads, or soon will",
                action="none; if it repeats, see why this host does not reach etcd in time",
            )
            self.step_down()

    # -- a change of voters ------------------------------------------------------------------------

    def _change(self, leading: Leading, voters: VoterSet) -> None:
        """Change the records while holding the key; another set takes a new term."""
        log_id, taken = self.log.log_id, leading.taken
        holder = Holder(taken.holder.name, taken.holder.replica_id, voters.term)
        seen = Seen(taken.revision, taken.holder, record_of(taken.voters, log_id))
        leading.is_changing = True
        changed = partial(self._changed, leading, holder, voters)
        self.leadership.take(seen, holder, record_of(voters, log_id), changed)

    def _changed(
        self,
        leading: Leading,
        holder: Holder,
        voters: VoterSet,
        outcome: Done | Conflict | Unknown | Unavailable,
    ) -> None:
        leading.is_changing = False
        if self.part is not leading:
            if isinstance(outcome, Done):
                self.leadership.release(holder)
        elif isinstance(outcome, Done):
            self.key.hold(holder)
            leading.taken = Taken(holder, voters, outcome.revision)
            if voters.term != leading.term:
                self.play(Adopting(self, leading.taken, leading.unconfirmed()))
        elif not isinstance(outcome, Unavailable):
            self.step_down()  # whatever the records are, the next attempt reads them
