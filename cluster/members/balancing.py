"""LeaderBalance: spreads the leaders of shards over the hosts, one shard at a time; LeaderPlan:
the hosts that can lead, as this host sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from cluster.members.balance import next_leaders, next_move
from cluster.members.leader_view import LeaderView
from cluster.members.membership import Membership
from cluster.replication.replica import Replica

_ASIDE_S = 0.7
"""Time for which a free shard is left to the host that should lead it: longer than its pause
between two looks at the key."""
_DRAINED_S = 10.0
"""The same for a drained host: then no other could."""
_SHORT_S = 1.4
"""The same for a host whose disk is short: all may be."""
_PAUSE_S = 2.0
"""Between two shards that this host hands over."""
_LEAVE_S = 5.0
_TELL_S = 0.5
"""Time that the others are given to hear that this host leaves."""
_LOOK_S = 0.05
"""Between two looks at the shards of a host that leaves."""


class LeaderPlan:
    """A host without space for messages leads nothing that others can
    lead, nor does one that leaves."""

    def __init__(
        self, membership: Membership, leaders: LeaderView, has_space: Callable[[], bool]
    ) -> None:
        """`has_space` is of this host."""
        self._membership = membership
        self._leaders = leaders
        self._has_space = has_space
        self._is_leaving = False

    def leave(self) -> None:
        """Lead nothing from now on."""
        self._is_leaving = True

    def able_to_lead(self) -> list[str]:
        """The names of the hosts that can lead."""
        able = self._membership.shown.able_to_lead()
        is_able = self._has_space() and not self._is_leaving
        return [name for name in able if is_able or name != self._membership.name]

    def reluctance_s(self, shard: int) -> float:
        """Seconds for which this host leaves a free shard to others."""
        members, name = self._membership.shown, self._membership.name
        own = members.hosts.get(name)
        if own is None or own.is_drained or self._is_leaving:
            return _DRAINED_S
        if not self._has_space():
            return _SHORT_S
        chosen = next_leaders(self._leaders.leaders(), self.able_to_lead())
        return 0.0 if chosen.get(shard, name) == name else _ASIDE_S


class LeaderBalance:
    """`tick` is due about once a second."""

    def __init__(
        self,
        plan: LeaderPlan,
        membership: Membership,
        leaders: LeaderView,
        replicas: Callable[[], Mapping[int, Replica]],
        monotonic_s: Callable[[], float],
    ) -> None:
        """`replicas` are this host's as of now, by shard; they wait as `plan` says."""
        self._plan = plan
        self._membership = membership
        self._leaders = leaders
        self._replicas = replicas
        self._monotonic_s = monotonic_s
        self._not_before_s = 0.0

    def tick(self) -> None:
        """Hand over a shard if another host should lead it."""
        now_s = self._monotonic_s()
        if now_s >= self._not_before_s and self._hand_over():
            self._not_before_s = now_s + _PAUSE_S

    async def leave(self, limit_s: float = _LEAVE_S) -> None:
        """Hand over all shards that others can take: the host is about to stop. Bounded.

        The others are told first: of hosts that stop at the same time none takes a shard.
        """
        self._plan.leave()
        end_s = self._monotonic_s() + limit_s
        telling = asyncio.create_task(self._membership.tell_leaving())
        await asyncio.wait((telling,), timeout=_TELL_S)
        await asyncio.sleep(_LOOK_S)
        while self._monotonic_s() < end_s and not self._has_left():
            while self._hand_over():
                pass
            await asyncio.sleep(_LOOK_S)
        telling.cancel()

    def _has_left(self) -> bool:
        """True once this host leads nothing, or has nothing under way that nobody could take."""
        serving = [replica for replica in self._replicas().values() if replica.serving]
        return not any(serving) or (
            not self._plan.able_to_lead() and all(replica.is_idle for replica in serving)
        )

    def _hand_over(self) -> bool:
        """Hand over one shard, if there is one to."""
        replicas = self._replicas()
        serving = {
            shard: replica.caught_up
            for shard, replica in replicas.items()
            if replica.serving and not replica.is_handing_over
        }
        leaders = self._leaders.leaders()
        move = next_move(self._membership.name, leaders, self._plan.able_to_lead(), serving)
        if move is not None:
            replicas[move.shard].hand_over(move.to)
        return move is not None
