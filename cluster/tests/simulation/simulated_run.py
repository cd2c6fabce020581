"""Running one seed: live, drain, judge."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from random import Random
from types import ModuleType
from typing import Any, NamedTuple

import structlog

from cluster.tests.simulation.extras import drawn_extras, roles_of
from cluster.tests.simulation.simulated_drain import drain
from cluster.tests.simulation.simulated_faults import Faults
from cluster.tests.simulation.simulated_queues import Extra, define_queues
from cluster.tests.simulation.simulated_roles import alike_roles, mixed_roles, work
from cluster.tests.simulation.simulated_worker import Machine
from cluster.tests.simulation.simulation import Simulation
from cluster.tests.virtual_time import VirtualLoop
from compat_tests.faults.judge import judge
from storage.tests.simulated_disk import PowerCut
from visibility.contract.model import QueueCounters
from visibility.rules import (
    closing_parts,
    dead_letters,
    departures,
    group_transfers,
    move_steps,
    pulse,
    transfers,
)

STEPS = 20
"""Steps of each client."""
_ALIKE = 0.1
"""Chance of a seed with messages of one size."""
_BUGS = ("append_failed", "turn_failed", "decision_failed", "pulse_failed", "answer_failed")
"""Lines of the log about bugs of ours, whatever the disk did."""
_WHATEVER_IS_LOST = ("wrong message", "wrong counters")
"""Rules that hold even when Entries were lost."""
_PATIENCE_S = 100_000.0
_STEP_MESSAGES = 10
_LESS: tuple[tuple[ModuleType, str, int], ...] = (
    (dead_letters, "MOVES_MAX", _STEP_MESSAGES),
    (move_steps, "CHUNK_MESSAGES", _STEP_MESSAGES),
    (transfers, "STEP_MESSAGES", _STEP_MESSAGES),
    (group_transfers, "STEP_MESSAGES", 2),
    (departures, "PAGE_MESSAGES", _STEP_MESSAGES),
    (pulse, "STEP_MESSAGES", _STEP_MESSAGES),
    (closing_parts, "RETRIES_OVER_MS", 60_000),
)
"""Bounds of a decision, which must fit into an Entry of the simulation's small segments, and of a
time that is longer than any retry here."""


class Shape(NamedTuple):
    """Kind of a run; usually drawn from the seed."""

    under_way_max: int = 4
    is_alike: bool = False
    """Messages of one size, and crash after crash: an Entry may end where a forgotten one did."""

    flips: bool = False
    """Bits of the log flip."""
    shards: int = 1
    extras: Collection[Extra] = ()


class Outcome(NamedTuple):
    """The result of a seed."""

    findings: list[str]
    lines: list[str]
    """The history, for a replay to show."""
    lives: int
    summary: str
    has_loss: bool = False
    """A start reported that Entries are lost."""

    @property
    def digest(self) -> str:
        """The same for the same seed."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()[:16]


def simulate(seed: int, shape: Shape | None = None) -> Outcome:
    """Run one seed to its end; with another `shape` it is another history."""
    random = Random(seed)
    drawn = Shape(random.choice((1, 4)), random.random() < _ALIKE, shards=random.choice((1, 2, 3)))
    shape = shape or drawn._replace(extras=drawn_extras(seed))
    machine = Machine(
        Random(random.getrandbits(64)), under_way_max=shape.under_way_max, shards=shape.shards
    )
    machine.flips, machine.part_seed = shape.flips, seed
    loop = VirtualLoop()
    loop.set_exception_handler(reporter(machine.violations))
    with watched_log(machine.violations), small_steps():
        try:
            simulation = Simulation(machine)
            define_queues(machine, simulation.history, shape.extras)
            faults = Faults(simulation, Random(random.getrandbits(64)), only_crashes=shape.is_alike)
            chance = Random(random.getrandbits(64))
            crosses = shape.shards > 1
            roles = alike_roles() if shape.is_alike else mixed_roles(chance, crosses=crosses)
            roles += roles_of(shape.extras)
            story = _live(simulation, faults, work(simulation, chance, roles, STEPS))
            try:
                loop.run_until_complete(story)
            except (AssertionError, TimeoutError, ExceptionGroup) as error:
                machine.violations.append(told(error))
            finally:
                end_loop(loop)
        finally:
            loop.close()
    findings = list(machine.violations)
    if not findings:
        verdict = judge(simulation.history, excuses_faults=True)
        findings = verdict.broken()
        if machine.has_loss:  # it was reported; a delete or a lease may be lost
            findings = [str(each) for each in verdict.violations if each.rule in _WHATEVER_IS_LOST]
    simulation.lines.append(f"findings: {findings}")
    flushes = sum(shard.files.flushes for shard in machine.shards)
    summary = f"{simulation.lives} lives, {flushes} flushes, {simulation.history.summary()}"
    return Outcome(findings, simulation.lines, simulation.lives, summary, machine.has_loss)


async def _live(
    simulation: Simulation, faults: Faults, clients_work: Coroutine[Any, Any, None]
) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        life = asyncio.create_task(simulation.supervise())
        trouble = asyncio.create_task(faults.run())
        clients = asyncio.create_task(clients_work)
        await asyncio.wait([life, trouble, clients], return_when=asyncio.FIRST_COMPLETED)
        for task in (clients, life, trouble):
            if task.done():
                task.result()
        trouble.cancel()
        await asyncio.gather(trouble, return_exceptions=True)
        faults.end()
        draining = asyncio.create_task(_end_well(simulation))
        await asyncio.wait([life, draining], return_when=asyncio.FIRST_COMPLETED)
        for task in (life, draining):
            if task.done():
                task.result()


async def _end_well(simulation: Simulation) -> None:
    """Crash once more and drain; then stop cleanly, and start on the result."""
    simulation.crash(is_power_loss=True)
    await drain(simulation)
    assert simulation.worker is not None
    simulation.worker.check()
    simulation.worker.check_end()
    await simulation.stop_cleanly()
    await asyncio.sleep(10)
    assert simulation.worker is not None
    simulation.worker.check()
    counted = simulation.worker.router.counters()
    left = [
        counted[queue_id] for queue_id in simulation.machine.queues.queues if queue_id in counted
    ]
    assert all(each == QueueCounters(0, 0, 0) for each in left), f"a clean stop left {left}"


_ENDINGS_MAX = 10


def end_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the rest, which belongs to ended lives, and what it begins when it is cancelled."""
    loop.set_exception_handler(lambda loop, context: None)
    for _ in range(_ENDINGS_MAX):
        tasks = asyncio.all_tasks(loop)
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks, timeout=1))


def reporter(violations: list[str]) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not isinstance(error, PowerCut):
            violations.append(told(error))

    return report


def told(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = (
        ""
        if place is None
        else f" ({place.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{place.tb_lineno})"
    )
    return f"{type(error).__name__}{where}: {error}"


@contextmanager
def small_steps() -> Iterator[None]:
    """Bound decisions as the segments are."""
    before = [(module, name, getattr(module, name)) for module, name, _ in _LESS]
    for module, name, value in _LESS:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


@contextmanager
def watched_log(violations: list[str]) -> Iterator[None]:
    """Suppresses all output; lines about bugs become findings."""

    def watch(
        logger: Any, method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        if event.get("event") in _BUGS:
            given = event.get("exc_info")
            error = given if isinstance(given, BaseException) else sys.exc_info()[1]
            if not isinstance(error, PowerCut):
                violations.append(f"{event['event']}: {'' if error is None else told(error)}")
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[watch], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)
