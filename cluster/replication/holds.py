"""Holds: the part of a shard's log that is kept while other hosts fetch checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class HoldLimits(NamedTuple):
    """Bounds of a hold."""

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
    heard_s: float
    is_over: bool = False


class LogHolds:
    """Of one shard, on one host. Pass what is to be released through `limit`."""

    def __init__(self, monotonic_s: Callable[[], float], limits: HoldLimits | None = None) -> None:
        self._monotonic_s = monotonic_s
        self._limits = limits or HoldLimits()
        self._holds: dict[str, _Hold] = {}
        """By host."""

    def hold(self, host: str, index: int) -> None:
        """Keep the log behind this Entry for a host; each call renews it."""
        now_s = self._monotonic_s()
        held = self._holds.get(host)
        if held is None or held.index != index:
            self._holds[host] = _Hold(index, now_s, now_s)
        else:
            held.heard_s = now_s

    def end(self, host: str) -> None:
        """The host needs nothing any more."""
        self._holds.pop(host, None)

    def limit(self, index: int, bytes_above: Callable[[int], int]) -> int:
        """The index up to which the log may be released.

        `bytes_above` gives the bytes of the log behind an Entry.
        """
        now_s, limits = self._monotonic_s(), self._limits
        for host, held in list(self._holds.items()):
            if now_s - held.heard_s > limits.silence_s:
                del self._holds[host]
            elif now_s - held.begun_s > limits.life_s or bytes_above(held.index) > limits.bytes_max:
                held.is_over = True  # it stays known: else the next word would renew it
            elif not held.is_over:
                index = min(index, held.index)
        return index
