"""Draft: a plan while it is made, with the budgets that all rules share. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from cluster.fleet.choices import shards_of_new_parts
from cluster.fleet.counted import Counted
from cluster.fleet.hands import HAND, hand
from cluster.fleet.load_history import LoadHistory
from cluster.fleet.loads import PartLoad, disturbance
from cluster.fleet.plan_table import Applied, Change, Fleet, Kind, Part, PartState, Queue
from cluster.fleet.reasons import Reason, Refusal, Warned, Why, reason
from cluster.fleet.thresholds import (
    CALM_MS,
    SILENT_MS,
    STOP_AT,
    TRANSFERS_MAX,
    UNDO_MS,
)
from cluster.members.zones import crowded_zones

BUDGET_SHARE, BUDGET_LEAST = 0.01, 8
"""The share of all parts, and the number of parts of a small fleet, that may be changed in ten
minutes."""


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
        """Offer so many new parts of a FIFO queue, a split's may be fewer, in place of all open
        ones, whose loads are `asked`. They may lie where those lay."""
        leaves, total = [part.shard for part in asked], sum(asked.values())
        self.counted.shift(leaves, [-each for each in asked.values()])
        opens = self._places_instead(queue, asked, count)
        while kind is Kind.SPLIT and len(asked) < len(opens) < count:
            count = len(opens)  # fewer parts get more each, which needs other places
            opens = self._places_instead(queue, asked, count)
        self.counted.shift(leaves, [*asked.values()])
        if len(opens) < count:
            self.grow_hand(queue.account)
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

    def _places_instead(self, queue: Queue, asked: Mapping[Part, float], count: int) -> list[int]:
        share, most = sum(asked.values()) / count, max(asked.values())
        names = self.hand_with_room(queue.account, share)
        opens = self.places(queue, share, count, names, stay=())
        if len(opens) < count and most > STOP_AT:  # it must go somewhere, or never could be split
            names = self.hand_with_room(queue.account, share, 1.0)
            opens = self.places(queue, share, count, names, 1.0, most, stay=())
        return opens

    def hindrance_of_shard(self, shard: int) -> Reason | None:
        """The reason against changes that begin or end at this shard."""
        cluster = self.fleet.cluster_of.get(shard, "")
        load = self.history.shards.get(shard)
        if cluster in self.history.silent_since_ms or load is None:
            return reason(Why.SILENT, cluster=cluster)
        what = disturbance(load, self.now_ms, self.history.window_ms)
        return reason(Why.DISTURBED, shard=shard, what=what) if what is not None else None

    def _over_budget(self, change: Change) -> Reason | None:
        if change.kind is Kind.GROW_HAND:
            return None
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

    def hand_size(self, account: str) -> int:
        """The number of clusters of the account."""
        return self.fleet.hand_sizes.get(account, HAND)

    def places(
        self,
        queue: Queue,
        asked: float,
        count: int,
        names: Collection[str],
        most: float = STOP_AT,
        shard_most: float = STOP_AT,
        stay: Collection[Part] | None = None,
    ) -> list[int]:
        """Up to this many shards for new parts, each of which asks for this share of a loop.

        On these clusters, which have room for one each and get more while they stay below `most`,
        and on shards that stay below theirs; never on a shard that has a part of the queue, nor at
        a place that the queue left within an hour. `stay` are the open parts that are not replaced
        by the new ones, all of them if it is not given.
        """
        stay = queue.open_parts if stay is None else stay
        closed = [part for part in queue.parts if part.state is not PartState.OPEN]
        left_shards, left_clusters = self._left(queue)
        able = [name for name in names if name not in left_clusters]
        avoid = {part.shard for part in (*stay, *closed)} | left_shards
        avoid |= {
            shard
            for name in able
            for shard in self.fleet.clusters[name].shards
            if self.counted.shard(shard) + asked >= shard_most
            or self.hindrance_of_shard(shard) is not None
        }
        key = f"{queue.queue_id}/{queue.version}"
        cluster_of = self.fleet.cluster_of
        has = Counter(cluster_of.get(part.shard, "") for part in stay)
        room = {name: max(1, self.counted.room(name, asked, most)) for name in able}
        return list(
            shards_of_new_parts(
                self.fleet.clusters, key, able, self.counted, count, avoid, has, room
            )
        )

    def hand_of(self, account: str) -> tuple[str, ...]:
        """The clusters of the account."""
        return hand(account, self.fleet.clusters.values(), self.hand_size(account))

    def asked_of(self, queue: Queue, part: Part) -> float:
        """The share of a loop that a part asks for, 0 if it is not known."""
        seen = self.history.parts.get((queue.queue_id, part.number))
        return seen.last.asked if seen is not None else 0.0

    def top_group_of(self, queue: Queue, part: Part) -> float:
        """The share of a loop that the busiest message group of a part asks for."""
        seen = self.history.parts.get((queue.queue_id, part.number))
        return seen.last.asked * seen.last.top_group if seen is not None else 0.0

    def hand_with_room(self, account: str, asked: float, most: float = STOP_AT) -> list[str]:
        """The clusters of the account that may take a part that asks for this share of a loop, and
        stay below a load."""
        hand = self.hand_of(account)
        return [name for name in hand if self.counted.has_room(name, asked, most)]

    def grow_hand(self, account: str) -> None:
        """Give the account one cluster more, if there is one and it did not grow just now."""
        size = self.hand_size(account)
        grown = self.fleet.last_changes.get(account, [])
        if (
            len(hand(account, self.fleet.clusters.values(), size + 1)) > size
            and not (grown and self.now_ms - grown[-1].at_ms < CALM_MS)
            and not any(c.kind is Kind.GROW_HAND and c.account == account for c in self.changes)
        ):
            why = reason(Why.HAND_FULL, clusters=size)
            self.offer(Change(kind=Kind.GROW_HAND, account=account, version=size, reason=why))

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
