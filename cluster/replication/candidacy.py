"""The way to lead: `Asking` finds a majority and takes the key, `Adopting` makes the log
complete (rule 26)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from typing_extensions import override

from cluster.coordination.coordination import Conflict, Done, Unavailable, Unknown
from cluster.replication import replica_messages
from cluster.replication.contract import ReplicaRole
from cluster.replication.following import Follower
from cluster.replication.leadership import Holder, Seen, Taken, TermRecord, record_of
from cluster.replication.leading import Leading
from cluster.replication.replica_core import Part
from cluster.replication.voters import VoterSet, latest
from storage import log as storage_log
from storage.log import Diverged, Position


def is_better(one: Position, other: Position) -> bool:
    """True if a log with this last Entry is to be adopted before the other."""
    return (one.term, one.index) > (other.term, other.index)


class Asking(Part):
    """Asks the peers first; takes the key only if a majority answers."""

    def __init__(self, replica: Follower, seen: Seen) -> None:
        self.role = ReplicaRole.ASKING
        self._replica = replica
        self._seen = seen
        self._standings: dict[str, replica_messages.Standing] = {}
        self._ahead_s: dict[str, float] = {}
        """Seconds by which the clocks of the hosts that answered are ahead of ours."""
        self._begun_at = replica.now()
        replica.attempts += 1
        self._attempt = replica.attempts

    @override
    def begin(self) -> None:
        """Ask."""
        self._replica.send_all(replica_messages.Ask(self._attempt, self._replica.log.last))
        self._decide()

    @override
    def receive(self, sender: str, message: replica_messages.Message) -> None:
        """Collect answers."""
        replica = self._replica
        if not isinstance(message, replica_messages.Standing) or message.attempt != self._attempt:
            return
        if message.log_id == replica.log.log_id and self.role is ReplicaRole.ASKING:
            self._standings[message.replica_id] = message
            self._ahead_s[message.replica_id] = message.wall_s - replica.times.wall_s()
            self._decide()

    @override
    def tick(self) -> None:
        """Decide once the answers have had their time."""
        if self.role is ReplicaRole.ASKING:
            self._decide()

    def _known(self) -> list[storage_log.Promise | replica_messages.Standing | TermRecord]:
        """The terms, with their voters, of which anybody reached knows."""
        records = [self._seen.record] if self._seen.record is not None else []
        return [self._replica.journal.promise, *self._standings.values(), *records]

    def _next_term(self) -> int:
        """Above every term that anybody reached has promised or coordination knows."""
        return max(each.term for each in self._known()) + 1

    def _decide(self) -> None:
        replica, timing = self._replica, self._replica.timing
        waited_s = replica.now() - self._begun_at
        voters = latest(VoterSet(each.term, each.voters, each.old_voters) for each in self._known())
        reached = {replica.replica_id, *self._standings}
        if replica.replica_id not in voters.voters or waited_s > timing.ask_s + timing.head_start_s:
            replica.step_down()
        elif not voters.has_majority(reached):
            if waited_s > timing.ask_s:
                replica.clocks.forget()
                replica.step_down()
        elif self._is_complete(waited_s, voters) and self._may_lead(waited_s, voters):
            self._take(voters)

    def _is_complete(self, waited_s: float, voters: VoterSet) -> bool:
        """True if no other host is likely to answer."""
        others = set(voters.voters) - {self._replica.replica_id}
        return others <= set(self._standings) or waited_s >= self._replica.timing.gather_s

    def _may_lead(self, waited_s: float, voters: VoterSet) -> bool:
        replica, timing = self._replica, self._replica.timing
        peers = [self._standings[voter] for voter in voters.voters if voter in self._standings]
        if replica.clocks.is_off(self._ahead_s[peer.replica_id] for peer in peers):
            return False
        if any(peer.start > replica.log.last_index for peer in peers):
            return False  # adopting its log would take a checkpoint: it leads, and sends one
        is_longer = any(peer.bytes_ahead > timing.head_start_bytes for peer in peers)
        return not is_longer or waited_s >= timing.head_start_s

    def _take(self, voters: VoterSet) -> None:
        replica = self._replica
        taken = voters._replace(term=self._next_term())
        holder = Holder(replica.name, replica.replica_id, taken.term)
        self.role = ReplicaRole.TAKING
        record = record_of(taken, replica.log.log_id)
        replica.leadership.take(self._seen, holder, record, partial(self._taken, holder, taken))

    def _taken(
        self, holder: Holder, voters: VoterSet, outcome: Done | Conflict | Unknown | Unavailable
    ) -> None:
        """A key that was taken although nothing said so bears our name, and is deleted when
        read."""
        replica = self._replica
        if replica.part is not self:
            if isinstance(outcome, Done):
                replica.leadership.release(holder)
        elif isinstance(outcome, Done):
            replica.key.hold(holder)
            replica.play(Adopting(replica, Taken(holder, voters, outcome.revision)))
        else:
            replica.step_down()


class Adopting(Part):
    """Collects the promises of a majority, then makes the log that of the best of them."""

    role = ReplicaRole.ADOPTING

    def __init__(
        self,
        replica: Follower,
        taken: Taken,
        waiting: list[Callable[[bool], None]] | None = None,
    ) -> None:
        """`waiting` is given if a leader takes another term: who waits for a confirmation."""
        self._replica = replica
        self._taken = taken
        self._term = taken.holder.term
        self._waiting = waiting
        self._promised: dict[str, replica_messages.Promised] = {}
        """The answers of hosts that promised."""
        self._begun_at = self._sent_at = replica.now()
        self._has_own = False
        self._best: tuple[str, Position] | None = None
        """The host with the log to adopt, and its last durable Entry."""

    @override
    def begin(self) -> None:
        """Promise, then ask for promises."""
        replica = self._replica
        if not replica.give(self._taken.voters, replica.replica_id, self._promised_self):
            replica.step_down()

    @override
    def end(self) -> None:
        """Stop adopting; depose a leader that took another term."""
        if self._waiting is not None:
            for done in self._waiting:
                done(False)
            self._replica.owner.on_deposed()

    def _promised_self(self) -> None:
        if self._replica.part is self:
            self._has_own = True
            self._ask_all()
            self._choose()

    def _ask_all(self) -> None:
        replica = self._replica
        self._sent_at = replica.now()
        question = self._taken.question(replica.log.log_id)
        for peer in replica.peers:
            if peer not in self._promised:
                replica.send(peer, question)

    @override
    def tick(self) -> None:
        """Ask again, or give up."""
        replica, timing = self._replica, self._replica.timing
        now = replica.now()
        if now - self._begun_at > timing.stuck_s:
            replica.step_down(rest_s=timing.rest_s)
        elif self._has_own and now - self._sent_at > timing.resend_s:
            self._ask_all()
            if self._best is not None:
                self._fetch()

    @override
    def receive(self, sender: str, message: replica_messages.Message) -> None:
        """Collect promises and Entries."""
        if isinstance(message, replica_messages.Refused) and self._taken.is_spent(message):
            self._replica.step_down()  # the next attempt takes a higher term
        elif isinstance(message, replica_messages.Promised) and message.term == self._term:
            self._promised[sender] = message
            self._choose()
        elif isinstance(message, replica_messages.Fetched) and message.term == self._term:
            self._adopt(sender, message)

    def _choose(self) -> None:
        replica, voters = self._replica, self._taken.voters
        if self._best is not None or not self._has_own:
            return
        ids = {message.replica_id for message in self._promised.values()}
        if not voters.has_majority({replica.replica_id, *ids}):
            return
        counted = {*voters.voters, *voters.old_voters}
        best = replica.name, replica.log.last
        for name, message in sorted(self._promised.items()):
            if message.replica_id in counted and is_better(message.last, best[1]):
                best = name, message.last
        self._best = best
        self._fetch()

    def _fetch(self) -> None:
        """Ask for what the own log lacks of the best one; lead once that is nothing."""
        assert self._best is not None
        name, last = self._best
        replica = self._replica
        if is_better(last, replica.log.last):
            replica.send(
                name, replica_messages.Fetch(self._term, replica.log.last, replica.committed)
            )
        else:
            replica.logger.info("leads", term=self._term, index=replica.log.last_index)
            replica.play(Leading(replica, self._taken, self._promised, self._waiting or []))

    def _adopt(self, sender: str, message: replica_messages.Fetched) -> None:
        if self._best is None or self._best[0] != sender:
            return
        replica = self._replica
        placed = replica.log.place(message.previous, message.records)
        if isinstance(placed, Diverged):
            replica.forget_after(placed.behind, partial(replica.receive, sender, message))
        elif placed is not None and message.records:
            replica.journal.sync()
            self._fetch()
