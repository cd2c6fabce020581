"""Moves of parts: off clusters that are emptied, off those that have too much, and for balance.
Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from cluster.fleet.draft import Draft
from cluster.fleet.plan_table import Change, Cluster, Kind, Part, Queue
from cluster.fleet.reasons import Reason, Why, reason
from cluster.fleet.thresholds import STOP_AT, SUSTAINED_MS, TRANSFERS_MAX, UNEVEN, UNEVEN_MS

_TRIED_MAX = 32
"""Parts that are looked at for one cluster in one plan."""
_LEAST = 0.01
"""A part that asks for less of a loop is not worth a move for balance."""
_LIGHT = 0.10
"""A part that asks for more is moved for balance only if no lighter one is there: its queue could
not be split for ten minutes, and is the one to be split if more is asked of it."""


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
            _move(draft, queue, part, asked, why, draft.hand_with_room(queue.account, asked))


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
        cluster = draft.fleet.cluster_of[part.shard]
        names = [
            name
            for name in draft.hand_of(queue.account)
            if draft.counted.is_low(name, load.asked) or (len(shards) == 1 and name == cluster)
        ]
        _move(draft, queue, part, load.asked, why, names)


def balance(draft: Draft) -> None:
    """Move parts from clusters with clearly more than the mean to such with less."""
    counted, mean = draft.counted, draft.history.mean
    for name, since_ms in sorted(draft.history.uneven_since_ms.items()):
        if draft.now_ms - since_ms < UNEVEN_MS:
            continue
        why = reason(Why.UNEVEN, cluster=name, load=counted.load(name), mean=mean)
        parts = draft.parts_of(draft.fleet.clusters[name].shards)
        parts.sort(key=lambda each: each[0].asked > _LIGHT)  # within these the busiest first
        for load, queue, part in parts[:_TRIED_MAX]:
            if counted.load(name) <= mean or counted.leaving[name] >= TRANSFERS_MAX:
                break
            share = counted.share(name, load.asked)
            if load.asked < _LEAST or counted.load(name) - share < mean - share / 2:
                continue
            hand = draft.hand_of(queue.account)
            most = min(counted.load(name) - share / 2, UNEVEN * mean)
            names = [
                each
                for each in hand
                if counted.is_low(each, load.asked) and counted.load(each) + share <= most
            ]
            _move(draft, queue, part, load.asked, why, names)


def _move(
    draft: Draft, queue: Queue, part: Part, asked: float, why: Reason, names: Collection[str]
) -> None:
    """Move a part to one of these clusters of the account's hand, or say why not."""
    if draft.is_changed(queue.queue_id):
        return
    refused = draft.hindrance(Kind.MOVE, queue, (part,)) or draft.still_given(queue, (part,))
    if queue.stays:
        refused = reason(Why.STAYS, means=queue.stays)
    if refused is None and not names:
        draft.grow_hand(queue.account)
    if refused is None:
        opens = draft.places(queue, asked, 1, names)
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
