"""Faults of a simulation, drawn from its seed: crashes, a disk that fails, a clock that stands or
leaps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from cluster.tests.simulation.simulation import Simulation

_PAUSES_S = ((0.003, 0.02, 0.3, 3.0), (0.3, 3.0, 10.0))
"""Between two faults; some seeds are calmer, so that the log is used again and again in one
life."""
_SHORT_PAUSES_S = (0.001, 0.003, 0.01)
_CLOCK_LEAP_S = 7_200.0


class Faults:
    """Causes one fault after the other."""

    def __init__(self, simulation: Simulation, random: Random, *, only_crashes: bool) -> None:
        self._simulation = simulation
        self._disk = simulation.machine.disk
        self._random = random
        kinds: list[Callable[[], None]] = [
            self._cut_in_a_call,
            self._crash_at_an_answer,
            self._crash,
            self._fail_syncs,
            self._write_short,
            self._fill_the_disk,
            self._fail_flushes,
            self._slow_down,
            self._set_the_clock,
        ]
        often = random.sample(kinds, 3)
        self._kinds = kinds[:3] if only_crashes else kinds + often * 3
        if only_crashes:
            self._disk.sync_s = (0.001, 0.02)
        self._pauses_s = _SHORT_PAUSES_S if only_crashes else random.choice(_PAUSES_S)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(self._random.choice(self._pauses_s) * self._random.random())
            if self._random.random() < 0.05:
                await self._simulation.stop_cleanly()
            else:
                self._random.choice(self._kinds)()

    def end(self) -> None:
        """Let nothing go wrong any more."""
        disk = self._disk
        disk.failing_syncs = disk.short_writes = 0
        disk.is_full = False
        disk.calls_until_cut = None
        disk.sync_s = (0.0001, 0.002)
        self._simulation.answers_until_crash = None
        for shard in self._simulation.machine.shards:
            shard.files.failing_flushes = 0
        self._simulation.machine.wall.go_on()

    def _note(self, text: str) -> None:
        self._simulation.note(text)

    # -- crashes -----------------------------------------------------------------------------------

    def _cut_in_a_call(self) -> None:
        self._disk.calls_until_cut = self._random.choice((0, 1, 2, 5, 20))

    def _crash_at_an_answer(self) -> None:
        self._simulation.answers_until_crash = self._random.randint(1, 10)
        self._simulation.is_power_loss = self._random.random() < 0.7

    def _crash(self) -> None:
        self._simulation.crash(is_power_loss=self._random.random() < 0.7)

    # -- the disk ----------------------------------------------------------------------------------

    def _fail_syncs(self) -> None:
        self._disk.failing_syncs = self._random.choice((1, 1, 3))
        if self._random.random() < 0.5:
            self._crash_at_an_answer()
        self._note("syncs fail")

    def _write_short(self) -> None:
        self._disk.short_writes = 1
        self._note("a write is short")

    def _fill_the_disk(self) -> None:
        self._disk.is_full = not self._disk.is_full
        self._note(f"disk full: {self._disk.is_full}")

    def _fail_flushes(self) -> None:
        failing = self._random.randint(1, 3)
        for shard in self._simulation.machine.shards:
            shard.files.failing_flushes = failing
        self._note("flushes fail")

    def _slow_down(self) -> None:
        self._disk.sync_s = self._random.choice(((0.0001, 0.002), (0.001, 0.02), (0.0001, 0.3)))
        self._note(f"syncs take {self._disk.sync_s}")

    # -- the clock ---------------------------------------------------------------------------------

    def _set_the_clock(self) -> None:
        wall = self._simulation.machine.wall
        kind = self._random.randrange(3)
        if kind == 0:
            wall.ahead_s += self._random.uniform(-_CLOCK_LEAP_S, _CLOCK_LEAP_S)
        elif kind == 1:
            wall.stand()
        else:
            wall.go_on()
        self._note("the clock was set")
