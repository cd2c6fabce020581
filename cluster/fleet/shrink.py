"""Fewer parts for queues that have asked for little in half an hour. Pure.

Never because little was *served*: a part that has become slow serves little, and would become
slower with more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from cluster.fleet.draft import Draft
from cluster.fleet.load_history import WATCHED_MINUTES
from cluster.fleet.plan_table import Change, Kind, Part, Queue
from cluster.fleet.reasons import Reason, Why, reason
from cluster.fleet.thresholds import FIFO_SHRINK_BELOW, SHRINK_BELOW, SPLIT_AT

AT_ONCE_SHARE, AT_ONCE_MAX = 0.10, 8
_DAY_MS, _HOUR_MS = 86_400_000, 3_600_000


def shrink(draft: Draft) -> None:
    """Take parts away from idle queues; they are drained into those that stay. Those of a FIFO
    queue are all replaced, by half as many.

    A queue that is busy is not wanted smaller, so nothing is said of it.
    """
    for queue_id in sorted(draft.fleet.split):
        queue = draft.fleet.queues.get(queue_id)
        if queue is None or draft.is_changed(queue_id) or len(queue.open_parts) < 2:
            continue
        maxima = {part: _greatest(draft, queue, part) for part in queue.open_parts}
        if max(asked for _, asked in maxima.values()) >= SHRINK_BELOW:
            continue
        asked = {part: asked for part, (_, asked) in maxima.items()}
        leaving = _of_fifo(asked) if queue.is_fifo else _of_standard(draft, queue, asked)
        if not leaving:
            continue
        refused = _hindrance(draft, queue, leaving, {p: m for p, (m, _) in maxima.items()})
        if refused is None:
            refused = _shrink(draft, queue, leaving, asked)
        if refused is not None:
            draft.refuse(Kind.SHRINK, queue_id, refused)


def _greatest(draft: Draft, queue: Queue, part: Part) -> tuple[int, float]:
    """Minutes with a report, and the most that was asked in half an hour."""
    seen = draft.history.parts.get((queue.queue_id, part.number))
    return seen.greatest(draft.now_ms) if seen is not None else (0, 0.0)


def _of_standard(draft: Draft, queue: Queue, asked: dict[Part, float]) -> list[Part]:
    """Those that lie with others in one cluster, then those beyond the account's hand, then the
    idlest, if the parts that stay can carry all: at most a tenth of them at once."""
    total = sum(asked.values())
    most = max(1, min(int(AT_ONCE_SHARE * len(asked)), AT_ONCE_MAX))
    leave = next(
        (n for n in range(min(most, len(asked) - 1), 0, -1) if _fits(total, len(asked) - n)), 0
    )
    able = [part for part in asked if part.number != queue.home]
    cluster_of = draft.fleet.cluster_of
    has = Counter(cluster_of.get(part.shard) for part in asked)
    able.sort(
        key=lambda part: (
            -has[cluster_of.get(part.shard)],
            not draft.is_beyond(queue.account, part.shard),
            asked[part],
            -part.number,
        )
    )
    return able[:leave]


def _fits(total: float, parts: int) -> bool:
    return total / parts < SHRINK_BELOW


def _of_fifo(asked: dict[Part, float]) -> list[Part]:
    """All parts, if half as many new ones can carry everything."""
    return [*asked] if sum(asked.values()) / _half(asked) < FIFO_SHRINK_BELOW else []


def _half(parts: Collection[Part]) -> int:
    return (len(parts) + 1) // 2


def _hindrance(
    draft: Draft, queue: Queue, leaving: list[Part], minutes: dict[Part, int]
) -> Reason | None:
    left = _half(leaving) if queue.is_fifo else len(queue.open_parts) - len(leaving)
    peaks = draft.history.peaks
    days, peak = peaks.kept_ms / _DAY_MS, peaks.of(queue.name, draft.now_ms)
    if peak / left >= SPLIT_AT:
        return reason(Why.BUSY_LATELY, asked=peak, days=days)
    if unknown_ms := peaks.unknown_ms(draft.now_ms):
        return reason(Why.PEAKS_UNKNOWN, days=days, hours=unknown_ms / _HOUR_MS)
    for part, seen in minutes.items():
        if seen < WATCHED_MINUTES:
            return reason(Why.UNSEEN, part=part.number, minutes=seen)
    for part in leaving:
        messages = draft.history.parts[queue.queue_id, part.number].last.messages
        if messages:
            return reason(Why.BACKLOG, part=part.number, messages=messages)
    return draft.hindrance(Kind.SHRINK, queue, queue.open_parts) or draft.still_given(
        queue, leaving
    )


def _shrink(
    draft: Draft, queue: Queue, leaving: list[Part], asked: dict[Part, float]
) -> Reason | None:
    why = reason(Why.IDLE_PARTS, asked=max(asked.values()))
    if queue.is_fifo:
        return draft.replace(Kind.SHRINK, queue, asked, _half(asked), why)
    taken = tuple(asked[part] for part in leaving)
    stay = [part.shard for part in queue.open_parts if part not in leaving]
    cluster_of, share = draft.fleet.cluster_of, sum(taken) / len(stay)
    for shard in stay:
        if not draft.counted.has_room(cluster_of.get(shard, ""), share):
            return reason(Why.NO_ROOM, asked=share)
    return draft.offer(
        Change(
            kind=Kind.SHRINK,
            reason=why,
            account=queue.account,
            queue=queue.queue_id,
            version=queue.version,
            drains=tuple(part.number for part in leaving),
            leaves=tuple(part.shard for part in leaving),
            taken=taken,
        )
    )
