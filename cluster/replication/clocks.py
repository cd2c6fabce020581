"""Clocks: finds the wall clocks that are too far off to lead with (rule 29), and logs each of them
once."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

import structlog


class Clocks:
    """Part of a replica."""

    def __init__(self, off_max_s: float, logger: structlog.stdlib.BoundLogger) -> None:
        """A clock that is further than `off_max_s` from another is off."""
        self._off_max_s = off_max_s
        self._logger = logger
        self._far: set[str] = set()
        """Peers whose clocks were found to be far from this one."""
        self.behind_s = 0.0
        """Seconds by which this clock was behind the voters' median when that was last looked at
        and too much to lead; else 0."""

    def is_off(self, ahead_s: Iterable[float]) -> bool:
        """True if this clock is too far from the median of its own and those of voters that are so
        far ahead of it: then this host does not lead."""
        off_s = median([0.0, *ahead_s])
        was_off, is_off = bool(self.behind_s), abs(off_s) > self._off_max_s
        self.behind_s = off_s if is_off else 0.0
        if is_off and not was_off:
            self._logger.warning(
                "clock_is_off",
                behind_s=round(off_s, 1),
                means="this host does not lead while its clock is that far from the median of "
                "those of all hosts that run",
                action="compare the clocks of these hosts, and set the wrong one",
            )
        return is_off

    def forget(self) -> None:
        """Too few hosts answer to tell which clock is off."""
        self.behind_s = 0.0

    def is_near(self, ahead_s: float | None) -> bool:
        """True if a peer's clock is known not to be too far from this one."""
        return ahead_s is not None and abs(ahead_s) <= self._off_max_s

    def heard(self, name: str, ahead_s: float) -> None:
        """A peer's clock was compared with this leader's."""
        if self.is_near(ahead_s):
            self._far.discard(name)
        elif name not in self._far:
            self._far.add(name)
            self._logger.warning(
                "peer_clock_is_off",
                host=name,
                ahead_s=round(ahead_s, 1),
                means="that host gets no shard to lead",
                action=f"set the clock of host {name}",
            )
