"""Splits of queues that ask for more of a loop than one part should. Pure.

Rates and depths say little: requests miss the few heavy ones, and ten million idle messages gain
nothing. The time of the loop decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from cluster.fleet import thresholds
from cluster.fleet.draft import Draft, WantedParts
from cluster.fleet.load_history import PartSeen
from cluster.fleet.plan_table import Change, Kind, Part, Queue
from cluster.fleet.reasons import Reason, Why, reason
from visibility.contract.queue_parts import PARTS_MAX

_WARM_PARTS = 3
"""A warm queue with more parts is not split: one more takes too little from each."""


def split(draft: Draft) -> None:
    """Split the hot queues, the hottest first."""
    hot: dict[str, list[tuple[PartSeen, Part]]] = {}
    for (queue_id, number), seen in draft.history.parts.items():
        queue = draft.fleet.queues.get(queue_id) if seen.hot >= thresholds.HOT_WINDOWS else None
        if queue is None or (queue.is_fifo and not _is_hot_for_long(seen)):
            continue
        part = queue.part(number)
        if part in queue.open_parts and part.shard == seen.shard:
            hot.setdefault(queue_id, []).append((seen, part))
    asked = {queue_id: sum(seen.last.asked for seen, _ in hot[queue_id]) for queue_id in hot}
    for queue_id in sorted(hot, key=lambda each: (-asked[each], each)):
        queue = draft.fleet.queues[queue_id]
        if draft.is_changed(queue_id):
            continue
        parts = sorted(hot[queue_id], key=lambda each: (-each[0].last.asked, each[1].number))
        refused = _hindrance(draft, queue, parts)
        if refused is None:
            refused = _split(draft, queue, parts)
        if refused is not None:
            draft.refuse(Kind.SPLIT, queue_id, refused)


def split_warm(draft: Draft) -> None:
    """Split the warm queues of clusters that are far above the mean, the busiest first, until the
    rest is even enough. FIFO queues are not: all their parts would be replaced for it."""
    counted, mean = draft.counted, draft.history.mean
    for name in filter(draft.is_in_a_hurry, sorted(draft.history.far_since_ms)):
        why = reason(
            Why.WARM_QUEUE,
            asked=thresholds.WARM_PART,
            cluster=name,
            load=counted.load(name),
            mean=mean,
        )
        for load, queue, part in draft.parts_of(draft.fleet.clusters[name].shards):
            if load.asked < thresholds.WARM_PART or not thresholds.is_uneven(
                counted.load(name), mean
            ):
                break
            if _is_warm(draft, queue, part):
                refused = draft.hindrance(Kind.SPLIT, queue, (part,))
                refused = refused or _split_where_less_is(draft, queue, why)
                if refused is not None:
                    draft.refuse(Kind.SPLIT, queue.queue_id, refused)


def _is_warm(draft: Draft, queue: Queue, part: Part) -> bool:
    """True for a part whose queue can be split, and is not hot, which is another reason."""
    seen = draft.history.parts.get((queue.queue_id, part.number))
    if seen is None or seen.shard != part.shard or seen.hot >= thresholds.HOT_WINDOWS:
        return False
    if len(seen.lately) < thresholds.HOT_WINDOWS or min(seen.lately) < thresholds.WARM_PART:
        return False
    is_able = queue.can_split and not queue.is_fifo and len(queue.open_parts) <= _WARM_PARTS
    return is_able and not draft.is_changed(queue.queue_id)


def _split_where_less_is(draft: Draft, queue: Queue, why: Reason) -> Reason | None:
    """Parts go to clusters only that are no worse than uneven with them."""
    total, present = _asked(draft, queue), len(queue.open_parts)
    wanted = min(2 * present, max(present + 1, math.ceil(total / thresholds.PART_WANTED)))
    more = min(wanted, _most(queue), present + draft.budget) - present
    most = thresholds.UNEVEN * draft.history.mean
    while more > 0:
        share = total / (present + more)
        is_able = partial(draft.counted.has_room, asked=share, most=most)
        opens = draft.places(WantedParts(queue, share, more, queue.open_parts), is_able, most)
        if len(opens) == more:
            return _offer(draft, queue, opens, total, why)
        more = len(opens)  # fewer parts get more each, which needs other places
    return reason(Why.NO_ROOM, asked=total / wanted)


def _is_hot_for_long(seen: PartSeen) -> bool:
    return seen.hot >= thresholds.FIFO_HOT_WINDOWS and seen.last.asked >= thresholds.FIFO_SPLIT_AT


def _hindrance(draft: Draft, queue: Queue, parts: list[tuple[PartSeen, Part]]) -> Reason | None:
    if not queue.can_split:
        return _tell_owner(draft, queue, reason(Why.QUEUE_SCOPE))
    if (
        queue.is_fifo
        and (group := max(seen.last.top_group for seen, _ in parts)) > thresholds.GROUP_MAX
    ):
        return _tell_owner(draft, queue, reason(Why.ONE_GROUP, group=group))
    if _most(queue) <= len(queue.open_parts):
        why = reason(Why.PARTS_MAX, parts=len(queue.parts), most=PARTS_MAX)
        return _tell_owner(draft, queue, why)
    closing = queue.open_parts if queue.is_fifo else [part for _, part in parts]
    return draft.hindrance(Kind.SPLIT, queue, closing) or draft.still_given(queue, closing)


def _most(queue: Queue) -> int:
    """The most open parts that it could have; those that drain count as long as they do."""
    return PARTS_MAX - len(queue.parts) + (0 if queue.is_fifo else len(queue.open_parts))


def _tell_owner(draft: Draft, queue: Queue, why: Reason) -> Reason:
    draft.warn(queue.queue_id, why)
    return why


def _split(draft: Draft, queue: Queue, hot: list[tuple[PartSeen, Part]]) -> Reason | None:
    """No more parts than the load needs, and at most twice as many: that leaves a queue that asks
    for several loops hot until its next change, so it gets as many at once as none is hot with."""
    total = _asked(draft, queue)
    present = len(queue.open_parts)
    most = min(max(2 * present, _that_are_not_hot(draft, queue, total)), _most(queue))
    most = min(most, draft.budget + (0 if queue.is_fifo else present))
    wanted = min(most, max(present + 1, math.ceil(total / thresholds.PART_WANTED)))
    if queue.is_fifo:
        asked = {part: draft.asked_of(queue, part) for part in queue.open_parts}
        return draft.replace(Kind.SPLIT, queue, asked, wanted, _why(draft, *hot[0]))
    more = wanted - present
    opens = _places(draft, queue, hot[0], total / wanted, more)
    while len(opens) < more:  # fewer parts get more each, which needs other places
        more = len(opens)
        opens = _places(draft, queue, hot[0], total / (present + more), more)
    if not opens:
        return reason(Why.NO_ROOM, asked=total / wanted)
    return _offer(draft, queue, opens, total, _why(draft, *hot[0]))


def _offer(
    draft: Draft, queue: Queue, opens: Sequence[int], total: float, why: Reason
) -> Reason | None:
    share = total / (len(queue.open_parts) + len(opens))
    return draft.offer(
        Change(
            kind=Kind.SPLIT,
            reason=why,
            account=queue.account,
            queue=queue.queue_id,
            version=queue.version,
            leaves=tuple(part.shard for part in queue.open_parts),
            opens=tuple(opens),
            taken=tuple(max(0.0, draft.asked_of(queue, part) - share) for part in queue.open_parts),
            given=(share,) * len(opens),
        )
    )


def _that_are_not_hot(draft: Draft, queue: Queue, total: float) -> int:
    """The number of parts of which none is hot, on a busy shard either: the one with the busiest
    group has that and its part of the rest."""
    parts = queue.open_parts if queue.is_fifo else ()
    group = max((draft.top_group_of(queue, part) for part in parts), default=0.0)
    rest = thresholds.HOT_PART - group
    return math.floor((total - group) / rest) + 1 if rest > 0 else PARTS_MAX


def _places(
    draft: Draft, queue: Queue, hottest: tuple[PartSeen, Part], asked: float, count: int
) -> list[int]:
    """A queue that asks for several loops may fit nowhere, even in parts, or only in too few of
    them. It goes where less is asked then than on its shard now, or it would stay there as it is.
    """
    seen, part = hottest
    most = max(thresholds.STOP_AT, draft.counted.shard(part.shard) - asked / 2)
    return draft.spread(WantedParts(queue, asked, count, queue.open_parts), seen.last.asked, most)


def _asked(draft: Draft, queue: Queue) -> float:
    """The load of all parts together."""
    return sum(draft.asked_of(queue, part) for part in queue.open_parts)


def _why(draft: Draft, seen: PartSeen, part: Part) -> Reason:
    if seen.last.asked >= thresholds.SPLIT_AT:
        return reason(Why.HOT_QUEUE, asked=thresholds.SPLIT_AT)
    loop = draft.history.shards[part.shard].asked
    return reason(Why.HOT_SHARD, loop=loop, asked=seen.last.asked)
