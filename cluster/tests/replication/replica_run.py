"""Running one seed: live with faults, end well, judge."""

from __future__ import annotations

import asyncio
import hashlib
import traceback
from random import Random
from typing import Any, NamedTuple

import structlog

from cluster.tests.replication.cluster import Cluster
from cluster.tests.replication.replica_faults import Faults
from cluster.tests.virtual_time import VirtualLoop

_CLIENTS = 3
_STEPS = 40
_PATIENCE_S = 1_000.0


class Outcome(NamedTuple):
    """The result of a seed."""

    findings: list[str]
    lines: list[str]
    """The history, for a replay to show."""
    lives: int
    """Of all hosts together."""
    summary: str

    @property
    def digest(self) -> str:
        """The same for the same seed."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()[:16]


class Shape(NamedTuple):
    """Kind of a run; usually drawn from the seed."""

    size: int = 3
    often: tuple[str, ...] = ()
    """Faults that come more often than others."""
    batch_bytes: int | None = None


def simulate(seed: int, shape: Shape | None = None) -> Outcome:
    """Run one seed to its end; three hosts, or five in one seed of four.

    With a `shape` it is another history.
    """
    random = Random(seed)
    drawn = 5 if random.random() < 0.25 else 3
    segment_bytes = random.choice((12 << 10, 24 << 10))
    size = shape.size if shape is not None else drawn
    cluster = Cluster(Random(random.getrandbits(64)), size, segment_bytes)
    if shape is not None and shape.batch_bytes is not None:
        cluster.timing = cluster.timing._replace(batch_bytes=shape.batch_bytes)
    loop = VirtualLoop()
    loop.set_exception_handler(_reporter(cluster))
    with structlog.testing.capture_logs() as logged:
        cluster.logged = logged
        try:
            loop.run_until_complete(_live(cluster, random, shape or Shape()))
        finally:
            _end(loop)
    record = cluster.record
    cluster.lines.append(f"findings: {record.findings}")
    summary = (
        f"{record.acknowledged} acknowledged, {record.answered_reads} reads, "
        f"{len(record.served)} leaderships, {cluster.checkpoints} checkpoints"
    )
    lives = sum(host.lives for host in cluster.hosts.values())
    return Outcome(record.findings, cluster.lines, lives, summary)


async def _live(cluster: Cluster, random: Random, shape: Shape) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        cluster.start()
        faults = Faults(cluster, Random(random.getrandbits(64)), shape.often)
        pause_s = random.choice((0.1, 0.5, 1.0))
        clients = [
            cluster.work(Random(random.getrandbits(64)), _STEPS, pause_s) for _ in range(_CLIENTS)
        ]
        await asyncio.gather(faults.run(random.choice((10, 20, 40))), *clients)
        await cluster.end_well()


def _reporter(cluster: Cluster) -> Any:
    def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None:  # a task of a crashed host, which goes with the garbage at some time
            return
        frames = traceback.extract_tb(error.__traceback__)[-4:]
        where = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
        cluster.record.find(f"{context['message']}: {error!r} in {where}")

    return report


def _end(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what is left."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.set_exception_handler(lambda loop, context: None)
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.close()
