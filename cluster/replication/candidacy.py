"""The way to lead: `Asking` finds a majority and takes the key, `Adopting` makes the log
complete."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from cluster.coordination.coordination import Conflict, Done, Unavailable, Unknown
from cluster.replication.journal import Diverged, Matched
from cluster.replication.leadership import Holder, Seen, TermRecord
from cluster.replication.replica_core import Adopted, ReplicaCore
from cluster.replication.replica_messages import (
    Ask,
    Fetch,
    Fetched,
    Message,
    Promise,
    Promised,
    Refused,
    Standing,
)
from cluster.replication.voters import VoterSet, latest
from storage.log import Position


def is_better(one: Position, other: Position) -> bool:
    """True if a log with this last Entry is to be adopted before the other."""
    return (one.term, one.index) > (other.term, other.index)


def is_spent(term: int, leader: str, refused: Refused) -> bool:
    """True if a peer has promised a higher term, or this one to another replica.

    Coordination that was restored to an older state may give a term twice.
    """
    return refused.term > term or (refused.term == term and refused.leader != leader)


class Asking:
    """Asks the peers first; takes the key only if a majority answers."""

    def __init__(self, replica: ReplicaCore, seen: Seen) -> None:
        self.role = "asking"
        self._replica = replica
        self._seen = seen
        self._standings: dict[str, Standing] = {}
        self._ahead_s: dict[str, float] = {}
        """Seconds by which the clocks of the hosts that answered are ahead of ours."""
        self._begun_at = replica.now()
        replica.attempts += 1
        self._attempt = replica.attempts

    def begin(self) -> None:
        """Ask."""
        self._replica.send_all(Ask(self._attempt, self._replica.log.last))
        self._decide()

    def end(self) -> None:
        """Stop asking; a candidate that only asks holds nothing."""

    def synced(self) -> None:
        """The log is durable up to its end."""

    def receive(self, sender: str, message: Message) -> None:
        """Collect answers."""
        replica = self._replica
        if not isinstance(message, Standing) or message.attempt != self._attempt:
            return
        if message.log_id == replica.log.log_id and self.role == "asking":
            self._standings[message.replica_id] = message
            self._ahead_s[message.replica_id] = message.wall_s - replica.times.wall_s()
            self._decide()

    def tick(self) -> None:
        """Decide once the answers have had their time."""
        self._decide()

    def _voters(self) -> VoterSet:
        """The set of the latest term that anybody reached knows."""
        promise, record = self._replica.journal.promise, self._seen.record
        sets = [VoterSet(promise.term, promise.voters, promise.old_voters)]
        sets += [
            VoterSet(each.term, each.voters, each.old_voters) for each in self._standings.values()
        ]
        if record is not None:
            sets.append(VoterSet(record.term, record.voters, record.old_voters))
        return latest(sets)

    def _decide(self) -> None:
        if self.role != "asking":
            return
        replica, timing = self._replica, self._replica.timing
        waited_s = replica.now() - self._begun_at
        voters = self._voters()
        reached = {replica.replica_id, *self._standings}
        if replica.replica_id not in voters.voters or waited_s > timing.ask_s + timing.head_start_s:
            replica.step_down()
        elif not voters.has_majority(reached):
            if waited_s > timing.ask_s:
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
        replica, term = self._replica, self._next_term()
        holder = Holder(replica.name, replica.replica_id, term)
        taken = VoterSet(term, voters.voters, voters.old_voters)
        self.role = "taking"
        replica.leadership.take(
            self._seen,
            holder,
            TermRecord(term, replica.log.log_id, taken.voters, taken.old_voters),
            partial(self._taken, holder, taken),
        )

    def _next_term(self) -> int:
        """Above every term that anybody reached has promised or coordination knows."""
        terms = [standing.term for standing in self._standings.values()]
        terms.append(self._replica.journal.promise.term)
        if self._seen.record is not None:
            terms.append(self._seen.record.term)
        return max(terms) + 1

    def _taken(
        self, holder: Holder, voters: VoterSet, outcome: Done | Conflict | Unknown | Unavailable
    ) -> None:
        """A key that was taken although nothing said so bears our name, and is deleted when
        read."""
        replica = self._replica
        if not replica.is_part(self):
            if isinstance(outcome, Done):
                replica.leadership.release(holder)
        elif isinstance(outcome, Done):
            replica.hold(holder)
            replica.adopt(voters, outcome.revision)
        else:
            replica.step_down()


class Adopting:
    """Collects the promises of a majority, then makes the log that of the best of them."""

    def __init__(
        self,
        replica: ReplicaCore,
        holder: Holder,
        voters: VoterSet,
        revision: int,
        waiting: list[Callable[[bool], None]] | None,
    ) -> None:
        self.role = "adopting"
        self.holder = holder
        self.term = holder.term
        self.voters = voters
        self.revision = revision
        """Of the key and the term record."""
        self.waiting = waiting
        """Callbacks for the term's confirmation: a list if a leader only takes another term."""
        self.promised: dict[str, tuple[str, Position]] = {}
        """Replica id and last durable Entry of hosts that promised."""
        self._replica = replica
        self._begun_at = self._sent_at = replica.now()
        self._has_own = False
        self._best: tuple[str, Position] | None = None

    def begin(self) -> None:
        """Promise, then ask for promises."""
        replica = self._replica
        if not replica.give(self.voters, replica.replica_id, self._promised_self):
            replica.step_down()

    def end(self) -> None:
        """Stop adopting; depose a leader that took another term."""
        if self.waiting is not None:
            for done in self.waiting:
                done(False)
            self._replica.owner.on_deposed()

    def _promised_self(self) -> None:
        if self._replica.is_part(self):
            self._has_own = True
            self._ask_all()
            self._choose()

    def _ask_all(self) -> None:
        replica = self._replica
        self._sent_at = replica.now()
        promise = self.promise()
        for peer in replica.peers:
            if peer not in self.promised:
                replica.send(peer, promise)

    def promise(self) -> Promise:
        """The question to a peer."""
        replica = self._replica
        return Promise(
            self.term,
            replica.replica_id,
            replica.log.log_id,
            self.voters.voters,
            self.voters.old_voters,
        )

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

    def synced(self) -> None:
        """The log is durable up to its end."""

    def receive(self, sender: str, message: Message) -> None:
        """Collect promises and Entries."""
        replica = self._replica
        if isinstance(message, Refused) and is_spent(self.term, replica.replica_id, message):
            replica.step_down()  # the next attempt takes a higher term
        elif isinstance(message, Promised) and message.term == self.term:
            self.promised[sender] = message.replica_id, message.last
            self._choose()
        elif isinstance(message, Fetched) and message.term == self.term:
            self._adopt(sender, message)

    def _choose(self) -> None:
        replica = self._replica
        ids = {replica_id for replica_id, _ in self.promised.values()}
        if self._best is not None or not self._has_own:
            return
        if not self.voters.has_majority({replica.replica_id, *ids}):
            return
        counted = {*self.voters.voters, *self.voters.old_voters}
        best = replica.name, replica.log.last
        for name, (replica_id, last) in sorted(self.promised.items()):
            if replica_id in counted and is_better(last, best[1]):
                best = name, last
        self._best = best
        self._fetch()

    def _fetch(self) -> None:
        assert self._best is not None
        name, last = self._best
        replica = self._replica
        if is_better(last, replica.log.last):
            replica.send(name, Fetch(self.term, replica.log.last, replica.committed))
        else:
            replica.lead(self._adopted())

    def _adopted(self) -> Adopted:
        return Adopted(
            self.holder,
            self.voters,
            self.revision,
            self.promised,
            self.promise(),
            self.waiting or [],
        )

    def _adopt(self, sender: str, message: Fetched) -> None:
        if self._best is None or self._best[0] != sender:
            return
        replica = self._replica
        placed = replica.journal.place(message.previous, message.records)
        if isinstance(placed, Diverged):
            replica.forget_after(placed.behind, partial(replica.receive, sender, message))
        elif isinstance(placed, Matched) and message.records:
            replica.journal.sync()
            self._fetch()
