"""Draft: a plan while it is made, with the budgets that all rules share. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from cluster.fleet.choices import HAND, REACH, hand, shards_of_new_parts
from cluster.fleet.counted import Counted
from cluster.fleet.load_history import LoadHistory
from cluster.fleet.loads import PartLoad, disturbance
from cluster.fleet.plan_table import Applied, Change, Fleet, Kind, Part, PartState, Queue
from cluster.fleet.reasons import Reason, Refusal, Warned, Why, reason
from cluster.fleet.thresholds import (
    CALM_MS,
    FAR_MS,
    SILENT_MS,
    STOP_AT,
    TRANSFERS_MAX,
    UNDO_MS,
    UNEVEN,
    UNEVEN_FLOOR,
)
from cluster.members.removal import crowded_zones

BUDGET_SHARE, BUDGET_LEAST = 0.01, 8
"""The share of all parts, and the number of parts of a small fleet, that may be changed in ten
minutes."""


class WantedParts(NamedTuple):
    """Parts that a queue may get."""

    queue: Queue
    asked: float
    """Share of a loop that each of them asks for."""
    number: int
    stay: Collection[Part]
    """The open parts of the queue that are not replaced by them."""


class Draft:
    """The changes and refusals so far. A change that is offered counts for those after it."""

    def __init__(self, fleet: Fleet, history: LoadHistory, now_ms: int) -> None:
        self.fleet = fleet
        self.history = history
        self.now_ms = now_ms
        self.counted = Counted(fleet, history, now_ms)
        self.changes: list[Change] = []
        self.refusals: list[Refusal] = []
        self.warnings: list[Warned] = []
        self.budget = max(BUDGET_LEAST, int(BUDGET_SHARE * fleet.parts))
        self.spent = sum(
            each.change.parts for each in fleet.changes if now_ms - each.at_ms < CALM_MS
        )
        self._changed: set[str] = set()

    # -- outcomes ----------------------------------------------------------------------------------

    def offer(self, change: Change) -> Reason | None:
        """Make this change part of the plan, unless budgets refuse it; then their reason."""
        refused = self._over_budget(change)
        if refused is None:
            self.changes.append(change)
            self.spent += change.parts
            self._changed.add(change.queue)
            self.counted.add(change)
            self._say_what_is_beyond(change)
        return refused

    def refuse(self, kind: Kind, of: str, why: Reason) -> None:
        """Say that a wanted change is not made."""
        self.refusals.append(Refusal(kind.value, of, why))

    def warn(self, of: str, why: Reason) -> None:
        """Tell an operator or owner."""
        self.warnings.append(Warned(of, why))

    def is_changed(self, queue: str) -> bool:
        """True if this plan changes the queue."""
        return queue in self._changed

    # -- permission --------------------------------------------------------------------------------

    def hindrance(self, kind: Kind, queue: Queue, parts: Iterable[Part]) -> Reason | None:
        """The reason against a change of these parts of the queue now, apart from budgets."""
        for applied in reversed(self.fleet.last_changes.get(queue.queue_id, [])):
            ago_ms = self.now_ms - applied.at_ms
            if ago_ms < CALM_MS:
                return reason(Why.CALM, ago_s=ago_ms / 1000)
            if ago_ms < UNDO_MS and _undoes(kind, applied):
                return reason(Why.UNDOES, ago_s=ago_ms / 1000)
        if queue.has_task and not (kind is Kind.SPLIT and not queue.is_fifo):
            return reason(Why.TASK)
        for part in parts:
            if (refused := self.hindrance_of_shard(part.shard)) is not None:
                return refused
        return None

    def still_given(self, queue: Queue, parts: Iterable[Part]) -> Reason | None:
        """The reason against closing these parts of a FIFO queue while an earlier one gives them
        its messages: a part gives each group to one that is open."""
        for part in parts if queue.is_fifo else ():
            for earlier in queue.parts:
                seen = self.history.parts.get((queue.queue_id, earlier.number))
                messages = seen.last.messages if seen is not None else 0
                if messages and earlier.number < part.number and earlier.overlaps(part):
                    return reason(Why.BACKLOG, part=earlier.number, messages=messages)
        return None

    def replace(
        self, kind: Kind, queue: Queue, asked: Mapping[Part, float], count: int, why: Reason
    ) -> Reason | None:
        """Offer `count` new parts of a FIFO queue, a split's may be fewer, in place of all open
        ones, whose loads are `asked`. They may lie where those lay."""
        leaves, total = [part.shard for part in asked], sum(asked.values())
        most = max(asked.values())
        self.counted.shift(leaves, [-each for each in asked.values()])
        opens = self.spread(WantedParts(queue, total / count, count, ()), most, most)
        while kind is Kind.SPLIT and len(asked) < len(opens) < count:
            count = len(opens)  # fewer parts get more each, which needs other places
            opens = self.spread(WantedParts(queue, total / count, count, ()), most, most)
        self.counted.shift(leaves, [*asked.values()])
        if len(opens) < count:
            return reason(Why.NO_ROOM, asked=total / count)
        return self.offer(
            Change(
                kind=kind,
                reason=why,
                account=queue.account,
                queue=queue.queue_id,
                version=queue.version,
                drains=tuple(part.number for part in asked),
                leaves=tuple(leaves),
                opens=tuple(opens),
                taken=tuple(asked.values()),
                given=(total / count,) * count,
            )
        )

    def hindrance_of_shard(self, shard: int) -> Reason | None:
        """The reason against changes that begin or end at this shard."""
        cluster = self.fleet.cluster_of.get(shard, "")
        load = self.history.shards.get(shard)
        if cluster in self.history.silent_since_ms or load is None:
            return reason(Why.SILENT, cluster=cluster)
        what = disturbance(load, self.now_ms, self.history.window_ms)
        return reason(Why.DISTURBED, shard=shard, what=what) if what is not None else None

    def _over_budget(self, change: Change) -> Reason | None:
        if self.spent + change.parts > self.budget:
            return reason(Why.BUDGET, spent=self.spent, budget=self.budget)
        if not change.drains:
            return None
        cluster_of = self.fleet.cluster_of
        for shards, under_way in (
            (change.leaves, self.counted.leaving),
            (change.opens, self.counted.coming),
        ):
            for name in {cluster_of.get(shard, "") for shard in shards}:
                if under_way[name] >= TRANSFERS_MAX:
                    return reason(Why.TRANSFERS, transfers=under_way[name], cluster=name)
        return None

    # -- places ------------------------------------------------------------------------------------

    def spread(self, wanted: WantedParts, hottest: float, shard_most: float) -> list[int]:
        """Places for the new parts of a split or of a FIFO queue: where each is below the mean,
        else where there is room, and two in one cluster only if all others are full.

        A part that no loop carries, as the `hottest` may be, has to go somewhere, or it could never
        be split: then to shards that stay below `shard_most`.
        """
        low = max(UNEVEN_FLOOR, UNEVEN * self.history.mean)
        tries = [(low, STOP_AT, False), (STOP_AT, STOP_AT, False), (STOP_AT, STOP_AT, True)]
        if hottest > STOP_AT:
            tries += [(1.0, shard_most, False), (1.0, shard_most, True)]
        opens: list[int] = []
        for most, of_shard, together in tries:
            is_able = partial(self.counted.has_room, asked=wanted.asked, most=most)
            found = self.places(wanted, is_able, most, of_shard, together=together)
            opens = max(opens, found, key=len)
            if len(opens) == wanted.number:
                break
        return opens

    def places(
        self,
        wanted: WantedParts,
        is_able: Callable[[str], bool],
        most: float = STOP_AT,
        shard_most: float = STOP_AT,
        *,
        together: bool = False,
    ) -> list[int]:
        """Up to as many shards as there are new parts.

        In clusters of the account that are able, and on shards that stay below their most; never on
        a shard that has a part of the queue, nor at a place that the queue left within an hour. One
        in each cluster that has none, or `together` more of them, while it stays below `most`.
        """
        queue, asked, count, stay = wanted
        closed = [part for part in queue.parts if part.state is not PartState.OPEN]
        left_shards, left_clusters = self._left(queue)
        has = Counter(self.fleet.cluster_of.get(part.shard, "") for part in stay)
        avoid = {part.shard for part in (*stay, *closed)} | left_shards
        able: list[str] = []
        for place, name in enumerate(self.order_of(queue.account)):
            if place >= HAND and sum(not has[each] for each in able) >= count:
                break
            if name in left_clusters or (has[name] and not together) or not is_able(name):
                continue
            shards = self.fleet.clusters[name].shards
            unfit = {each for each in shards if not self._fits(each, asked, shard_most)}
            avoid |= unfit
            if not avoid.issuperset(shards):
                able.append(name)
        key = f"{queue.queue_id}/{queue.version}"
        room = {n: max(1, self.counted.room(n, asked, most)) if together else 1 for n in able}
        return shards_of_new_parts(self.fleet.clusters, key, self.counted, count, avoid, has, room)

    def _fits(self, shard: int, asked: float, most: float) -> bool:
        return self.counted.shard(shard) + asked < most and self.hindrance_of_shard(shard) is None

    def order_of(self, account: str) -> tuple[str, ...]:
        """The clusters that the account's parts may go to: its hand, and then those that are looked
        at if too few of the hand can take them."""
        return hand(account, self.fleet.clusters.values(), REACH)

    def is_beyond(self, account: str, shard: int) -> bool:
        """True if a shard is in no cluster of the account's hand."""
        return self.fleet.cluster_of.get(shard) not in self.order_of(account)[:HAND]

    def _say_what_is_beyond(self, change: Change) -> None:
        beyond = [shard for shard in change.opens if self.is_beyond(change.account, shard)]
        if beyond:
            names = sorted({self.fleet.cluster_of[shard] for shard in beyond})
            figures = {"queue": change.queue, "clusters": ", ".join(names)}
            self.warn(change.account, reason(Why.BEYOND_HAND, hand=HAND, **figures))

    def asked_of(self, queue: Queue, part: Part) -> float:
        """The share of a loop that a part asks for, 0 if it is not known."""
        seen = self.history.parts.get((queue.queue_id, part.number))
        return seen.last.asked if seen is not None else 0.0

    def top_group_of(self, queue: Queue, part: Part) -> float:
        """The share of a loop that the busiest message group of a part asks for."""
        seen = self.history.parts.get((queue.queue_id, part.number))
        return seen.last.asked * seen.last.top_group if seen is not None else 0.0

    def _left(self, queue: Queue) -> tuple[set[int], set[str]]:
        """Shards that the queue left within an hour, and clusters that it left altogether."""
        cluster_of = self.fleet.cluster_of
        shards = {
            shard
            for applied in self.fleet.last_changes.get(queue.queue_id, [])
            if self.now_ms - applied.at_ms < UNDO_MS
            for shard in applied.change.leaves
        }
        has = {cluster_of.get(part.shard) for part in queue.open_parts}
        return shards, {cluster_of.get(shard, "") for shard in shards} - has

    # -- loads -------------------------------------------------------------------------------------

    def is_in_a_hurry(self, cluster: str) -> bool:
        """True if a cluster has been far above the mean for long enough."""
        since_ms = self.history.far_since_ms.get(cluster)
        return since_ms is not None and self.now_ms - since_ms >= FAR_MS

    def parts_of(self, shards: Iterable[int]) -> list[tuple[PartLoad, Queue, Part]]:
        """The reported open parts of these shards, the busiest first."""
        found = []
        for shard in shards:
            load = self.history.shards.get(shard)
            for seen in load.parts if load is not None else ():
                queue = self.fleet.queues.get(seen.queue)
                part = queue.part(seen.number) if queue is not None else None
                if queue is not None and part in queue.open_parts and part.shard == shard:
                    found.append((seen, queue, part))
        found.sort(key=lambda each: (-each[0].asked, each[0].queue, each[0].number))
        return found

    def warn_of_zones(self) -> None:
        """Clusters whose shards have a majority of their voters in one zone."""
        for name, cluster in sorted(self.fleet.clusters.items()):
            for zone, count in crowded_zones(cluster.zones).items():
                figures = {"voters": count, "hosts": len(cluster.zones)}
                self.warn(name, reason(Why.ONE_ZONE, cluster=name, zone=zone, **figures))

    def warn_of_silence(self) -> None:
        """Clusters that an operator should look at."""
        for name, since_ms in sorted(self.history.silent_since_ms.items()):
            silent_ms = self.now_ms - since_ms
            if silent_ms >= SILENT_MS:
                self.warn(name, reason(Why.SILENT_LONG, cluster=name, minutes=silent_ms // 60_000))


def _undoes(kind: Kind, applied: Applied) -> bool:
    """True if a change of this kind undoes that one; places are looked at apart."""
    return {kind, applied.change.kind} == {Kind.SPLIT, Kind.SHRINK}
