"""LogRetention: what a shard's log keeps while other hosts fetch checkpoints (rule 32).

Under load a bound may be too small for a fetch. So a host whose hold ended too soon gets twice as
much with the next one, as long as the disk has much space: at some size the log still reaches back
to the rows when they are there, and when the host has caught up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import structlog


class RetentionLimits(NamedTuple):
    """Bounds of a host's first hold."""

    silence_s: float = 60.0
    """It ends so long after the other host's last word."""
    life_s: float = 3600.0
    """Nor is the log behind one Entry kept for longer."""
    bytes_max: int = 1 << 30
    """Nor more of the log."""


@dataclass(slots=True)
class _Hold:
    index: int
    begun_s: float
    renewed_s: float
    times: int
    """Its bounds are those of a first hold, times this."""
    is_over: bool = False
    has_ended: bool = False
    """True if the log behind it was not kept at some time."""


class LogRetention:
    """The part of a shard's log that other hosts need. Pass what is to be released through
    `limit`."""

    def __init__(
        self,
        monotonic_s: Callable[[], float],
        has_much_space: Callable[[], bool],
        limits: RetentionLimits | None = None,
    ) -> None:
        """`has_much_space`: false while no hold gets more than the first, as unused log space never
        shrinks."""
        self._monotonic_s = monotonic_s
        self._limits = limits or RetentionLimits()
        self._has_much_space = has_much_space
        self._holds: dict[str, _Hold] = {}
        """By host. One that ended is known for some time: the next one is larger."""
        self._log = structlog.get_logger("holds")

    def hold(self, host: str, index: int) -> None:
        """Keep the log behind this Entry for a host; each call renews it."""
        now_s = self._monotonic_s()
        held = self._holds.get(host)
        if held is None or held.index != index:
            self._holds[host] = _Hold(index, now_s, now_s, self._times(host, held))
        else:
            held.renewed_s = now_s

    def _times(self, host: str, before: _Hold | None) -> int:
        if before is None:
            return 1
        if not before.has_ended or not self._has_much_space():
            return before.times
        times = 2 * before.times
        self._log.info(
            "log_held_longer",
            host=host,
            bytes_max=times * self._limits.bytes_max,
            means="the log was gone when this host had fetched rows; more of it is kept now",
        )
        return times

    def end(self, host: str) -> None:
        """The host needs nothing any more."""
        self._holds.pop(host, None)

    def limit(self, index: int, bytes_above: Callable[[int], int]) -> int:
        """The index up to which the log may be released.

        `bytes_above` gives the bytes of the log behind an Entry.
        """
        now_s, limits = self._monotonic_s(), self._limits
        has_much_space = self._has_much_space()
        for host, held in list(self._holds.items()):
            times = held.times if has_much_space else 1
            silent_s = now_s - held.renewed_s
            is_old = now_s - held.begun_s > times * limits.life_s
            if silent_s > held.times * limits.life_s:
                del self._holds[host]
            elif silent_s > times * limits.silence_s:
                held.has_ended = True
            elif is_old or bytes_above(held.index) > times * limits.bytes_max:
                held.is_over = held.has_ended = True  # else the next word would renew it
            elif not held.is_over:
                index = min(index, held.index)
        return index
