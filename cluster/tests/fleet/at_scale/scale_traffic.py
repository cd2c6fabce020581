"""Traffic: skewed and moving. It says what is asked of each queue, and keeps sums by shard.

Few queues have most of the load. Each account has its day, queues have hours in which much more is
asked of them, and what is busy changes. A queue that asks for little now is only a part of its
shard's sum, so that a step costs what the few busy ones cost.
"""

from __future__ import annotations

import math
import random

from cluster.fleet.plan_table import RANGE_END, Part, PartState, Queue

PHASES = 8
_TRACKED = 0.003
"""A queue that asks for less has no bursts."""
SAID_FROM = 0.01
"""The share of a loop from which a part may be reported."""
_WAVE = 0.4
"""Share by which a day's greatest load exceeds its mean."""
_SUMMED = SAID_FROM / (1 + _WAVE)
"""A queue in one part that asks for less, without a burst, is in its shard's sum only."""
_DAY_S = 86_400


class QueueTraffic:
    """The traffic of one queue."""

    __slots__ = (
        "base",
        "burst",
        "group",
        "group_at",
        "is_summed",
        "phase",
        "queue",
        "since_s",
        "until_s",
    )

    def __init__(self, queue: Queue, base: float, phase: int, group: float, group_at: int) -> None:
        self.queue = queue
        """As it is now."""
        self.is_summed = False
        self.base = base
        self.phase = phase
        self.group = group
        """Share of its busiest message group, which has the hash `group_at`."""
        self.group_at = group_at
        self.burst = 1.0
        self.until_s = 0.0
        self.since_s = 0.0
        """The time of its last change."""


class Traffic:
    """The load that is asked for, at a time that is given with each step."""

    def __init__(self, bursts_a_day: float, chance: random.Random) -> None:
        """`bursts_a_day` are those of each busy queue."""
        self._bursts_a_day = bursts_a_day
        self._chance = chance
        self._queues: dict[str, QueueTraffic] = {}
        self.busy: dict[str, QueueTraffic] = {}
        """Those that have bursts."""
        self.followed: dict[str, QueueTraffic] = {}
        """Those that are in no sum now."""
        self._sums: dict[int, list[float]] = {}
        self._bursting: list[QueueTraffic] = []
        self.waves = [1.0] * PHASES
        self._step(0.0)

    def add(self, queue: Queue, base: float) -> None:
        """A queue with this mean load, in shares of a loop."""
        chance = self._chance
        group = 0.0
        if queue.is_fifo:
            group = chance.uniform(0.62, 0.9) if chance.random() < 0.05 else chance.uniform(0, 0.3)
        phase = hash_of(queue.account) % (3 * PHASES) // 3
        traffic = QueueTraffic(queue, base, phase, group, chance.randrange(RANGE_END))
        self._queues[queue.queue_id] = traffic
        if base >= _TRACKED:
            self.busy[queue.queue_id] = traffic
        self._place(queue, traffic)

    def moved(self, after: Queue) -> None:
        """The parts of a queue changed."""
        self._place(after, self._queues[after.queue_id])

    def _place(self, queue: Queue, traffic: QueueTraffic) -> None:
        """The queue counts in the sums of its shards, or is followed."""
        if traffic.is_summed:
            self._add_to_sum(traffic.queue, traffic, -traffic.base)
        traffic.queue = queue
        asks_little = traffic.base < _SUMMED and traffic.burst == 1.0 and len(queue.parts) == 1
        traffic.is_summed = traffic.base < _TRACKED or asks_little
        if traffic.is_summed:
            self._add_to_sum(queue, traffic, traffic.base)
            self.followed.pop(queue.queue_id, None)
        else:
            self.followed[queue.queue_id] = traffic

    def step(self, now_s: float, step_s: float) -> None:
        """Time passes: days go on, some queues become busy, others are done."""
        self._step(now_s)
        for traffic in [each for each in self._bursting if each.until_s <= now_s]:
            self._bursting.remove(traffic)
            traffic.burst, traffic.since_s = 1.0, now_s
            self._place(traffic.queue, traffic)
        chance = self._chance
        begins = len(self.busy) * self._bursts_a_day * step_s / _DAY_S
        names = list(self.busy) if begins >= 1 or chance.random() < begins else []
        for _ in range(max(1, round(begins)) if names else 0):
            traffic = self.busy[chance.choice(names)]
            if traffic.burst == 1.0:
                traffic.burst = min(
                    chance.choice((0.2, 2.0, 3.0, 8.0)), max(1.2, 2.0 / traffic.base)
                )
                traffic.since_s = now_s
                traffic.until_s = now_s + chance.uniform(300, 5400)
                self._bursting.append(traffic)
                self._place(traffic.queue, traffic)

    def _step(self, now_s: float) -> None:
        self.waves = [
            1.0 + _WAVE * math.sin(2 * math.pi * (now_s / _DAY_S + phase / PHASES))
            for phase in range(PHASES)
        ]

    def of_queue(self, traffic: QueueTraffic) -> float:
        """The load of a queue now, in shares of a loop."""
        return traffic.base * traffic.burst * self.waves[traffic.phase]

    def of_parts(self, queue: Queue, traffic: QueueTraffic) -> list[tuple[Part, float, float]]:
        """The load of each open part, and its busiest group's share of it."""
        total = self.of_queue(traffic)
        if len(queue.parts) == 1:
            return [(queue.parts[0], total, traffic.group)]
        parts = queue.open_parts
        if not queue.is_fifo:
            return [(part, total / len(parts), 0.0) for part in parts]
        found = []
        for part in parts:
            share = (1 - traffic.group) * (part.high - part.low) / RANGE_END
            group = traffic.group if part.low <= traffic.group_at < part.high else 0.0
            found.append((part, total * (share + group), group / (share + group)))
        return found

    def others(self, shard: int) -> float:
        """The load of all queues of a shard that ask for little."""
        sums = self._sums.get(shard)
        if sums is None:
            return 0.0
        return sum([base * wave for base, wave in zip(sums, self.waves, strict=True)])

    def _add_to_sum(self, queue: Queue, traffic: QueueTraffic, base: float) -> None:
        parts = [part for part in queue.parts if part.state is PartState.OPEN]
        for part in parts:
            sums = self._sums.setdefault(part.shard, [0.0] * PHASES)
            sums[traffic.phase] += base / len(parts)


def hash_of(text: str) -> int:
    """The same in every process, unlike `hash`."""
    found = 0
    for each in text.encode():
        found = (found * 131 + each) % (1 << 61)
    return found


def skewed(count: int, total: float, greatest: float, chance: random.Random) -> list[float]:
    """Loads with a heavy tail that add up to about `total`; none is above `greatest`."""
    drawn = [chance.paretovariate(1.05) for _ in range(count)]
    for _ in range(4):
        factor = total / sum(drawn)
        drawn = [min(each * factor, greatest) for each in drawn]
    return drawn
