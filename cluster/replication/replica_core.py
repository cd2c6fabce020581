"""ReplicaCore: what the parts of a replica share, and the changes of role that they may ask for.

`Replica` plays the roles. Its parts (`Following`, `Asking`, `Adopting`, `Leading`, `Succession`)
know this file only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog

from cluster.replication.clocks import Clocks
from cluster.replication.contract import Network, Owner, Times, Timing
from cluster.replication.journal import Journal
from cluster.replication.leadership import Holder, Leadership
from cluster.replication.replica_messages import Message, Promise
from cluster.replication.voters import VoterSet
from storage.log import Position, ReplicaLog


class Adopted(NamedTuple):
    """A term that a majority has promised, with the best log of those that did."""

    holder: Holder
    voters: VoterSet
    revision: int
    """Of the key and the term record."""
    promised: dict[str, tuple[str, Position]]
    """Replica id and last durable Entry of hosts that promised."""
    promise: Promise
    """The question to a peer."""
    waiting: list[Callable[[bool], None]]
    """Callbacks for the term's confirmation, of a leader that took another term."""


class ReplicaCore(ABC):
    """Belongs to the event loop's thread."""

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
        timing: Timing,
    ) -> None:
        """`journal` is open. `peers` are the names of the other members."""
        self.name = name
        self.peers = peers
        self.journal = journal
        self.network = network
        self.leadership = leadership
        self.owner = owner
        self.times = times
        self.timing = timing
        self.needs_checkpoint = False
        """True if no log reaches back to this one."""
        self.damage = ""
        """The damage in the rows, empty if none is known. Until it is healed, which opens the store
        anew, this replica neither leads nor counts; its log is sound, so that it promises."""
        self.commit = journal.committed
        """Entries up to here are committed."""
        self.attempts = 0
        """Attempts to lead, which number the questions to peers."""
        self.has_space: Callable[[], bool] = _spacious
        """False while this host's disk is short: others should lead."""
        self.logger = structlog.get_logger("replica").bind(replica=name)
        self.clocks = Clocks(self.timing.clock_s, self.logger)

    @property
    def replica_id(self) -> str:
        """Its id, by which voters are counted."""
        return self.journal.promise.replica_id

    @property
    def log(self) -> ReplicaLog:
        """Its log, unless it is recovering."""
        return self.journal.log

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return self.times.monotonic_s()

    @property
    def committed(self) -> Position:
        """The last Entry that is committed, or one before it whose position is known."""
        return self.log.position_at(self.commit) or self.log.start

    def commit_to(self, index: int) -> None:
        """Entries up to here are committed."""
        if index > self.commit:
            self.commit = index
            self.owner.on_committed(index)

    def ship_after(self, last: Position, committed: Position) -> Position | None:
        """The Entry behind which a peer needs this log; None if it no longer reaches back there."""
        for position in (last, committed):
            if self.log.position_at(position.index) == position:
                return position
        # The peer may have the Entry before this log, or it forgets all from there on.
        return self.log.start if last.index >= self.log.start.index else None

    def send(self, to: str, message: Message) -> None:
        """Send to one peer."""
        self.network.send(to, message)

    def send_all(self, message: Message) -> None:
        """Send to all peers."""
        for peer in self.peers:
            self.network.send(peer, message)

    # -- what the roles answer ---------------------------------------------------------------------

    @property
    @abstractmethod
    def serving(self) -> bool:
        """True while Entries can be proposed here."""

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """True for a leader to whom nothing is under way."""

    @property
    @abstractmethod
    def has_part(self) -> bool:
        """True unless it is a follower."""

    @abstractmethod
    def is_part(self, part: object) -> bool:
        """True while this is the role that is played."""

    @abstractmethod
    def receive(self, sender: str, message: Message) -> None:
        """Take a message of a peer."""

    # -- changes of role ---------------------------------------------------------------------------

    @abstractmethod
    def give(self, voters: VoterSet, leader: str, given: Callable[[], None]) -> bool:
        """Promise the term, durably, then call `given`; False if another promise stands."""

    @abstractmethod
    def hold(self, holder: Holder) -> None:
        """The key is ours."""

    @abstractmethod
    def adopt(
        self, voters: VoterSet, revision: int, waiting: list[Callable[[bool], None]] | None = None
    ) -> None:
        """Collect promises to the term of the key that is held.

        `waiting` is given by a leader that takes another term: who waits for a confirmation.
        """

    @abstractmethod
    def lead(self, adopted: Adopted) -> None:
        """Lead with the log as it is."""

    @abstractmethod
    def step_down(self, *, rest_s: float = 0.0) -> None:
        """Follow, release the key if it is held, and do not try again before `rest_s`."""

    @abstractmethod
    def forget_after(self, index: int, then: Callable[[], None]) -> None:
        """Forget the Entries behind this one, which were never committed; then go on."""

    @abstractmethod
    def fail(self, reason: str) -> None:
        """The disk refused something: lead no longer, and open the files anew."""

    @abstractmethod
    def guarded(self, work: Callable[[], None]) -> None:
        """Do what may append to the log."""


def _spacious() -> bool:
    return True
