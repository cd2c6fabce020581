"""The network between hosts: delay, loss, duplication, reordering, cuts in one direction or
both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from cluster.replication.replica_messages import Append, Message, decode_message, encode_message

_ENCODED = 0.02
"""Share of messages that go through their wire form, to save time."""


class SimulatedNetwork:
    """Carries messages; `deliver(to, sender, message)` is called at their arrival."""

    def __init__(self, random: Random, deliver: Callable[[str, str, Message], None]) -> None:
        self._random = random
        self._deliver = deliver
        self._last: dict[tuple[str, str], float] = {}
        self.cut: set[tuple[str, str]] = set()
        """Directions in which nothing passes."""
        self.drops: Callable[[str, str, Message], bool] | None = None
        """Chooses messages that are lost."""
        self.until_crash: dict[str, int] = {}
        """After so many messages with Entries the sender loses its power."""
        self.churn_until = 0.0
        """Until then each new leader loses its power soon."""
        self._term = 0
        self.on_crash: Callable[[str], None] = lambda sender: None
        self.end_faults()

    def end_faults(self) -> None:
        self.cut.clear()
        self.drops = None
        self.until_crash.clear()
        self.churn_until = 0.0
        self.heal()

    def heal(self) -> None:
        """Carry every message, soon and in order."""
        self.loss = self.duplication = self.reordering = 0.0
        self.delay_s = (0.0002, 0.002)

    def send(self, sender: str, to: str, message: Message) -> None:
        random = self._random
        if isinstance(message, Append) and self._crashes(sender, message.term):
            loop = asyncio.get_running_loop()
            loop.call_soon(self.on_crash, sender)
            if random.random() < 0.5:
                return
        if (sender, to) in self.cut or random.random() < self.loss:
            return
        if self.drops is not None and self.drops(sender, to, message):
            return
        if random.random() < _ENCODED:
            message = decode_message(encode_message(message))
        self._carry(sender, to, message)
        if random.random() < self.duplication:
            self._carry(sender, to, message)

    def _crashes(self, sender: str, term: int) -> bool:
        """True if the sender's power is cut at this message with Entries."""
        if asyncio.get_running_loop().time() < self.churn_until and term > self._term:
            self.until_crash[sender] = self._random.randint(1, 5)
        self._term = max(term, self._term)
        if sender not in self.until_crash:
            return False
        self.until_crash[sender] -= 1
        if self.until_crash[sender] > 0:
            return False
        del self.until_crash[sender]
        return True

    def _carry(self, sender: str, to: str, message: Message) -> None:
        loop, random = asyncio.get_running_loop(), self._random
        at = loop.time() + random.uniform(*self.delay_s)
        if random.random() >= self.reordering:  # as on a connection
            at = self._last[sender, to] = max(at, self._last.get((sender, to), 0.0) + 1e-6)
        loop.call_at(at, self._arrive, sender, to, message)

    def _arrive(self, sender: str, to: str, message: Message) -> None:
        if (sender, to) not in self.cut:
            self._deliver(to, sender, message)


class Port:
    """A host's way into the network."""

    def __init__(self, network: SimulatedNetwork, name: str) -> None:
        self._network = network
        self._name = name

    def send(self, to: str, message: Message) -> None:
        self._network.send(self._name, to, message)
