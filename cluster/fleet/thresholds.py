"""The figures of the plan, each with its distance to the one that ends what it began. Pure.

One threshold alone flaps: what is moved away because a cluster is above it falls below it, and
comes back.
"""

from __future__ import annotations

from collections.abc import Mapping

from cluster.fleet.loads import PartLoad, ShardLoad

ASSIGN_BELOW, STOP_AT = 0.70, 0.80
"""A cluster takes parts until its load is at STOP_AT, and again once it is below ASSIGN_BELOW."""
RELIEVE_ABOVE = 0.85
SUSTAINED_MS = 600_000
"""Parts are moved away from what was above RELIEVE_ABOVE all this time, until it is at STOP_AT."""
UNEVEN, UNEVEN_FLOOR = 1.12, 0.25
"""A cluster with this many times the mean load, if not idle, gives parts to others."""
UNEVEN_MS = 180_000
"""So it does after this time: bursts last minutes."""
FAR, FAR_MS = 1.25, 60_000
"""With this many times the mean load it does so sooner, and its warm queues are split."""

SPLIT_AT = 0.50
"""Share of a loop that makes a part hot."""
HOT_SHARD, HOT_PART = 0.80, 0.40
"""So is a part that asks for HOT_PART of a loop on a shard that is busier than HOT_SHARD."""
WARM_PART = 0.4 * SPLIT_AT
"""Share of a loop that makes a part warm: reason enough to split its queue in a cluster far above
the mean, since parts of it go at once to many others, and whole parts two at a time."""
HOT_WINDOWS = 3
PART_WANTED = 0.30
"""The share of a loop for which parts are made."""
GROUP_MAX = 0.60
"""A FIFO part whose busiest group has more of its load is not split: the group stays whole."""
FIFO_SPLIT_AT, FIFO_HOT_WINDOWS = 0.60, 6
"""A part of a FIFO queue is hot for so long, and asks for so much at the end: all parts are
replaced then, and each group waits until its old part has none of its messages."""
SHRINK_BELOW = SPLIT_AT / 2
"""A part asks for less after a shrink, by the maxima of half an hour."""
FIFO_SHRINK_BELOW = 0.15
"""The same for a FIFO queue."""

KEPT_MS = 7 * 86_400_000
"""A queue keeps the parts that it needed within this time: what has its hour has it again the next
day, or after a weekend, and who shrinks it may not split it for an hour. A part that is asked for
nothing costs next to nothing."""
CALM_MS = 600_000
"""A queue is changed once in this time."""
UNDO_MS = 3_600_000
"""No change is undone within this time."""
TRANSFERS_MAX = 2
"""Parts that leave a cluster, and that come to it, at once."""
DEAF_WINDOWS = 6
"""A planner that hears less than half of the hosts for so long gives its key up. Its own clock, or
its way to the records, is more likely at fault than half of the fleet."""
SILENT_MS = 900_000
"""A cluster that does not report for longer is worth a warning. It may heal itself before."""


def full_clusters(before: frozenset[str], loads: Mapping[str, float]) -> frozenset[str]:
    """The clusters that take no new parts, from those before and the loads of those that report."""
    return frozenset(
        name
        for name, load in loads.items()
        if load >= STOP_AT or (load >= ASSIGN_BELOW and name in before)
    ) | (before - loads.keys())


def is_hot(shard: ShardLoad, part: PartLoad) -> bool:
    """True if this part was worth a split in this window."""
    return part.asked >= SPLIT_AT or (shard.asked > HOT_SHARD and part.asked >= HOT_PART)


def is_uneven(load: float, mean: float) -> bool:
    """True if a cluster with this load should give parts to others."""
    return load >= UNEVEN_FLOOR and load > UNEVEN * mean


def is_far(load: float, mean: float) -> bool:
    """True if a cluster has so much more than the mean that it is in a hurry."""
    return load >= UNEVEN_FLOOR and load > FAR * mean
