"""The interfaces between a replica and its surroundings: roles, times, network, owner,
reports."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

from cluster.replication.replica_messages import Message
from storage.engines.store_options import Replication
from storage.log import Position


class NotServing(Exception):
    """This replica does not lead, or must not append now: nothing was written."""


class ReplicaRole(StrEnum):
    """See the table in `replica.py`."""

    FOLLOWER = "follower"
    ASKING = "asking"
    TAKING = "taking"
    ADOPTING = "adopting"
    LEADER = "leader"
    RECOVERING = "recovering"


class Timing(NamedTuple):
    """Seconds, unless it says otherwise."""

    heartbeat_s: float = 0.2
    quiet_s: float = 0.5
    """The same while all peers have what this leader could tell them."""
    silence_s: float = 1.0
    """Without a leader's word for so long, the key is read."""
    read_s: float = 0.5
    """Between two looks at the key."""
    look_s: float = 6.0
    """A follower that hears a leader looks at the key this often, in case a watch that should
    report a free one does not."""
    unheld_s: float = 2.0
    """It campaigns once the key was free for so long."""
    ask_s: float = 1.0
    """Time that a candidate waits for a majority."""
    gather_s: float = 0.05
    """Time that it waits for further answers once it has one."""
    head_start_s: float = 1.0
    head_start_bytes: int = 1 << 20
    """A peer whose log is that much longer goes first."""
    resend_s: float = 0.5
    stuck_s: float = 2.0
    """A leader that commits nothing for so long gives up."""
    rest_s: float = 10.0
    """And does not try again before."""
    batch_bytes: int = 1 << 20
    """Entries sent in one message, unless a single one is larger."""
    retained_bytes: int = 256 << 20
    """Bytes of its log that a leader keeps at most for voters that lag behind, and a follower
    always."""
    under_way_max: int = 8
    """Entries that a leader has appended and not committed."""
    waiting_max: int = 1
    """Those whose answers wait for a majority. More would be smaller: see `cluster/reasons`."""
    under_way_bytes: int = 32 << 20
    """Nor is more appended above that; nor answered before a majority has it."""
    clock_s: float = 10.0
    """A leader's clock is no further from the median of the voters' clocks."""


ASYNC_TIMING = Timing(under_way_max=64, under_way_bytes=64 << 20)
"""Lets a leader go on while the others stand still for a moment. Each read looks through as many
layers as Entries are under way, so there are not more of them."""


class Times(NamedTuple):
    """The clocks of the host, in seconds."""

    monotonic_s: Callable[[], float]
    """Goes on while the machine sleeps."""
    wall_s: Callable[[], float]


class Network(Protocol):
    """Sends to peers; what it sends may be lost."""

    def send(self, to: str, message: Message) -> None:
        """Send to the host of this name."""


class ReplicaOwner(Protocol):
    """The shard whose log this is."""

    flushed: Position
    """The Entry that the rows have durably; read from any thread."""

    def first_body(self) -> bytes:
        """The body of the Entry that begins a term."""

    def on_committed(self, index: int) -> None:
        """Entries up to this index are committed: rows may have them."""

    def on_synced(self) -> None:
        """More of the log is durable here, which may have committed it."""

    def on_serving(self, term: int) -> None:
        """This replica leads, and all that was committed before its term is committed here.

        A process that was stopped may learn it late: `confirm` tells. It comes again if the voters
        changed; nothing was forgotten then.
        """

    def on_deposed(self) -> None:
        """It no longer leads. What it appended and did not see committed is unknown."""

    def on_behind(self, leader: str) -> None:
        """A checkpoint of the rows is needed: no log reaches back to this one, and it comes again
        until then; or they are damaged, and nothing is kept from the leader any more."""


class PeerReport(msgspec.Struct, frozen=True):
    """A peer as its leader sees it."""

    name: str
    replica_id: str
    """Empty until it has promised the leader's term."""
    matched: int
    """Up to this index its log is the leader's, and durable."""
    is_voter: bool
    heard_s: float | None
    """Seconds since it last answered, None if it has not in this term."""
    ahead_s: float | None = None
    """Seconds by which its wall clock is ahead of the leader's; None before its first answer."""


class ReplicaReport(msgspec.Struct, frozen=True):
    """One host's replica of one shard."""

    role: str
    replica_id: str
    term: int
    """The term that it has promised."""
    leader_id: str
    """The replica that leads in this term; hosts of the version before need it."""
    is_voter: bool
    commit: int
    applied: int
    """The last Entry that its rows have."""
    last_index: int
    needs_checkpoint: bool
    damage: str
    """The damage in its rows, for which it neither leads nor counts; empty if none is known."""
    has_no_good_copy: bool
    """True if the rows of all hosts were found to be damaged: damage is quarantined."""
    peers: list[PeerReport]
    """Only the leader knows them."""
    replication: str = Replication.SYNC
    """The way in which this host answers while it leads."""
    is_changing_voters: bool = False
    """A leader that is writing another set of voters."""
    conflict: str = ""
    """The Entries of which some are committed here and not in the leader's log, empty if there are
    none: it follows and counts no more."""
    clock_behind_s: float = 0.0
    """See `Clocks.behind_s`."""
