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

A role that ends is FOLLOWER again. A *learner* follows only: its id is not among the voters. All
that happens is a call: `receive`, `tick`, an outcome of disk or coordination. So a run can be
repeated. The rules are those of replicated state machines with a log (Raft, without its election):
who may lead is decided by coordination, who does lead by the promises of a majority.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf

from cluster.coordination.coordination import Unavailable
from cluster.replication.candidacy import Adopting, Asking
from cluster.replication.contract import Network, NotServing, Owner, PeerReport, Role, Times, Timing
from cluster.replication.following import Following
from cluster.replication.journal import Journal
from cluster.replication.leadership import Holder, Leadership, Renewal, Seen
from cluster.replication.leading import Leading
from cluster.replication.replica_core import Adopted, ReplicaCore
from cluster.replication.replica_messages import HandOver, Message
from cluster.replication.succession import Succession
from cluster.replication.voters import VoterSet
from storage.log import LogFailed, LogFull, NotNext


class Replica(ReplicaCore):
    """See above. Belongs to the event loop's thread; `tick` is due ten times a second."""

    def __init__(
        self,
        name: str,
        peers: Sequence[str],
        *,
        journal: Journal,
        network: Network,
        leadership: Leadership,
        owner: Owner,
        times: Times,
        timing: Timing | None = None,
    ) -> None:
        """`journal` is open. `peers` are the names of the other members."""
        super().__init__(
            name,
            peers,
            journal=journal,
            network=network,
            leadership=leadership,
            owner=owner,
            times=times,
            timing=timing or Timing(),
        )
        self.on_synced: Callable[[], object] = _nothing
        """Called when more of the log is durable here, which may have committed it."""
        self._part: Asking | Adopting | Leading | None = None
        self._held: Holder | None = None
        """The key, from the moment it was taken."""
        self._renewed_at = 0.0
        self._not_before = 0.0
        self._is_reading_key = False
        self._read_at = 0.0
        self._recovery: Callable[[], None] | None = None
        """Opens the files anew; None unless they are to be."""
        self._retry_at: float | None = None
        self._on_stopped: Callable[[], None] | None = None
        self._installing: Callable[[], None] | None = None
        """Called once the log is open over a checkpoint that came while it was recovering."""
        self._following = Following(self)
        self.succession = Succession(self)
        journal.on_synced = self._synced
        journal.on_failed = self.fail

    # -- what it is --------------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        """See the table above."""
        if self._recovery is not None:
            return Role.RECOVERING
        return Role(self._part.role) if self._part is not None else Role.FOLLOWER

    @property
    def serving(self) -> bool:
        """True while Entries can be proposed here."""
        return self.leading is not None and self.leading.is_serving

    @property
    def has_room(self) -> bool:
        """False while nothing can be proposed, or as much is under way as may be."""
        leading = self.leading
        return leading is not None and leading.has_room and not self.succession.is_handing_over

    @property
    def is_idle(self) -> bool:
        """True for a leader to whom nothing is under way."""
        return self.leading is not None and self.leading.is_idle

    @property
    def caught_up(self) -> list[str]:
        """Peers to which this leader could hand over."""
        return self.leading.caught_up() if self.leading is not None else []

    @property
    def leading(self) -> Leading | None:
        """Its part as a leader, which it has from the term's first Entry on; None without it."""
        return self._part if isinstance(self._part, Leading) and not self._recovery else None

    # -- what a shard does -------------------------------------------------------------------------

    def propose(self, body: bytes, queue_ids: Sequence[int] = ()) -> int:
        """Append an Entry and ship it; returns its index. Raises NotServing, LogFull, LogFailed."""
        if (leading := self.leading) is None or not self.has_room:
            raise NotServing
        try:
            return leading.append(body, queue_ids)
        except LogFailed as error:
            self.fail(str(error))
            raise

    def confirm(self, done: Callable[[bool], None]) -> None:
        """Call back once a majority has confirmed the term, with False if this host was deposed."""
        if self.leading is None or not self.leading.is_serving:
            done(False)
        else:
            self.leading.confirm(done)

    def release(self, index: int) -> None:
        """The rows hold everything up to `index` durably.

        The log keeps what a lagging voter needs, up to a size; a follower keeps that size.
        """
        leading, retained = self.leading, self.timing.retained_bytes
        if leading is not None:
            index = leading.needed_by_peers(index, retained)
        else:
            index = min(index, self.log.index_before(retained))
        self.log.release(index)

    def install(self, installed: Callable[[], None] | None = None) -> None:
        """The rows were replaced by a checkpoint; `installed` is called once the log is open over
        them, unless that shows damage.

        What this replica acknowledged stays counted: either the checkpoint holds it, or the log
        keeps it. See `Journal.open`.
        """
        self.step_down()
        self.needs_checkpoint = False
        if self._recovery is not None:
            self._installing = installed or _nothing
        else:
            self._recover(installed, rows_replaced=True)

    def stop(self, stopped: Callable[[], None]) -> None:
        """Take part no longer: release the key, let go of the files, then call `stopped`.

        Neither `tick` nor `receive` may be called afterwards.
        """
        self.step_down()
        if self._recovery is not None and self._retry_at is None:
            self._on_stopped = stopped
        else:
            self.journal.close(stopped)

    def key_freed(self) -> None:
        """Coordination reported that the key is free: the next tick looks at it."""
        self._read_at = -inf

    def set_peers(self, peers: Sequence[str]) -> None:
        """Hosts came or went."""
        self.peers = peers
        if isinstance(self._part, Leading):
            self._part.set_peers(peers)

    def peer_reports(self) -> list[PeerReport]:
        """The peers as this replica sees them while it leads."""
        return self._part.peer_reports() if isinstance(self._part, Leading) else []

    # -- what its parts share ----------------------------------------------------------------------

    def give(self, voters: VoterSet, leader: str, given: Callable[[], None]) -> bool:
        """See `Following.give`."""
        return self._following.give(voters, leader, given)

    def _synced(self) -> None:
        if self._part is not None:
            self.guarded(self._part.synced)
        else:
            self._following.synced()
        self.on_synced()

    # -- roles -------------------------------------------------------------------------------------

    def hold(self, holder: Holder) -> None:
        """The key is ours."""
        self._held = holder
        self._renewed_at = self.now()
        self.succession.key_not_seen()

    def adopt(
        self, voters: VoterSet, revision: int, waiting: list[Callable[[bool], None]] | None = None
    ) -> None:
        """Collect promises to the term of the key that is held.

        `waiting` is given by a leader that takes another term: who waits for a confirmation.
        """
        assert self._held is not None
        self._part = Adopting(self, self._held, voters, revision, waiting)
        self._part.begin()

    def lead(self, adopted: Adopted) -> None:
        """Lead with the log as it is."""
        self.logger.info("leads", term=adopted.holder.term, index=self.log.last_index)
        self._part = Leading(self, adopted)
        self._part.begin()

    def step_down(self, *, rest_s: float = 0.0) -> None:
        """Follow, release the key if it is held, and do not try again before `rest_s`."""
        part, self._part = self._part, None
        held, self._held = self._held, None
        self._not_before = max(self._not_before, self.now() + rest_s)
        if held is not None:
            self.leadership.release(held)
        if part is not None:
            self.logger.info("steps_down", role=part.role)
            part.end()

    @property
    def has_part(self) -> bool:
        """True unless it is a follower."""
        return self._part is not None

    def is_part(self, part: object) -> bool:
        """True while this is the role that is played."""
        return self._part is part

    def forget_after(self, index: int, then: Callable[[], None]) -> None:
        """Forget the Entries behind this one, which were never committed; then go on."""
        self._recover(then, keep=index)

    def fail(self, reason: str) -> None:
        """The disk refused something: lead no longer, and open the files anew."""
        if self._recovery is not None:
            return
        self.logger.error("log_failed", error=reason)
        self._recover()
        self.step_down(rest_s=self.timing.silence_s)

    def _recover(
        self,
        then: Callable[[], None] | None = None,
        *,
        keep: int | None = None,
        rows_replaced: bool = False,
    ) -> None:
        assert keep is None or keep >= self.commit, "committed Entries would be forgotten"
        opened = partial(self._recovered, then)
        self._recovery = partial(self.journal.reopen, opened, keep, rows_replaced=rows_replaced)
        self._recovery()

    def _recovered(self, then: Callable[[], None] | None, error: Exception | None) -> None:
        if self._on_stopped is not None:
            self.journal.close(self._on_stopped)
            return
        installing, self._installing = self._installing, None
        if installing is not None:  # these files may have been opened over the rows before
            self._recover(installing, rows_replaced=True)
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
        self._following.reopened()
        self.commit_to(self.journal.committed)
        if then is not None:
            then()

    # -- time --------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what is due."""
        now = self.now()
        if self._recovery is not None:
            if self._retry_at is not None and now >= self._retry_at:
                self._retry_at = None
                self._recovery()
            return
        self.journal.note()
        self._renew(now)
        self.succession.tick()
        if self._part is not None:
            self.guarded(self._part.tick)
        elif self._is_due(now):
            self._is_reading_key = True
            self._read_at = now
            self.leadership.read(self._seen)

    def _is_due(self, now: float) -> bool:
        if self._is_reading_key or now < self._not_before:
            return False
        timing, since_s = self.timing, now - self._read_at
        if self._is_silent(now):
            fell_silent_at = self._following.heard_at + timing.silence_s
            is_due = since_s >= timing.read_s or self._read_at < fell_silent_at
        else:
            is_due = since_s >= (timing.read_s if self.succession.is_unheld else timing.unheld_s)
        return is_due or self.succession.is_invited

    def _is_silent(self, now: float) -> bool:
        return now - self._following.heard_at >= self.timing.silence_s

    def _seen(self, seen: Seen | Unavailable) -> None:
        self._is_reading_key = False
        succession = self.succession
        if isinstance(seen, Unavailable):
            succession.key_not_seen()
            return
        if self._part is not None or not self.journal.is_open:
            return
        succession.key_seen(is_free=seen.holder is None, heard_at=self._following.heard_at)
        if not (self._is_silent(self.now()) or succession.is_invited or succession.is_abandoned):
            return
        if seen.holder is not None and seen.holder.name == self.name:
            # From a life before this one, or a transaction of unknown outcome: its term is spent.
            self.leadership.release(seen.holder)
            self._read_at -= self.timing.read_s
        elif seen.holder is None and self.is_whole and succession.may_lead():
            self._part = Asking(self, seen)
            self._part.begin()

    @property
    def is_whole(self) -> bool:
        """False while rows of another host are needed."""
        return not self.needs_checkpoint and not self.damage

    def _renew(self, now: float) -> None:
        held = self._held
        if held is not None and now - self._renewed_at >= self.leadership.ttl_s / 3:
            self._renewed_at = now
            self.leadership.renew(held, partial(self._renewal, held))

    def _renewal(self, held: Holder, renewal: Renewal) -> None:
        """Without coordination a leader goes on; a key that is gone may be another's. While the
        voters change it may bear the next term of this leader: the outcome tells."""
        is_changing = self.leading is not None and self.leading.is_changing
        if renewal is Renewal.LOST and held == self._held and not is_changing:
            self.logger.warning(
                "lease_lost",
                term=held.term,
                means="etcd no longer names this host as leader: another one leads, or soon will",
                action="none; if it repeats, see why this host does not reach etcd in time",
            )
            self.step_down()

    # -- messages ----------------------------------------------------------------------------------

    def receive(self, sender: str, message: Message) -> None:
        """Take a message of a peer."""
        if self._recovery is not None:
            return
        if isinstance(message, HandOver):
            self.succession.invite(message)
            return
        handler = self._following.handler(message)
        if handler is not None:
            self.guarded(partial(handler, sender, message))
        elif self._part is not None:
            self.guarded(partial(self._part.receive, sender, message))

    def guarded(self, work: Callable[[], None]) -> None:
        """Do what may append to the log."""
        try:
            work()
        except LogFailed as error:
            self.fail(str(error))
        except (LogFull, NotNext) as error:  # the sender tries again
            self.logger.warning("entries_not_taken", error=str(error))


def _nothing() -> None:
    """No callback."""
