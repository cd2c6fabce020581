"""A model of coordination for one shard's key: leases, faults, restores of old states."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, NamedTuple

from cluster.coordination.coordination import Conflict, Done, Unavailable, Unknown
from cluster.replication.leadership import Holder, Renewal, Seen, TermRecord

_TIMEOUT_S = 1.0


class _State(NamedTuple):
    revision: int
    holder: Holder | None
    record: TermRecord | None


class Coordination:
    """The records of one shard in an etcd cluster."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.ttl_s = random.choice((1.0, 3.0))
        self.unavailable_until = 0.0
        self.unreachable: set[str] = set()
        """Hosts that are cut off from it."""
        self._state = _State(0, None, None)
        self._leased_until = 0.0
        self._snapshots: list[_State] = []

    def found(self, log_id: bytes, voters: dict[str, str]) -> None:
        """The cluster is made."""
        self._state = _State(1, None, TermRecord(0, log_id, voters))

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def state(self) -> Seen:
        """As it is now: a lease that is over takes its key along."""
        state = self._state
        if state.holder is not None and self.now() >= self._leased_until:
            self._state = state = _State(state.revision + 1, None, state.record)
        return Seen(*state)

    def take(self, seen: Seen, holder: Holder, record: TermRecord) -> Done | Conflict:
        now = self.state()
        if now != seen:
            return Conflict(now.revision)
        if now.holder is None or now.holder.replica_id != holder.replica_id:
            self._leased_until = self.now() + self.ttl_s
        self._state = _State(now.revision + 1, holder, record)
        return Done(self._state.revision)

    def renew(self, holder: Holder) -> Renewal:
        if self.state().holder != holder:
            return Renewal.LOST
        self._leased_until = self.now() + self.ttl_s
        return Renewal.KEPT

    def release(self, holder: Holder) -> None:
        now = self.state()
        if now.holder == holder:
            self._state = _State(now.revision + 1, None, now.record)

    # -- faults ------------------------------------------------------------------------------------

    def lose_leader(self) -> None:
        """Another node leads: leases are extended, and nothing is answered meanwhile."""
        self.unavailable_until = self.now() + self.random.uniform(0.2, 2.0)
        self._leased_until = self.unavailable_until + self.ttl_s + 0.5

    def be_away(self, seconds: float) -> None:
        self.unavailable_until = self.now() + seconds

    def snapshot(self) -> None:
        self._snapshots.append(self._state)

    def restore(self) -> None:
        """From an old snapshot; its lease is whole again."""
        if self._snapshots:
            self._state = self.random.choice(self._snapshots)
            self._leased_until = self.now() + self.ttl_s

    def forget(self) -> None:
        """Restored from nothing."""
        self._state = _State(0, None, None)

    def end_faults(self) -> None:
        self.unavailable_until = 0.0
        self.unreachable.clear()


class HostLeadership:
    """Implements `Leadership` for one host; answers reach it through its `deliver`."""

    def __init__(
        self, coordination: Coordination, name: str, deliver: Callable[[Callable[[], None]], None]
    ) -> None:
        self.ttl_s = coordination.ttl_s
        self.renewal_s = coordination.ttl_s / 3
        self._coordination = coordination
        self._name = name
        self._deliver = deliver

    def read(self, done: Callable[[Seen | Unavailable], None]) -> None:
        self._call(self._coordination.state, done, Unavailable("no answer"))

    def take(
        self,
        seen: Seen,
        holder: Holder,
        record: TermRecord,
        done: Callable[[Done | Conflict | Unknown | Unavailable], None],
    ) -> None:
        work = partial(self._coordination.take, seen, holder, record)
        self._call(work, done, Unknown("no answer"))

    def renew(self, holder: Holder, done: Callable[[Renewal], None]) -> None:
        self._call(partial(self._coordination.renew, holder), done, Renewal.UNAVAILABLE)

    def release(self, holder: Holder) -> None:
        self._call(partial(self._coordination.release, holder), lambda _: None, None)

    def _call(self, work: Callable[[], Any], done: Callable[[Any], None], lost: Any) -> None:
        loop, random = asyncio.get_running_loop(), self._coordination.random
        loop.call_later(random.uniform(0.0005, 0.005), self._work, work, done, lost)

    def _is_away(self) -> bool:
        coordination = self._coordination
        is_away = coordination.now() < coordination.unavailable_until
        return is_away or self._name in coordination.unreachable

    def _work(self, work: Callable[[], Any], done: Callable[[Any], None], lost: Any) -> None:
        loop, random = asyncio.get_running_loop(), self._coordination.random
        if self._is_away():
            loop.call_later(_TIMEOUT_S, self._deliver, partial(done, lost))
            return
        result = work()
        loop.call_later(random.uniform(0.0005, 0.005), self._answer, done, result, lost)

    def _answer(self, done: Callable[[Any], None], result: Any, lost: Any) -> None:
        if self._is_away():  # it was done, and the answer is lost
            loop = asyncio.get_running_loop()
            loop.call_later(_TIMEOUT_S, self._deliver, partial(done, lost))
        else:
            self._deliver(partial(done, result))
