"""Moves of parts: off clusters that are emptied, off those that have too much, and for balance.
Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial

from cluster.fleet.draft import Draft, WantedParts
from cluster.fleet.plan_table import Change, Cluster, Kind, Part, Queue
from cluster.fleet.reasons import Reason, Why, reason
from cluster.fleet.thresholds import (
    HOT_PART,
    STOP_AT,
    SUSTAINED_MS,
    TRANSFERS_MAX,
    UNEVEN,
    UNEVEN_MS,
    is_far,
    is_uneven,
)

_TRIED_MAX = 32
"""Parts that are looked at for one cluster in one plan."""
_LEAST = 0.01
"""A part that asks for less of a loop is not worth a move for balance."""
_LIGHT = 0.10
"""A part that asks for more is moved for balance only if no lighter one is there: its queue could
not be split for ten minutes, and is the one to be split if more is asked of it. From a cluster far
above the mean light parts, two at once, would take too long: only those of HOT_PART go last."""


def empty_clusters(draft: Draft) -> None:
    """Move the parts of clusters that an operator drains. Each plan begins as many as may be
    under way at once."""
    for cluster in _by_name(draft):
        if not cluster.is_draining:
            continue
        shards = set(cluster.shards)
        why = reason(Why.CLUSTER_DRAINS, cluster=cluster.name)
        for queue in draft.fleet.queues_on(shards):
            if draft.counted.leaving[cluster.name] >= TRANSFERS_MAX:
                break
            part = next(part for part in queue.open_parts if part.shard in shards)
            asked = draft.asked_of(queue, part)
            _move(draft, queue, part, asked, why, partial(draft.counted.has_room, asked=asked))


def relieve(draft: Draft) -> None:
    """Move parts away from clusters and shards that had too much for ten minutes."""
    counted, clusters = draft.counted, draft.fleet.clusters
    for name, since_ms in sorted(draft.history.overloaded_since_ms.items()):
        if draft.now_ms - since_ms >= SUSTAINED_MS and name in clusters:
            why = reason(Why.CLUSTER_OVERLOADED, cluster=name, load=counted.load(name))
            _lighten(draft, clusters[name].shards, why, partial(counted.load, name))
    for shard, since_ms in sorted(draft.history.shard_overloaded_since_ms.items()):
        if draft.now_ms - since_ms >= SUSTAINED_MS and shard in draft.fleet.cluster_of:
            why = reason(Why.SHARD_OVERLOADED, shard=shard, load=counted.shard(shard))
            _lighten(draft, (shard,), why, partial(counted.shard, shard))


def _lighten(
    draft: Draft, shards: Collection[int], why: Reason, load_now: Callable[[], float]
) -> None:
    """Move the busiest parts of these shards that find a place, until the load is at STOP_AT."""
    for load, queue, part in draft.parts_of(shards)[:_TRIED_MAX]:
        if load_now() <= STOP_AT:
            return
        own = draft.fleet.cluster_of[part.shard] if len(shards) == 1 else ""
        _move(draft, queue, part, load.asked, why, partial(_is_low, draft, load.asked, own))


def balance(draft: Draft) -> None:
    """Move parts from clusters with clearly more than the mean to such with less. Of two parts of
    one queue one goes first, and at once: when more is asked of it, both have it."""
    counted, mean = draft.counted, draft.history.mean
    for name, since_ms in sorted(draft.history.uneven_since_ms.items()):
        parts = draft.parts_of(draft.fleet.clusters[name].shards)
        together = Counter(queue.queue_id for _, queue, _ in parts)
        if draft.now_ms - since_ms < UNEVEN_MS and not draft.is_in_a_hurry(name):
            parts = [each for each in parts if together[each[1].queue_id] > 1]
        why = reason(Why.UNEVEN, cluster=name, load=counted.load(name), mean=mean)
        last = HOT_PART if is_far(counted.load(name), mean) else _LIGHT
        parts.sort(key=lambda each: (together[each[1].queue_id] < 2, each[0].asked > last))
        for load, queue, part in parts[:_TRIED_MAX]:  # within these the busiest first
            if counted.load(name) <= mean:
                break
            if (leaving := counted.leaving[name]) >= TRANSFERS_MAX:
                if is_uneven(counted.load(name), mean):
                    held = reason(Why.TRANSFERS, transfers=leaving, cluster=name)
                    draft.refuse(Kind.MOVE, name, held)
                break
            share = counted.share(name, load.asked)
            if load.asked < _LEAST or counted.load(name) - share < mean - share / 2:
                continue
            most = min(counted.load(name) - share / 2, UNEVEN * mean)
            is_able = partial(_is_lower, draft, load.asked, most)
            _move(draft, queue, part, load.asked, why, is_able, may_join=False)


def _is_low(draft: Draft, asked: float, own: str, name: str) -> bool:
    return name == own or draft.counted.is_low(name, asked)


def _is_lower(draft: Draft, asked: float, most: float, name: str) -> bool:
    counted = draft.counted
    return counted.is_low(name, asked) and counted.load(name) + counted.share(name, asked) <= most


def _move(
    draft: Draft,
    queue: Queue,
    part: Part,
    asked: float,
    why: Reason,
    is_able: Callable[[str], bool],
    may_join: bool = True,
) -> None:
    """Move a part to a cluster of the account that is able, or say why not. It joins another part
    of its queue only if it may, and no other cluster is able."""
    if draft.is_changed(queue.queue_id):
        return
    refused = draft.hindrance(Kind.MOVE, queue, (part,)) or draft.still_given(queue, (part,))
    if queue.stays:
        refused = reason(Why.STAYS, means=queue.stays)
    if refused is None:
        stay = [each for each in queue.open_parts if each != part]
        wanted = WantedParts(queue, asked, 1, stay)
        opens = draft.places(wanted, is_able)
        if not opens and may_join:
            opens = draft.places(wanted, is_able, together=True)
        refused = _offer(draft, queue, part, asked, why, opens)
    if refused is not None:
        draft.refuse(Kind.MOVE, queue.queue_id, refused)


def _offer(
    draft: Draft, queue: Queue, part: Part, asked: float, why: Reason, opens: Sequence[int]
) -> Reason | None:
    if not opens:
        return reason(Why.NO_ROOM, asked=asked)
    change = Change(
        kind=Kind.MOVE,
        reason=why,
        account=queue.account,
        queue=queue.queue_id,
        version=queue.version,
        drains=(part.number,),
        leaves=(part.shard,),
        opens=tuple(opens),
        taken=(asked,),
        given=(asked,),
    )
    return draft.offer(change)


def _by_name(draft: Draft) -> list[Cluster]:
    return sorted(draft.fleet.clusters.values())
