"""Circuit breaker and pauses before new attempts."""

from __future__ import annotations

from cluster.clock import Entropy

_PARTS = 1 << 16


class Pause:
    """Pauses that double from one failure to the next, with jitter: hosts do not act in step."""

    def __init__(self, first_s: float, longest_s: float, entropy: Entropy) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._entropy = entropy
        self._next_s = first_s

    def next_s(self) -> float:
        """The next pause: between half of it and all."""
        pause_s = self._next_s
        self._next_s = min(2 * pause_s, self._longest_s)
        return pause_s * (0.5 + self._entropy.bits128() % _PARTS / _PARTS / 2)

    def reset(self) -> None:
        """An attempt succeeded."""
        self._next_s = self._first_s


class Breaker:
    """Leaves a peer alone that does not answer, but for a request now and then that tries."""

    def __init__(self, failures_max: int, pause: Pause) -> None:
        self._failures_max = failures_max
        self._pause = pause
        self.failures = 0
        """Requests in a row without an answer in time. While there are none nothing need be asked
        or told here."""
        self._next_try_s = 0.0

    @property
    def is_open(self) -> bool:
        """True after `failures_max` requests in a row without an answer."""
        return self.failures >= self._failures_max

    def lets(self, now_s: float) -> bool:
        """True if a request may be sent: all of them, or after each pause one that tries."""
        if not self.is_open:
            return True
        if now_s < self._next_try_s:
            return False
        self._next_try_s = now_s + self._pause.next_s()
        return True

    def succeeded(self) -> None:
        """The peer answered."""
        if self.failures:
            self.failures = 0
            self._pause.reset()

    def failed(self, now_s: float) -> None:
        """A request got no answer in time."""
        self.failures += 1
        if self.failures == self._failures_max:
            self._next_try_s = now_s + self._pause.next_s()
