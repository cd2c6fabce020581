"""Leading: a term of this host: its heartbeats, its peers, its voters, and who leads next.

Its Entries are shipped and counted in `shipping.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from typing_extensions import override

from cluster.replication import replica_messages
from cluster.replication.contract import PeerReport
from cluster.replication.following import Follower
from cluster.replication.leadership import Taken
from cluster.replication.shipping import Peer, Shipping
from cluster.replication.voters import VoterSet, next_voters, reached_by_majority

PLAN_S = 1.0
"""Interval at which the set of voters is looked at."""


class Leading(Shipping):
    """A term, from its first Entry on."""

    def __init__(
        self,
        replica: Follower,
        taken: Taken,
        promised: Mapping[str, replica_messages.Promised],
        waiting: Sequence[Callable[[bool], None]],
    ) -> None:
        """`promised` are the answers of hosts that promised the term. `waiting` are called with its
        confirmation."""
        super().__init__(replica, taken, waiting)
        self.is_changing = False
        """A transaction with another set of voters is under way."""
        self._promised = promised
        self._round = 0
        """Heartbeats sent."""
        self._confirmed = 0
        """Those that a majority has answered."""
        self._told_commit = 0
        """The commit index of the last one."""
        self._heir = ""
        """The peer that is to lead next."""
        self._lost: set[str] = set()
        """Replicas that are to be others, since they lack what they acknowledged."""
        self._give_up_at = 0.0
        self._beaten_at = self._planned_at = self._moved_at
        self._handlers |= {
            replica_messages.Promised: self._on_promised,
            replica_messages.Alive: self._on_alive,
            replica_messages.Refused: self._on_refused,
        }

    @override
    def begin(self) -> None:
        """Append the term's first Entry and ship."""
        for name, promised in self._promised.items():
            if name in self._peers:
                self._on_promised(self._peers[name], promised)
        self._append(self._replica.owner.first_body(), ())
        self._beat()

    @override
    def end(self) -> None:
        """Stop leading; refuse confirmations that are awaited."""
        waiting, self._waiting = self._waiting, deque()
        for _, done in waiting:
            done(False)
        self._replica.owner.on_deposed()

    def set_peers(self, names: Sequence[str]) -> None:
        """Hosts came or went; a new one is asked for its promise at the next heartbeat."""
        self._peers = {name: self._peers.get(name) or Peer(name) for name in names}

    def peer_reports(self) -> list[PeerReport]:
        """The peers as this leader sees them."""
        now, voters = self._replica.now(), self.taken.voters.voters
        return [
            PeerReport(
                peer.name,
                peer.replica_id,
                peer.matched,
                peer.replica_id in voters,
                now - peer.alive_at if peer.alive_at else None,
                peer.ahead_s,
            )
            for peer in self._peers.values()
        ]

    def unconfirmed(self) -> list[Callable[[bool], None]]:
        """The callbacks that wait for a confirmation: it goes on in another term."""
        return [done for _, done in self._waiting]

    # -- what others need --------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """True if no Entry and no confirmation is awaited."""
        return not self._sizes and not self._waiting

    def caught_up(self) -> list[str]:
        """Voters of this term that could lead: with space, a right clock, and logs that lack
        little."""
        log, bytes_max = self._replica.log, self._replica.timing.head_start_bytes
        clocks = self._replica.clocks
        return [
            peer.name
            for peer in self._peers.values()
            if peer.replica_id in self.taken.voters.voters
            and peer.has_space
            and clocks.is_near(peer.ahead_s)
            and peer.matched >= self._first
            and log.entries.bytes_above(peer.matched) <= bytes_max
        ]

    def needed_by_peers(self, index: int, bytes_max: int) -> int:
        """The index up to which the log may be released for the voters' sake."""
        voters = self.taken.voters.voters.values()
        lagging = [peer.matched for peer in self._peers.values() if peer.name in voters]
        lowest = min([index, *lagging])
        return min(index, max(lowest, self._replica.log.entries.index_before(bytes_max)))

    # -- peers that join, or differ ----------------------------------------------------------------

    def _on_promised(self, peer: Peer, message: replica_messages.Promised) -> None:
        """A peer joins the term, or is another replica since then."""
        if message.term != self.term or message.replica_id == peer.replica_id:
            return
        replica, last = self._replica, message.last
        peer.join(message.replica_id, max(self._first, replica.commit), replica.now())
        if replica.log.position_at(last.index) == last:
            peer.next = last.index + 1
            self._send(peer, last, [])
        self._ship(peer)

    def _on_alive(self, peer: Peer, message: replica_messages.Alive) -> None:
        if message.term != self.term:
            return
        if message.replica_id != peer.replica_id:
            self._ask_again(peer)  # it lost a part of its log, not its promise
            return
        replica = self._replica
        peer.round = max(peer.round, message.round)
        peer.ahead_s = message.wall_s - replica.times.wall_s()
        peer.has_space = message.has_space
        if message.synced is not None and message.synced < peer.owed:
            self._lacks(peer, message.synced)
        replica.clocks.heard(peer.name, peer.ahead_s)
        self._confirm_rounds()

    def _lacks(self, peer: Peer, synced: int) -> None:
        """It is an older copy of what acknowledged more: another replica from now on, a learner. If
        those that would be left could never be a majority, this leader, which has all, is to live
        until it has it again."""
        voters = self.taken.voters
        other = {voter for voter, name in voters.voters.items() if self._is_other(voter, name)}
        gone = other | self._lost | {peer.replica_id}
        if voters.has_majority({*voters.voters, *voters.old_voters} - gone):
            self._lost.add(peer.replica_id)
        if synced < peer.matched:
            peer.lack(synced)
            self._ship(peer)

    def _is_other(self, voter: str, name: str) -> bool:
        """True if the voter's host has another replica by now."""
        peer = self._peers.get(name)
        return peer is not None and peer.replica_id not in ("", voter)

    def _on_refused(self, peer: Peer, message: replica_messages.Refused) -> None:
        replica = self._replica
        if self.taken.is_spent(message):
            replica.step_down()
        elif message.term < self.term or message.replica_id != peer.replica_id:
            self._ask_again(peer)
        elif self._is_news(peer, message):
            agreed = replica.ship_after(message.last, message.committed)
            peer.in_flight.clear()
            if agreed is None:
                peer.next = 0
                peer.in_flight.append((0, 0))  # asked again when that is overdue
                peer.heard_at = replica.now()
                replica.send(peer.name, replica_messages.Behind(self.term, replica.log.start.index))
            else:
                peer.next = agreed.index + 1
                self._ship(peer)

    def _ask_again(self, peer: Peer) -> None:
        """Ask the peer for its promise, since it is another replica now."""
        peer.leave()
        self._replica.send(peer.name, self.taken.question(self._replica.log.log_id))

    def _is_news(self, peer: Peer, message: replica_messages.Refused) -> bool:
        """False for a refusal that was acted on just now.

        All messages on their way are refused alike: without this each would be answered by as many
        new ones.
        """
        refused, now = (message.last, message.committed), self._replica.now()
        if refused == peer.refused and now - peer.refused_at < self._replica.timing.resend_s:
            return False
        peer.refused, peer.refused_at = refused, now
        return True

    # -- the term is confirmed ---------------------------------------------------------------------

    def confirm(self, done: Callable[[bool], None]) -> None:
        """Call back once a majority has answered a heartbeat that is sent from now on."""
        if not self._sizes and not self._waiting:
            self._moved_at = self._replica.now()
        self._waiting.append((self._round + 1, done))
        if self._round == self._confirmed:
            self._beat()

    def _beat(self) -> None:
        replica = self._replica
        self._round += 1
        self._beaten_at = replica.now()
        self._told_commit = replica.commit
        committed = replica.committed
        for peer in self._peers.values():
            if peer.replica_id:
                heartbeat = replica_messages.Heartbeat(
                    self.term,
                    replica.replica_id,
                    self._round,
                    replica.commit,
                    committed,
                    peer.replica_id,
                    peer.owed if peer.replica_id in self._lost else 0,
                )
                replica.send(peer.name, heartbeat)
            else:
                replica.send(peer.name, self.taken.question(replica.log.log_id))
        self._confirm_rounds()

    def _confirm_rounds(self) -> None:
        """Answer those whose heartbeat is confirmed; one more for all that came meanwhile."""
        answered = {peer.replica_id: peer.round for peer in self._peers.values()}
        answered[self._replica.replica_id] = self._round
        confirmed = reached_by_majority(answered, self.taken.voters.voters)
        if confirmed <= self._confirmed:
            return
        self._confirmed = confirmed
        while self._waiting and self._waiting[0][0] <= confirmed:
            self._moved_at = self._replica.now()
            self._waiting.popleft()[1](True)
        if self._waiting and self._round == confirmed:
            self._beat()

    # -- time --------------------------------------------------------------------------------------

    @override
    def tick(self) -> None:
        """Send what is due; give up if nothing moves (rule 27) or the clock is wrong (rule 29)."""
        replica, timing = self._replica, self._replica.timing
        now = replica.now()
        if self._heir and self._leaves(now):
            return
        is_busy = bool(self._sizes or self._waiting) or not self.is_serving
        if (is_busy and now - self._moved_at > timing.stuck_s) or self._is_off():
            replica.step_down(rest_s=timing.rest_s)
            return
        if now - self._beaten_at >= (timing.quiet_s if self._is_quiet else timing.heartbeat_s):
            self._beat()
        for peer in self._peers.values():
            if peer.in_flight and now - peer.heard_at > timing.resend_s:
                peer.in_flight.clear()
                peer.next = 0
            self._ship(peer)

    @property
    def _is_quiet(self) -> bool:
        """True if all peers follow, answered the last heartbeat, and know and have all Entries."""
        replica = self._replica
        last = replica.log.last_index
        return self._told_commit == replica.commit == last and all(
            peer.round == self._round and peer.matched == last for peer in self._peers.values()
        )

    def _is_off(self) -> bool:
        """True if this clock is too far from the median of those voters' clocks that answer."""
        running = self._running(self._replica.timing.stuck_s) & self.taken.voters.voters.keys()
        return self._replica.clocks.is_off(
            peer.ahead_s
            for peer in self._peers.values()
            if peer.ahead_s is not None and peer.replica_id in running
        )

    # -- voters and successors ---------------------------------------------------------------------

    def _running(self, within_s: float) -> set[str]:
        """The peers' replicas that have answered within that time."""
        now = self._replica.now()
        return {
            peer.replica_id
            for peer in self._peers.values()
            if peer.replica_id and now - peer.alive_at <= within_s
        }

    def wanted_voters(self) -> VoterSet | None:
        """Another set to be written, if it is time to look: without the voters before once they no
        longer count, or with a learner.

        The set changes only if the replicas that run are a majority before and after.
        """
        replica, voters = self._replica, self.taken.voters
        if replica.now() - self._planned_at < PLAN_S or not self.is_serving or self.is_changing:
            return None
        self._planned_at = replica.now()
        if voters.old_voters:
            return VoterSet(self.term, voters.voters)
        running = self._running(2 * replica.timing.quiet_s)
        caught_up = {
            peer.replica_id: peer.name
            for peer in self._peers.values()
            if peer.replica_id in running and peer.matched >= peer.goal
        }
        wanted = next_voters(voters.voters, caught_up, {replica.name, *replica.peers})
        if wanted is None:
            return None
        changed = VoterSet(self.term + 1, wanted, tuple(sorted(voters.voters)))
        return changed if changed.has_majority({replica.replica_id, *running}) else None

    @property
    def is_handing_over(self) -> bool:
        """True while this leader takes no more Entries."""
        return bool(self._heir)

    def hand_over(self, to: str) -> None:
        """Let this peer lead next, unless what is under way takes too long."""
        if not self._heir:
            replica = self._replica
            self._heir, self._is_leaving = to, True
            self._give_up_at = replica.now() + replica.timing.head_start_s
            replica.logger.info("hands_over", to=to)
            self._leaves(replica.now())

    def _leaves(self, now: float) -> bool:
        """Step down for the heir once nothing is under way; True if that is done."""
        replica = self._replica
        if now >= self._give_up_at:
            self._heir, self._is_leaving = "", False
        elif self.is_idle:
            replica.step_down(rest_s=replica.timing.silence_s + replica.timing.head_start_s)
            replica.send(self._heir, replica_messages.HandOver(self.term))
            return True
        return False
